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
  async "messages without an id"() {
    await sender().sendMessages([{ body: "text" }, { body: Buffer.from("bytes") }, { body: null }]);
    const [text, bytes, none] = await take(3);
    assert.deepEqual([text, String(bytes), none], ["text", "bytes", null]);
  },
  async "abandon with properties"() {
    await sender().sendMessages({ body: "again", applicationProperties: { first: 1 } });
    await receiver().abandonMessage(await one(), { why: "test", count: 2 });
    const message = await one();
    assert.deepEqual({ ...message.applicationProperties }, { first: 1, why: "test", count: 2 });
    assert.equal(message.deliveryCount, 1);
    await receiver().completeMessage(message);
  },
  async "defer with properties, give back and receive again"() {
    await sender().sendMessages({ body: "later" });
    const deferred = await one();
    await receiver().deferMessage(deferred, { why: "later" });
    const [back] = await receiver().receiveDeferredMessages(deferred.sequenceNumber);
    await receiver().abandonMessage(back, { again: true });
    const [last] = await receiver().receiveDeferredMessages(deferred.sequenceNumber);
    assert.deepEqual([last.body, last.state, { ...last.applicationProperties }], ["later", "deferred", { why: "later", again: true }]);
    await receiver().completeMessage(last);
  },
  async "dead-letter with properties"() {
    await sender().sendMessages({ body: "bad" });
    await receiver().deadLetterMessage(await one(), { deadLetterReason: "r", deadLetterErrorDescription: "d", extra: 1 });
    const dead = client.createReceiver("q", { subQueueType: "deadLetter" });
    const message = await one(dead);
    assert.deepEqual([message.deadLetterReason, message.deadLetterErrorDescription], ["r", "d"]);
    assert.equal(message.applicationProperties.extra, 1);
    await dead.completeMessage(message);
    await dead.close();
  },
  async "rules of subscriptions"() {
    await admin.createTopic("t");
    const filter = { applicationProperties: { colour: "red", n: 1.5, big: true }, subject: "s" };
    await admin.createSubscription("t", "red", { defaultRuleOptions: { name: "red", filter } });
    await admin.createSubscription("t", "all");
    const rules = [];
    for (const name of ["red", "all"]) for await (const rule of admin.listRules("t", name)) rules.push(rule);
    assert.deepEqual(rules.map((rule) => rule.name), ["red", "$Default"]);
    assert.deepEqual({ ...rules[0].filter.applicationProperties }, filter.applicationProperties);
    assert.equal(rules[0].filter.subject, "s");
    assert.equal((await admin.getRule("t", "all", rules[1].name)).name, "$Default");
  },
  async "a topic with filters"() {
    const properties = { colour: "red", n: 1.5, big: true };
    await sender("t").sendMessages([{ body: 1, subject: "s", applicationProperties: properties }, { body: 2 }]);
    const red = client.createReceiver("t", "red"), all = client.createReceiver("t", "all");
    assert.deepEqual([await take(1, red), await take(2, all)], [[1], [1, 2]]);
    await Promise.all([red.close(), all.close()]);
  },
  async "entities that are not there"() {
    const strange = client.createReceiver("nope");
    assert.equal(await refusal(client.createSender("nope").sendMessages({ body: 1 })), "MessagingEntityNotFound");
    assert.equal(await refusal(strange.receiveMessages(1, { maxWaitTimeInMs: 1_000 })), "MessagingEntityNotFound");
    assert.equal(await refusal(strange.peekMessages(1)), "MessagingEntityNotFound");
  },
  async "40 senders, and 40 to a queue that is not there"() {
    const made = [], quick = new ServiceBusClient(connection, { retryOptions: { maxRetries: 0 } });
    for (let i = 0; i < 40; i++) {
      made.push(quick.createSender("q"));
      await made[i].sendMessages({ body: i });
      assert.equal(await refusal(quick.createSender("nope").sendMessages({ body: i })), "MessagingEntityNotFound");
    }
    await made[0].sendMessages({ body: 40 });
    await quick.close();
    assert.equal((await take(41)).length, 41);
  },
  async "delete queues"() {
    for (const name of ["s", "d"]) await admin.deleteQueue(name);
    assert.equal(await admin.queueExists("s"), false);
  },
});
