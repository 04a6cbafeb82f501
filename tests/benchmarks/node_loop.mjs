// The best loop of the official client for JavaScript: queues side by side, a batch a destination, all completed at once.
//
// It gives back what the aliases say, as far as that client can. node node_loop.mjs QUEUE …

import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const { ServiceBusClient } = require("@azure/service-bus");

const BATCH = 100;
const IDLE = { maxWaitTimeInMs: 1_000 };
const ALIASES = ["x-ms-path", "x-ms-sessionid", "x-ms-timetolive", "x-ms-scheduledenqueuetimeutc"];

const primary = new ServiceBusClient(process.env.SBPAIR_PRIMARY_CONNECTION_STRING);
const secondary = new ServiceBusClient(process.env.SBPAIR_SECONDARY_CONNECTION_STRING);

function restored(message) {
  const own = { ...message.applicationProperties };
  const [path, sessionId, ttl, scheduled] = ALIASES.map((name) => own[name]);
  for (const name of ALIASES) delete own[name];
  const { body, messageId, contentType, correlationId, subject, to, replyTo } = message;
  const made = { body, messageId, contentType, correlationId, subject, to, replyTo, applicationProperties: own };
  if (sessionId !== undefined) made.sessionId = sessionId;
  if (ttl !== undefined) made.timeToLive = Number(ttl.value ?? ttl) / 10_000;
  if (scheduled !== undefined) made.scheduledEnqueueTimeUtc = new Date(scheduled);
  return [path, made];
}

async function send(sender, messages) {
  let batch = await sender.createMessageBatch();
  for (const message of messages) {
    if (batch.tryAddMessage(message)) continue;
    await sender.sendMessages(batch);
    batch = await sender.createMessageBatch();
    if (!batch.tryAddMessage(message)) throw new Error(`${message.messageId} is too large`);
  }
  await sender.sendMessages(batch);
}

const senders = new Map();

function senderFor(destination) {
  if (!senders.has(destination)) senders.set(destination, primary.createSender(destination));
  return senders.get(destination);
}

async function drain(queue) {
  const receiver = secondary.createReceiver(queue);
  for (;;) {
    const received = await receiver.receiveMessages(BATCH, IDLE);
    if (received.length === 0) break;
    const byDestination = new Map();
    for (const message of received) {
      const [destination, made] = restored(message);
      if (!byDestination.has(destination)) byDestination.set(destination, []);
      byDestination.get(destination).push(made);
    }
    await Promise.all([...byDestination].map(([destination, messages]) => send(senderFor(destination), messages)));
    await Promise.all(received.map((message) => receiver.completeMessage(message)));
  }
  await receiver.close();
}

await Promise.all(process.argv.slice(2).map(drain));
await primary.close();
await secondary.close();
