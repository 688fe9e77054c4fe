// Operations of @azure/service-bus.  node servicebus.js CONNECTION
"use strict";
const { ServiceBusAdministrationClient, ServiceBusClient, delay } = require("@azure/service-bus");
const { assert, refusal, run } = require("./operations.js");

const connection = process.argv[2];
const client = new ServiceBusClient(connection);
const admin = new ServiceBusAdministrationClient(connection);
// 7.9.5 asks for TLS even of an emulator.
admin.pipeline.addPolicy(
  {
    name: "plain",
    sendRequest(request, next) {
      request.url = request.url.replace("https://", "http://");
      request.allowInsecureConnection = true;
      return next(request);
    },
  },
  { afterPhase: "Retry" },
);
let senders = {}, receivers = {};
const sender = (name = "q") => (senders[name] ??= client.createSender(name));
const receiver = (name = "q") => (receivers[name] ??= client.createReceiver(name));

async function one(from = receiver()) {
  const [message] = await from.receiveMessages(1, { maxWaitTimeInMs: 5_000 });
  assert.ok(message, "nothing was received");
  return message;
}

// Receive and complete so many messages; their bodies.
async function take(count, from = receiver()) {
  const bodies = [];
  while (bodies.length < count) {
    const messages = await from.receiveMessages(count - bodies.length, { maxWaitTimeInMs: 5_000 });
    assert.ok(messages.length, `only ${bodies.length} of ${count} came`);
    for (const message of messages) {
      bodies.push(message.body);
      await from.completeMessage(message);
    }
  }
  return bodies;
}

run({
  async "create queues"() {
    const made = await admin.createQueue("q", { lockDuration: "PT10S", maxDeliveryCount: 3 });
    assert.deepEqual([made.name, made.lockDuration, made.maxDeliveryCount], ["q", "PT10S", 3]);
    assert.ok((await admin.createQueue("s", { requiresSession: true })).requiresSession);
    assert.ok((await admin.createQueue("d", { requiresDuplicateDetection: true })).requiresDuplicateDetection);
  },
  async "find and list queues"() {
    const names = [];
    for await (const queue of admin.listQueues()) names.push(queue.name);
    assert.deepEqual(names, ["d", "q", "s"]);
    assert.deepEqual([await admin.queueExists("q"), await admin.queueExists("nope")], [true, false]);
  },
  async "update a queue"() {
    const queue = await admin.getQueue("q");
    queue.maxDeliveryCount = 4;
    assert.equal((await admin.updateQueue(queue)).maxDeliveryCount, 4);
  },
  async "send, receive and complete"() {
    const properties = { n: 1, f: 1.5, b: true, t: "x" };
    await sender().sendMessages({
      body: { id: 1, text: "é" }, messageId: "m1", applicationProperties: properties, subject: "s",
      correlationId: "c", contentType: "application/json",
    });
    const message = await one();
    assert.deepEqual(message.body, { id: 1, text: "é" });
    assert.deepEqual({ ...message.applicationProperties }, properties);
    assert.deepEqual(
      [message.messageId, message.subject, message.correlationId, message.deliveryCount], ["m1", "s", "c", 0],
    );
    await receiver().completeMessage(message);
    assert.equal((await admin.getQueueRuntimeProperties("q")).activeMessageCount, 0);
  },
  async "a batch of 100"() {
    const batch = await sender().createMessageBatch();
    for (let i = 0; i < 100; i++) assert.ok(batch.tryAddMessage({ body: i, messageId: `b${i}` }));
    await sender().sendMessages(batch);
    assert.equal((await take(100)).length, 100);
  },
  async "peek"() {
    await sender().sendMessages([{ body: 1, messageId: "1" }, { body: 2, messageId: "2" }]);
    assert.deepEqual((await receiver().peekMessages(10)).map((message) => message.body), [1, 2]);
    await take(2);
  },
  async "renew a lock"() {
    await sender().sendMessages({ body: "long", messageId: "l" });
    const message = await one();
    const before = message.lockedUntilUtc;
    await delay(50);
    assert.ok((await receiver().renewMessageLock(message)) > before);
    await receiver().completeMessage(message);
  },
  async "schedule and cancel"() {
    const soon = new Date(Date.now() + 1_000);
    const numbers = await sender().scheduleMessages([{ body: "kept", messageId: "k" }, { body: "not", messageId: "n" }], soon);
    await sender().cancelScheduledMessages(numbers[1]);
    assert.deepEqual(await take(1), ["kept"]);
    assert.equal((await receiver().peekMessages(1)).length, 0);
  },
  async "detect duplicates"() {
    await sender("d").sendMessages([{ body: 1, messageId: "x" }, { body: 2, messageId: "x" }]);
    await sender("d").sendMessages({ body: 3, messageId: "x" });
    assert.deepEqual(await take(1, receiver("d")), [1]);
    assert.equal((await receiver("d").peekMessages(1)).length, 0);
  },
  async "subscribe to 50 messages"() {
    const got = new Set(), errors = [], listening = client.createReceiver("q");
    const subscription = listening.subscribe({
      async processMessage(message) { got.add(message.body); },
      async processError(error) { errors.push(String(error.error)); },
    }, { maxConcurrentCalls: 5 });
    await sender().sendMessages(Array.from({ length: 50 }, (_, i) => ({ body: i, messageId: `s${i}` })));
    for (let i = 0; i < 200 && got.size < 50; i++) await delay(50);
    await subscription.close();
    await listening.close();
    assert.deepEqual([got.size, errors], [50, []]);
  },
  async "a session: accept, state, order"() {
    await sender("s").sendMessages([1, 2, 3].map((i) => ({ body: i, sessionId: "a", messageId: `a${i}` })));
    const session = await client.acceptSession("s", "a");
    await session.setSessionState({ at: 1 });
    assert.deepEqual(await session.getSessionState(), { at: 1 });
    await session.renewSessionLock();
    assert.deepEqual(await take(3, session), [1, 2, 3]);
    assert.equal(await refusal(client.acceptSession("s", "a")), "SessionCannotBeLocked");
    await session.close();
  },
  async "the next session"() {
    await sender("s").sendMessages({ body: 9, sessionId: "b", messageId: "b" });
    const session = await client.acceptNextSession("s");
    assert.deepEqual([session.sessionId, await take(1, session)], ["b", [9]]);
    await session.close();
  },
  async "a message that is too large"() {
    const refused = await refusal(sender().sendMessages({ body: Buffer.alloc(300 << 10), messageId: "L" }));
    assert.equal(refused, "MessageSizeExceeded");
  },
  async "delete queues"() {
    for (const name of ["s", "d"]) await admin.deleteQueue(name);
    assert.equal(await admin.queueExists("s"), false);
  },
});
