// The official client for JavaScript against the emulator: one JSON line a check, {"check", "error"}, and nothing else.
//
// PLAIN is the connection string for messages, TLS the one for management, whose client knows https only; the CA file is
// named by NODE_EXTRA_CA_CERTS. TRANSPORT is TCP or WebSocket, with which the client for messages uses TLS too, and WSS
// in place of TLS if it is set.
// A check makes what it needs, under names of its own that begin with PREFIX, so that all can run at once. With INSECURE
// management and WebSockets go without TLS too. CHECK_MS is the time that a check may take.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");
const Long = require("long");

const CHECK_MS = Number(process.env.CHECK_MS ?? 20_000);
const PREFIX = process.env.PREFIX ?? "node-";
const WAIT = { maxWaitTimeInMs: 10_000 };
const SHORT = { maxWaitTimeInMs: 500 };
// New ones each time: the client deletes the mode from the options that it is given.
const forGood = () => ({ receiveMode: "receiveAndDelete" });
const retryOptions = { maxRetries: 0, timeoutInMs: 10_000 };

const withoutTls = {
  name: "withoutTls",
  sendRequest(request, next) {
    request.url = request.url.replace("https://", "http://");
    request.allowInsecureConnection = true;
    return next(request);
  },
};

class PlainWebSocket extends require("ws") {
  constructor(url, ...rest) {
    super(url.replace("wss://", "ws://"), ...rest);
  }
}

const admin = new ServiceBusAdministrationClient(process.env.TLS, { retryOptions: { maxRetries: 0 } });
if (process.env.INSECURE) admin.pipeline.addPolicy(withoutTls);

function overWebSocket() {
  const webSocketOptions = { webSocket: process.env.INSECURE ? PlainWebSocket : require("ws") };
  const address = process.env.INSECURE ? process.env.PLAIN : (process.env.WSS ?? process.env.TLS);
  return new ServiceBusClient(address, { retryOptions, webSocketOptions });
}

const bus =
  process.env.TRANSPORT === "WebSocket"
    ? overWebSocket()
    : new ServiceBusClient(process.env.PLAIN, { retryOptions });

let names = 0;

async function queue(options) {
  const name = `${PREFIX}node-${names++}`;
  await admin.createQueue(name, options);
  return { name, sender: bus.createSender(name), receiver: bus.createReceiver(name), dead: deadLetters(name) };
}

const deadLetters = (name) => bus.createReceiver(name, { subQueueType: "deadLetter", ...forGood() });
const bodies = (messages) => messages.map((message) => message.body);

async function one(receiver) {
  const [message] = await receiver.receiveMessages(1, WAIT);
  assert.ok(message, "nothing was received");
  return message;
}

async function take(receiver, count) {
  const taken = [];
  while (taken.length < count) {
    const some = await receiver.receiveMessages(count - taken.length, WAIT);
    assert.ok(some.length, `only ${taken.length} of ${count} were received`);
    taken.push(...some);
  }
  return taken;
}

async function listed(pages) {
  const items = [];
  for await (const item of pages) items.push(item.subscriptionName ?? item.name);
  return items;
}

async function topic(...subscriptions) {
  const name = `${PREFIX}topic-${names++}`;
  await admin.createTopic(name);
  for (const subscription of subscriptions) await admin.createSubscription(name, subscription);
  return name;
}

const inSession = (sessionId, body) => ({ sessionId, body });

