// Operations of @azure/storage-blob.  node blobs.js CONNECTION
"use strict";
const { BlobServiceClient } = require("@azure/storage-blob");
const { assert, refusal, run } = require("./operations.js");

const service = BlobServiceClient.fromConnectionString(process.argv[2], { retryOptions: { maxTries: 1 } });
const box = service.getContainerClient("box");
const blob = (name = "a") => box.getBlockBlobClient(name);

async function put(name, text, options) {
  return blob(name).upload(text, Buffer.byteLength(text), options);
}

// Names of what an iterator gives.
async function names(iterator) {
  const found = [];
  for await (const one of iterator) found.push(one.name);
  return found;
}

run({
  async "create and find a container"() {
    await box.create({ metadata: { kind: "x" } });
    assert.equal((await box.createIfNotExists()).succeeded, false);
    assert.deepEqual([await box.exists(), await service.getContainerClient("nope").exists()], [true, false]);
    assert.deepEqual(await names(service.listContainers({ prefix: "b" })), ["box"]);
  },
  async "upload and download"() {
    const made = await put("a", "é", { blobHTTPHeaders: { blobContentType: "text/x" }, metadata: { n: "1" } });
    const got = await blob().download();
    assert.deepEqual([got.etag, got.contentType, got.metadata], [made.etag, "text/x", { n: "1" }]);
    assert.equal((await blob().downloadToBuffer()).toString(), "é");
  },
  async "upload what is there"() {
    assert.equal(await refusal(put("a", "x", { conditions: { ifNoneMatch: "*" } })), "BlobAlreadyExists");
  },
  async "download what is not there"() {
    assert.equal(await refusal(blob("nope").download()), "BlobNotFound");
    assert.equal(await blob("nope").exists(), false);
  },
  async "write under an ETag"() {
    const { etag } = await put("a", "1");
    await put("a", "2", { conditions: { ifMatch: etag } });
    assert.equal(await refusal(put("a", "3", { conditions: { ifMatch: etag } })), "ConditionNotMet");
  },
  async "read what the client has"() {
    const { etag } = await blob().getProperties();
    await assert.rejects(blob().getProperties({ conditions: { ifNoneMatch: etag } }), { statusCode: 304 });
  },
  async "a range"() {
    await put("r", "0123456789");
    assert.equal((await blob("r").downloadToBuffer(2, 3)).toString(), "234");
    assert.equal((await blob("r").download(4, 2)).contentRange, "bytes 4-5/10");
  },
  async "a large blob, in blocks"() {
    const data = Buffer.alloc(9 << 20, "xyz");
    await blob("large").uploadData(data, { blockSize: 2 << 20, maxSingleShotSize: 1 << 20, concurrency: 3 });
    assert.ok((await blob("large").downloadToBuffer()).equals(data));
  },
  async "stage and commit blocks"() {
    const ids = ["1", "2"].map((one) => Buffer.from(one).toString("base64"));
    for (const id of ids) await blob("blocks").stageBlock(id, id, Buffer.byteLength(id));
    assert.equal((await blob("blocks").getBlockList("uncommitted")).uncommittedBlocks.length, 2);
    await blob("blocks").commitBlockList([...ids].reverse());
    assert.deepEqual((await blob("blocks").getBlockList("committed")).committedBlocks.map((one) => one.name), [...ids].reverse());
  },
  async "metadata and HTTP headers"() {
    await blob().setMetadata({ kind: "y" });
    await blob().setHTTPHeaders({ blobContentType: "text/y", blobCacheControl: "no-store" });
    const { metadata, contentType, cacheControl } = await blob().getProperties();
    assert.deepEqual([metadata, contentType, cacheControl], [{ kind: "y" }, "text/y", "no-store"]);
  },
  async "tags, and conditions on them"() {
    await blob().setTags({ state: "new" });
    assert.deepEqual((await blob().getTags()).tags, { state: "new" });
    assert.equal(await refusal(blob().download(0, 1, { conditions: { tagConditions: "state = 'old'" } })), "ConditionNotMet");
    assert.deepEqual(await names(service.findBlobsByTags("state = 'new'")), ["a"]);
  },
  async "list by prefix, in pages"() {
    for (const name of ["d/1", "d/2", "d/e/3"]) await put(name, "x");
    const pages = [];
    for await (const page of box.listBlobsFlat({ prefix: "d/" }).byPage({ maxPageSize: 2 })) {
      pages.push(page.segment.blobItems.map((one) => one.name));
    }
    assert.deepEqual(pages, [["d/1", "d/2"], ["d/e/3"]]);
  },
  async "list folders"() {
    assert.deepEqual(await names(box.listBlobsByHierarchy("/", { prefix: "d/" })), ["d/e/", "d/1", "d/2"]);
  },
  async "list with metadata and tags"() {
    for await (const one of box.listBlobsFlat({ prefix: "a", includeMetadata: true, includeTags: true })) {
      assert.deepEqual([one.metadata, one.tags], [{ kind: "y" }, { state: "new" }]);
    }
  },
  async "a lease keeps a blob"() {
    const lease = blob().getBlobLeaseClient();
    await lease.acquireLease(15);
    assert.equal(await refusal(put("a", "x")), "LeaseIdMissing");
    await put("a", "y", { conditions: { leaseId: lease.leaseId } });
    await lease.renewLease();
    await lease.releaseLease();
    await put("a", "z");
  },
  async "a lease is broken"() {
    const lease = blob().getBlobLeaseClient();
    await lease.acquireLease(-1);
    assert.equal(await refusal(blob().getBlobLeaseClient().acquireLease(15)), "LeaseAlreadyPresent");
    await lease.breakLease(0);
    await put("a", "x");
  },
  async "a lease keeps a container"() {
    const lease = box.getBlobLeaseClient();
    await lease.acquireLease(-1);
    assert.equal(await refusal(box.delete()), "LeaseIdMissing");
    await lease.releaseLease();
  },
  async "an MD5 that is another's is refused"() {
    const other = { blobHTTPHeaders: { blobContentMD5: new Uint8Array(16) } };
    assert.equal(await refusal(put("m", "x", other)), "Md5Mismatch");
  },
  async "snapshots, copies and append blobs are refused"() {
    assert.equal(await refusal(blob().createSnapshot()), "InvalidQueryParameterValue");
    assert.equal(await refusal(box.getAppendBlobClient("p").create()), "InvalidHeaderValue");
    assert.equal(await refusal(blob("copy").syncCopyFromURL(blob().url)), "UnsupportedHeader");
  },
  async "the account and its properties"() {
    assert.equal((await service.getAccountInfo()).accountKind, "StorageV2");
    assert.deepEqual((await service.getProperties()).cors ?? [], []);
  },
  async "another key is refused"() {
    const other = process.argv[2].replace(/AccountKey=[^;]+/, `AccountKey=${Buffer.from("wrong").toString("base64")}`);
    assert.equal(await refusal(BlobServiceClient.fromConnectionString(other).getAccountInfo()), "AuthenticationFailed");
  },
  async "delete a blob, and a container"() {
    await blob().delete();
    assert.equal((await blob().deleteIfExists()).succeeded, false);
    await box.delete();
    assert.equal(await box.exists(), false);
  },
});
