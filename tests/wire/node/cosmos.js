// Operations of @azure/cosmos.  node cosmos.js URL KEY
"use strict";
const { ChangeFeedStartFrom, CosmosClient } = require("@azure/cosmos");
const { assert, refusal, run } = require("./operations.js");

const [endpoint, key] = process.argv.slice(2);
const client = new CosmosClient({ endpoint, key });
const database = client.database("d");
const items = client.database("d").container("c").items;
const container = database.container("c");
const item = (id = "1", pk = "p") => container.item(id, pk);
const under = (type, condition) => ({ accessCondition: { type, condition } });

async function all(query, options) {
  return (await items.query(query, options).fetchAll()).resources;
}

// Every change that an iterator gives until it has no more, and where it stands then.
async function changes(iterator) {
  const found = [];
  for await (const page of iterator.getAsyncIterator()) {
    if (page.statusCode === 304) return [found, page.continuationToken];
    found.push(...page.result);
  }
  return [found, undefined];
}

run({
  async "the account"() {
    const { resource } = await client.getDatabaseAccount();
    assert.deepEqual([resource.consistencyPolicy, resource.writableLocations.length], ["Session", 1]);
  },
  async "create a database and containers"() {
    await client.databases.createIfNotExists({ id: "d" });
    await database.containers.createIfNotExists({ id: "c", partitionKey: { paths: ["/pk"] }, defaultTtl: -1 });
    await database.containers.createIfNotExists({ id: "c", partitionKey: "/pk" });
    const paths = ["/a", "/b"];
    await database.containers.create({ id: "h", partitionKey: { paths, kind: "MultiHash", version: 2 } });
  },
  async "replace a container under its ETag"() {
    const { resource, etag } = await container.read();
    await container.replace({ ...resource, defaultTtl: -1 }, under("IfMatch", etag));
    assert.equal(await refusal(container.replace({ ...resource, defaultTtl: 9 }, under("IfMatch", etag))), 412);
  },
  async "create and read"() {
    const made = await items.create({ id: "1", pk: "p", n: 1, t: "é" });
    const read = await item().read();
    assert.deepEqual([made.statusCode, read.resource.t, read.etag], [201, "é", made.etag]);
    assert.ok(made.requestCharge > 0 && read.headers["x-ms-session-token"]);
  },
  async "create what is there"() {
    assert.equal(await refusal(items.create({ id: "1", pk: "p" })), 409);
  },
  async "read what is not there"() {
    const { statusCode, resource } = await item("no").read();
    assert.deepEqual([statusCode, resource], [404, undefined]);
  },
  async "upsert, and replace under an ETag"() {
    await items.upsert({ id: "1", pk: "p", n: 2 });
    const { resource, etag } = await item().read();
    await item().replace({ ...resource, n: 3 }, under("IfMatch", etag));
    assert.equal(await refusal(item().replace({ ...resource, n: 4 }, under("IfMatch", etag))), 412);
  },
  async "read what the client has"() {
    const { etag } = await item().read();
    assert.equal((await item().read(under("IfNoneMatch", etag))).statusCode, 304);
  },
  async "patch with a list"() {
    const { resource } = await item().patch([
      { op: "incr", path: "/n", value: 5 },
      { op: "add", path: "/tags", value: ["x"] },
      { op: "add", path: "/tags/-", value: "y" },
    ]);
    assert.deepEqual([resource.n, resource.tags], [8, ["x", "y"]]);
  },
  async "patch under a condition"() {
    const operations = [{ op: "set", path: "/n", value: 1 }];
    assert.equal(await refusal(item().patch({ condition: "from c where c.n = 0", operations })), 412);
  },
  async "a transactional batch"() {
    const { result } = await items.batch([
      { operationType: "Create", resourceBody: { id: "b1", pk: "p" } },
      { operationType: "Upsert", resourceBody: { id: "b2", pk: "p" } },
      { operationType: "Patch", id: "1", resourceBody: { operations: [{ op: "incr", path: "/n", value: 1 }] } },
      { operationType: "Read", id: "b1" },
    ], "p");
    assert.deepEqual(result.map((one) => one.statusCode), [201, 201, 200, 200]);
  },
  async "a batch that fails leaves nothing"() {
    const { code, result } = await items.batch([
      { operationType: "Create", resourceBody: { id: "b3", pk: "p" } },
      { operationType: "Create", resourceBody: { id: "b1", pk: "p" } },
    ], "p");
    assert.deepEqual([code, result.map((one) => one.statusCode)], [207, [424, 409]]);
    assert.equal((await item("b3").read()).statusCode, 404);
  },
  async "operations in bulk"() {
    const wanted = Array.from({ length: 10 }, (_, i) => {
      return { operationType: "Create", partitionKey: `k${i % 3}`, resourceBody: { id: `x${i}`, pk: `k${i % 3}` } };
    });
    const made = await items.executeBulkOperations(wanted);
    assert.deepEqual(made.map((one) => one.response?.statusCode), Array(10).fill(201));
    const read = await items.bulk(wanted.map(({ partitionKey, resourceBody }) => {
      return { operationType: "Delete", partitionKey, id: resourceBody.id };
    }));
    assert.deepEqual(read.map((one) => one.statusCode), Array(10).fill(204));
  },
  async "a query under a key, in pages"() {
    for (let i = 0; i < 50; i++) await items.create({ id: `q${i}`, pk: `q${i % 5}`, n: i });
    const parameters = [{ name: "@n", value: 10 }];
    const query = { query: "SELECT c.id, c.n FROM c WHERE c.n >= @n", parameters };
    const pages = items.query(query, { partitionKey: "q0", maxItemCount: 3 });
    let count = 0;
    while (pages.hasMoreResults()) count += ((await pages.fetchNext()).resources ?? []).length;
    assert.equal(count, 8);
  },
  async "a query over all keys, in order"() {
    const query = "SELECT VALUE c.n FROM c WHERE STARTSWITH(c.id, 'q') ORDER BY c.n DESC OFFSET 0 LIMIT 5";
    assert.deepEqual(await all(query), [49, 48, 47, 46, 45]);
  },
  async "aggregates and groups"() {
    assert.deepEqual(await all("SELECT VALUE COUNT(1) FROM c WHERE STARTSWITH(c.id, 'q')"), [50]);
    assert.equal((await all("SELECT c.pk, COUNT(1) AS k FROM c WHERE STARTSWITH(c.id, 'q') GROUP BY c.pk")).length, 5);
    assert.equal((await all("SELECT DISTINCT VALUE c.pk FROM c WHERE STARTSWITH(c.id, 'q')")).length, 5);
  },
  async "a join"() {
    assert.deepEqual(await all("SELECT TOP 1 VALUE t FROM c JOIN t IN c.tags WHERE t != 'x'"), ["y"]);
  },
  async "what a query has not is refused"() {
    assert.equal(await refusal(all("SELECT VALUE c.id FROM c WHERE EXISTS(SELECT VALUE t FROM t IN c.tags)")), 400);
  },
  async "read all items"() {
    assert.equal((await items.readAll().fetchAll()).resources.length, 53);
  },
  async "the change feed of a key, and where it stood"() {
    const start = ChangeFeedStartFrom.Beginning("q1");
    const [first, token] = await changes(items.getChangeFeedIterator({ maxItemCount: 5, changeFeedStartFrom: start }));
    assert.equal(first.length, 10);
    await items.upsert({ id: "q1", pk: "q1", n: 100 });
    const more = items.getChangeFeedIterator({ changeFeedStartFrom: ChangeFeedStartFrom.Continuation(token) });
    assert.deepEqual((await more.readNext()).result.map((one) => one.n), [100]);
  },
  async "the change feed of the container and of its ranges"() {
    const whole = items.getChangeFeedIterator({ changeFeedStartFrom: ChangeFeedStartFrom.Beginning() });
    assert.equal((await changes(whole))[0].length, 53);
    for (const range of await container.getFeedRanges()) {
      const its = items.getChangeFeedIterator({ changeFeedStartFrom: ChangeFeedStartFrom.Beginning(range) });
      assert.equal((await changes(its))[0].length, 53);
    }
  },
  async "a key of two parts"() {
    const of = database.container("h");
    await of.items.create({ id: "1", a: "x", b: "y" });
    assert.equal((await of.item("1", ["x", "y"]).read()).statusCode, 200);
    assert.equal((await of.items.query("SELECT * FROM c", { partitionKey: ["x", "y"] }).fetchAll()).resources.length, 1);
  },
  async "delete all items of a key"() {
    await container.deleteAllItemsForPartitionKey("q4");
    assert.deepEqual(await all("SELECT VALUE COUNT(1) FROM c", { partitionKey: "q4" }), [0]);
  },
  async "an item that expires"() {
    await items.create({ id: "ttl", pk: "p", ttl: 1 });
    await new Promise((resolve) => setTimeout(resolve, 2_200));
    assert.equal((await item("ttl").read()).statusCode, 404);
  },
  async "read the throughput"() {
    assert.equal((await container.readOffer()).resource.content.offerThroughput, 400);
  },
  async "a stored procedure is refused"() {
    assert.equal(await refusal(container.scripts.storedProcedures.create({ id: "s", body: "function(){}" })), 400);
  },
  async "another key is refused"() {
    const other = new CosmosClient({ endpoint, key: Buffer.from("wrong").toString("base64") });
    assert.equal(await refusal(other.databases.readAll().fetchAll()), 401);
  },
  async "delete an item, a container, a database"() {
    await item().delete();
    assert.equal(await refusal(item().delete()), 404);
    await container.delete();
    await database.delete();
  },
});