const checks = {
  "a message keeps its properties": async () => {
    const { sender, receiver } = await queue();
    const sent = {
      body: { nested: ["json", 1, null] },
      messageId: "id",
      correlationId: "correlation",
      subject: "subject",
      contentType: "application/json",
      replyTo: "reply",
      to: "to",
      timeToLive: 60_000,
      applicationProperties: { text: "t", number: 7, fraction: 1.5, truth: true },
    };
    await sender.sendMessages(sent);
    const received = await one(receiver);
    for (const [name, value] of Object.entries(sent)) assert.deepEqual(received[name], value, name);
    assert.equal(received.deliveryCount, 0);
    assert.equal(received.state, "active");
    assert.ok(received.lockToken && received.lockedUntilUtc > new Date());
    assert.ok(Math.abs(received.enqueuedTimeUtc - new Date()) < 60_000);
    await receiver.completeMessage(received);
  },

  "bodies are bytes, values and sequences": async () => {
    const { sender, receiver } = await queue();
    const raw = [
      { bodyType: "data", body: Buffer.from([0, 255, 1]) },
      { bodyType: "value", body: "text" },
      { bodyType: "value", body: 123 },
      { bodyType: "sequence", body: [[1, "two", true]] },
    ];
    for (const message of raw) await sender.sendMessages(message);
    for (const message of raw) {
      const received = await one(receiver);
      const { bodyType, body } = received._rawAmqpMessage;
      assert.equal(bodyType, message.bodyType);
      assert.deepEqual(bodyType === "sequence" ? body.content : received.body, message.body);
      await receiver.completeMessage(received);
    }
  },

  "a batch arrives in order": async () => {
    const { name, sender } = await queue();
    const batch = await sender.createMessageBatch();
    for (let number = 0; number < 100; number++) assert.ok(batch.tryAddMessage({ body: number }));
    await sender.sendMessages(batch);
    const taken = await take(bus.createReceiver(name, forGood()), 100);
    assert.deepEqual(bodies(taken), [...Array(100).keys()]);
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "a batch has a size": async () => {
    const { sender } = await queue();
    const batch = await sender.createMessageBatch();
    assert.equal(batch.maxSizeInBytes, 262_144);
    assert.ok(!batch.tryAddMessage({ body: Buffer.alloc(batch.maxSizeInBytes) }));
    await assert.rejects(sender.sendMessages({ body: Buffer.alloc(300_000) }), { code: "MessageSizeExceeded" });
  },

  "complete": async () => {
    const { name, sender, receiver } = await queue();
    await sender.sendMessages({ body: "x" });
    await receiver.completeMessage(await one(receiver));
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "abandon": async () => {
    const { sender, receiver } = await queue();
    await sender.sendMessages({ body: "x" });
    await receiver.abandonMessage(await one(receiver));
    const again = await one(receiver);
    assert.equal(again.deliveryCount, 1);
    await receiver.completeMessage(again);
  },

  "properties change with a settlement": async () => {
    const { name, sender, receiver, dead } = await queue();
    const peeks = () => bus.createReceiver(name).peekMessages(1, { fromSequenceNumber: Long.ONE });
    await sender.sendMessages({ body: "x", applicationProperties: { kept: 1, changed: 1 } });
    await receiver.abandonMessage(await one(receiver), { changed: 2, abandoned: "yes" });
    const abandoned = { kept: 1, changed: 2, abandoned: "yes" };
    assert.deepEqual((await peeks())[0].applicationProperties, abandoned);
    const message = await one(receiver);
    await receiver.deferMessage(message, { deferred: true });
    const [deferred] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.deepEqual(deferred.applicationProperties, { ...abandoned, deferred: true });
    await receiver.abandonMessage(deferred, { again: 3 });
    const [again] = await receiver.receiveDeferredMessages(message.sequenceNumber);
    assert.equal(again.applicationProperties.again, 3);
    await receiver.deadLetterMessage(again, { deadLetterReason: "reason", dead: 4 });
    const { deadLetterReason, applicationProperties } = await one(dead);
    assert.equal(deadLetterReason, "reason");
    assert.equal(applicationProperties.dead, 4);
    assert.equal(applicationProperties.kept, 1);
  },

  "abandoned too often": async () => {
    const { sender, receiver, dead } = await queue({ maxDeliveryCount: 2 });
    await sender.sendMessages({ body: "x" });
    await receiver.abandonMessage(await one(receiver));
    await receiver.abandonMessage(await one(receiver));
    assert.equal((await one(dead)).deadLetterReason, "MaxDeliveryCountExceeded");
  },

  "defer, and receive by number": async () => {
    const { name, sender, receiver } = await queue();
    await sender.sendMessages([{ body: "first" }, { body: "second" }]);
    const numbers = [];
    for (const message of await take(receiver, 2)) {
      await receiver.deferMessage(message);
      numbers.push(message.sequenceNumber);
    }
    assert.deepEqual((await receiver.peekMessages(2)).map((message) => message.state), ["deferred", "deferred"]);
    const [second] = await receiver.receiveDeferredMessages(numbers[1]);
    assert.equal(second.body, "second");
    await receiver.completeMessage(second);
    const [first] = await bus.createReceiver(name, forGood()).receiveDeferredMessages([numbers[0]]);
    assert.equal(first.body, "first");
    await assert.rejects(receiver.receiveDeferredMessages(numbers), { code: "MessageNotFound" });
  },

  "dead-letter, and read the dead letters": async () => {
    const { name, sender, receiver } = await queue();
    await sender.sendMessages({ body: "bad", applicationProperties: { kept: 1 } });
    const because = { deadLetterReason: "reason", deadLetterErrorDescription: "description" };
    await receiver.deadLetterMessage(await one(receiver), because);
    const dead = bus.createReceiver(name, { subQueueType: "deadLetter" });
    const message = await one(dead);
    assert.equal(message.deadLetterReason, "reason");
    assert.equal(message.deadLetterErrorDescription, "description");
    assert.equal(message.applicationProperties.kept, 1);
    assert.equal((await admin.getQueueRuntimeProperties(name)).deadLetterMessageCount, 1);
    await dead.completeMessage(message);
  },

  "a lock is renewed": async () => {
    const { sender, receiver } = await queue({ lockDuration: "PT30S" });
    await sender.sendMessages({ body: "x" });
    const message = await one(receiver);
    const before = message.lockedUntilUtc;
    assert.ok((await receiver.renewMessageLock(message)) >= before);
    await receiver.completeMessage(message);
  },

  "a message outlives the link of its receiver": async () => {
    const { name, sender, receiver, dead } = await queue();
    await sender.sendMessages([1, 2, 3, 4].map((body) => ({ body })));
    const [completed, abandoned, deferred, refused] = await take(receiver, 4);
    await receiver.close();
    const other = bus.createReceiver(name);
    assert.ok((await other.renewMessageLock(completed)) > abandoned.lockedUntilUtc);
    await other.completeMessage(completed);
    await other.abandonMessage(abandoned);
    await other.deferMessage(deferred);
    await other.deadLetterMessage(refused, { deadLetterReason: "late" });
    const again = await one(other);
    const [putAside] = await other.receiveDeferredMessages(deferred.sequenceNumber);
    assert.deepEqual([again, putAside].map((each) => [each.body, each.deliveryCount]), [[2, 1], [3, 1]]);
    await Promise.all([again, putAside].map((message) => other.completeMessage(message)));
    assert.equal((await one(dead)).deadLetterReason, "late");
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "what is settled twice is refused": async () => {
    const { name, sender, receiver } = await queue();
    await sender.sendMessages({ body: "x" });
    const message = await one(receiver);
    await receiver.completeMessage(message);
    await assert.rejects(receiver.completeMessage(message));
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "peek": async () => {
    const { sender, receiver } = await queue();
    await sender.sendMessages([1, 2, 3].map((body) => ({ body })));
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [1, 2]);
    assert.deepEqual(bodies(await receiver.peekMessages(2)), [3]);
    assert.deepEqual(await receiver.peekMessages(2), []);
    assert.deepEqual(bodies(await receiver.peekMessages(5, { fromSequenceNumber: Long.fromNumber(2) })), [2, 3]);
  },

  "schedule and cancel": async () => {
    const { sender, receiver } = await queue();
    const far = new Date(Date.now() + 3_600_000);
    const numbers = await sender.scheduleMessages([{ body: "kept" }, { body: "cancelled" }], far);
    assert.equal(numbers.length, 2);
    await sender.cancelScheduledMessages(numbers[1]);
    const waiting = await receiver.peekMessages(5);
    assert.deepEqual(bodies(waiting), ["kept"]);
    assert.equal(waiting[0].state, "scheduled");
    assert.equal(waiting[0].scheduledEnqueueTimeUtc.getTime(), far.getTime());
    assert.deepEqual(await receiver.receiveMessages(1, SHORT), []);
    await assert.rejects(sender.cancelScheduledMessages(numbers[1]), { code: "MessageNotFound" });
    await sender.scheduleMessages({ body: "soon" }, new Date(Date.now() + 1_000));
    assert.equal((await one(receiver)).body, "soon");
  },

  "subscribe": async () => {
    const { name, sender, receiver } = await queue();
    await sender.sendMessages([..."abcde"].map((body) => ({ body })));
    const seen = [];
    await new Promise((resolve, reject) => {
      const subscription = receiver.subscribe({
        processMessage: async ({ body }) => {
          seen.push(body);
          if (seen.length === 5) resolve(subscription);
        },
        processError: async ({ error }) => reject(error),
      });
    }).then((subscription) => subscription.close());
    await receiver.close();
    assert.deepEqual(seen, [..."abcde"]);
    assert.equal((await admin.getQueueRuntimeProperties(name)).totalMessageCount, 0);
  },

  "an entity that is not there": async () => {
    await assert.rejects(bus.createSender("node-nowhere").sendMessages({ body: "x" }), {
      code: "MessagingEntityNotFound",
    });
  },

  "a session by its id": async () => {
    const { name, sender } = await queue({ requiresSession: true });
    await sender.sendMessages([inSession("one", 1), inSession("two", 2), inSession("one", 3)]);
    const session = await bus.acceptSession(name, "one");
    assert.equal(session.sessionId, "one");
    const taken = await take(session, 2);
    assert.deepEqual(bodies(taken), [1, 3]);
    assert.equal(taken[0].sessionId, "one");
    for (const message of taken) await session.completeMessage(message);
    await session.close();
  },

  "the next session": async () => {
    const { name, sender } = await queue({ requiresSession: true });
    await sender.sendMessages([inSession("one", 1), inSession("two", 2)]);
    const sessions = [await bus.acceptNextSession(name, forGood()), await bus.acceptNextSession(name, forGood())];
    assert.deepEqual(sessions.map((session) => session.sessionId).sort(), ["one", "two"]);
    for (const session of sessions) {
      assert.equal((await one(session)).sessionId, session.sessionId);
      await session.close();
    }
  },

  "a session is locked": async () => {
    const { name, sender } = await queue({ requiresSession: true });
    await sender.sendMessages(inSession("one", 1));
    const session = await bus.acceptSession(name, "one");
    await assert.rejects(bus.acceptSession(name, "one"), { code: "SessionCannotBeLocked" });
    await session.close();
    await (await bus.acceptSession(name, "one")).close();
  },

  "a session has a state": async () => {
    const { name } = await queue({ requiresSession: true });
    const session = await bus.acceptSession(name, "one");
    assert.equal(await session.getSessionState(), null);
    await session.setSessionState(Buffer.from("somewhere"));
    assert.equal(String(await session.getSessionState()), "somewhere");
    await session.setSessionState(null);
    assert.equal(await session.getSessionState(), null);
    await session.close();
  },

  "a session's lock is renewed": async () => {
    const { name } = await queue({ requiresSession: true, lockDuration: "PT30S" });
    const session = await bus.acceptSession(name, "one");
    const before = session.sessionLockedUntilUtc;
    assert.ok(before > new Date());
    assert.ok((await session.renewSessionLock()) >= before);
    await session.close();
  },

  "a session's messages are peeked": async () => {
    const { name, sender } = await queue({ requiresSession: true });
    await sender.sendMessages([inSession("one", 1), inSession("two", 2), inSession("one", 3)]);
    const session = await bus.acceptSession(name, "one");
    assert.deepEqual(bodies(await session.peekMessages(5)), [1, 3]);
    await session.close();
  },

  "without a session nothing is accepted": async () => {
    const { sender, receiver } = await queue({ requiresSession: true });
    await assert.rejects(sender.sendMessages({ body: "x" }), { name: "ServiceBusError" });
    await assert.rejects(receiver.receiveMessages(1, SHORT), { name: "ServiceBusError" });
  },

  "queues are managed": async () => {
    const name = "node/managed/queue";
    const made = await admin.createQueue(name, { maxDeliveryCount: 7, lockDuration: "PT45S", userMetadata: "<&>" });
    assert.equal(made.maxDeliveryCount, 7);
    assert.equal(made.lockDuration, "PT45S");
    assert.equal(made.userMetadata, "<&>");
    await assert.rejects(admin.createQueue(name), { code: "MessageEntityAlreadyExistsError", statusCode: 409 });
    made.maxDeliveryCount = 9;
    assert.equal((await admin.updateQueue(made)).maxDeliveryCount, 9);
    assert.equal((await admin.getQueue(name)).maxDeliveryCount, 9);
    assert.ok((await listed(admin.listQueues())).includes(name));
    assert.ok((await listed(admin.listQueuesRuntimeProperties())).includes(name));
    const { activeMessageCount, sizeInBytes, createdAt } = await admin.getQueueRuntimeProperties(name);
    assert.deepEqual([activeMessageCount, sizeInBytes], [0, 0]);
    assert.ok(Math.abs(createdAt - new Date()) < 60_000);
    await admin.deleteQueue(name);
    assert.equal(await admin.queueExists(name), false);
    await assert.rejects(admin.getQueue(name), { code: "MessageEntityNotFoundError" });
    await assert.rejects(admin.deleteQueue(name), { statusCode: 404 });
  },

  "topics and subscriptions are managed": async () => {
    const name = await topic("first", "second");
    assert.ok(await admin.topicExists(name));
    assert.ok((await listed(admin.listTopics())).includes(name));
    assert.deepEqual(await listed(admin.listSubscriptions(name)), ["first", "second"]);
    assert.equal((await admin.getTopicRuntimeProperties(name)).subscriptionCount, 2);
    const subscription = await admin.getSubscription(name, "first");
    subscription.lockDuration = "PT20S";
    assert.equal((await admin.updateSubscription(subscription)).lockDuration, "PT20S");
    await bus.createSender(name).sendMessages({ body: "x" });
    assert.equal((await admin.getSubscriptionRuntimeProperties(name, "first")).activeMessageCount, 1);
    assert.equal((await listed(admin.listSubscriptionsRuntimeProperties(name))).length, 2);
    await admin.deleteSubscription(name, "first");
    assert.equal(await admin.subscriptionExists(name, "first"), false);
    await admin.deleteTopic(name);
    assert.equal(await admin.topicExists(name), false);
  },

  "rules are managed": async () => {
    const name = await topic("all");
    assert.deepEqual(await listed(admin.listRules(name, "all")), ["$Default"]);
    const sql = { sqlExpression: "Color = @color AND n > 1", sqlParameters: { "@color": "red" } };
    const action = { sqlExpression: "SET Seen = 'yes'" };
    const rule = await admin.createRule(name, "all", "sql", sql, action);
    assert.equal(rule.filter.sqlExpression, sql.sqlExpression);
    assert.deepEqual(rule.filter.sqlParameters, sql.sqlParameters);
    assert.equal(rule.action.sqlExpression, action.sqlExpression);
    const correlation = { subject: "s", applicationProperties: { text: "t", number: 1, truth: true } };
    await admin.createRule(name, "all", "correlation", correlation);
    const read = await admin.getRule(name, "all", "correlation");
    assert.equal(read.filter.subject, "s");
    assert.deepEqual(read.filter.applicationProperties, correlation.applicationProperties);
    rule.filter = { sqlExpression: "1 = 1" };
    assert.equal((await admin.updateRule(name, "all", rule)).filter.sqlExpression, "1 = 1");
    await assert.rejects(admin.createRule(name, "all", "wrong", { sqlExpression: "Color = = 1" }), {
      statusCode: 400,
    });
    await admin.deleteRule(name, "all", "sql");
    assert.equal(await admin.ruleExists(name, "all", "sql"), false);
  },

  "rules select": async () => {
    const name = await topic("red", "important", "all");
    await admin.deleteRule(name, "red", "$Default");
    await admin.createRule(name, "red", "red", { sqlExpression: "Color = 'red'" }, { sqlExpression: "SET Seen = 1" });
    await admin.deleteRule(name, "important", "$Default");
    await admin.createRule(name, "important", "important", { correlationId: "important" });
    await bus.createSender(name).sendMessages([
      { body: 1, applicationProperties: { Color: "red" } },
      { body: 2, applicationProperties: { Color: "blue" }, correlationId: "important" },
    ]);
    const [red] = await take(bus.createReceiver(name, "red", forGood()), 1);
    assert.deepEqual([red.body, red.applicationProperties.Seen], [1, 1]);
    assert.deepEqual(bodies(await take(bus.createReceiver(name, "important", forGood()), 1)), [2]);
    assert.deepEqual(bodies(await take(bus.createReceiver(name, "all", forGood()), 2)), [1, 2]);
    assert.deepEqual(await bus.createReceiver(name, "red", forGood()).receiveMessages(1, SHORT), []);
  },

  "rules by way of messages": async () => {
    const name = await topic("some");
    const rules = bus.createRuleManager(name, "some");
    await rules.createRule("sql", { sqlExpression: "n = 1" }, { sqlExpression: "SET m = 2" });
    await rules.createRule("correlation", { subject: "s" });
    await rules.deleteRule("$Default");
    const found = [];
    for await (const rule of rules.listRules()) found.push(rule);
    assert.deepEqual(found.map((rule) => rule.name).sort(), ["correlation", "sql"]);
    const sql = found.find((rule) => rule.name === "sql");
    assert.deepEqual([sql.filter.sqlExpression, sql.action.sqlExpression], ["n = 1", "SET m = 2"]);
    },

  "the namespace is described": async () => {
    const { name, messagingSku } = await admin.getNamespaceProperties();
    assert.deepEqual([typeof name, typeof messagingSku], ["string", "string"]);
    if (!process.env.PREFIX) assert.equal(name, "contoso");
  },

  "messages over WebSocket": async () => {
    const { name } = await queue();
    const client = overWebSocket();
    await client.createSender(name).sendMessages([{ body: "x".repeat(50_000) }, { body: "second" }]);
    const receiver = client.createReceiver(name);
    const [first, second] = await take(receiver, 2);
    assert.deepEqual([first.body.length, second.body], [50_000, "second"]);
    await receiver.completeMessage(first);
    await receiver.abandonMessage(second);
    await client.close();
  },
};

async function outcome(check, run) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`not done within ${CHECK_MS} ms`)), CHECK_MS);
  });
  const error = await Promise.race([run(), late]).then(
    () => null,
    (failure) => String(failure.stack ?? failure),
  );
  clearTimeout(timer);
  process.stdout.write(`${JSON.stringify({ check, error })}\n`);
}

await Promise.all(Object.entries(checks).map(([check, run]) => outcome(check, run)));
// Where a check has failed, closing may fail as well: the client cannot let go of a message without an id.
await bus.close().catch(() => {});
process.exit(0);
