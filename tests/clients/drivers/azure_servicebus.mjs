// Azure's client for JavaScript.

import { createRequire } from "node:module";
import { serve } from "./lines.mjs";

const require = createRequire(process.env.MODULES);
const { ServiceBusAdministrationClient, ServiceBusClient } = require("@azure/service-bus");

const { CONNECTION_STRING: plain, HOST, PORT, TRANSPORT } = process.env;
const overTls = plain.replace(";UseDevelopmentEmulator=true", "");
const ways = {
  tcp: () => new ServiceBusClient(plain),
  tls: () => new ServiceBusClient(overTls, { customEndpointAddress: `sb://${HOST}:${PORT}` }),
  websocket: () => new ServiceBusClient(overTls, { webSocketOptions: { webSocket: require("ws") } }),
};
const bus = ways[TRANSPORT]();
const admin = new ServiceBusAdministrationClient(overTls);
const links = new Map();
const deliveries = [];

async function link(name, open) {
  if (!links.has(name)) links.set(name, await open());
  return links.get(name);
}

function receiver(path, session) {
  const [queue, dead] = path.split("/$");
  return link(`from ${path} ${session}`, () => {
    if (session === undefined) return bus.createReceiver(queue, dead ? { subQueueType: "deadLetter" } : {});
    return session === null ? bus.acceptNextSession(queue) : bus.acceptSession(queue, session);
  });
}

serve({
  async send({ to, body, session, at }) {
    const sender = await link(`to ${to}`, () => bus.createSender(to));
    await sender.sendMessages({ body: Buffer.from(body), sessionId: session, scheduledEnqueueTimeUtc: at && new Date(at) });
  },

  async receive({ path, session }) {
    const from = await receiver(path, session);
    const [message] = await from.receiveMessages(1, { maxWaitTimeInMs: 20_000 });
    return {
      delivery: deliveries.push({ from, message }) - 1,
      body: String(message.body),
      count: message.deliveryCount,
      session: message.sessionId,
      properties: Object.keys(message.applicationProperties ?? {}).length,
      ttl: message.timeToLive,
      partition: message._rawAmqpMessage.messageAnnotations?.["x-opt-partition-id"],
    };
  },

  async settle({ delivery, how }) {
    const { from, message } = deliveries[delivery];
    if (how === "accept") await from.completeMessage(message);
    if (how === "modify") await from.abandonMessage(message);
    if (how === "defer") await from.deferMessage(message);
    if (how === "reject") await from.deadLetterMessage(message, { deadLetterReason: "told" });
  },

  async browse({ path, count }) {
    return (await (await receiver(path)).peekMessages(count)).map(({ body }) => String(body));
  },

  "get-state": ({ delivery }) => deliveries[delivery].from.getSessionState(),
  "set-state": ({ delivery, state }) => deliveries[delivery].from.setSessionState(state),

  "create-queue": async ({ name }) => void (await admin.createQueue(name)),
  "delete-queue": async ({ name }) => void (await admin.deleteQueue(name)),
  async "list-queues"() {
    const names = [];
    for await (const { name } of admin.listQueues()) names.push(name);
    return names;
  },
  async "has-subscription"({ topic, name }) {
    try {
      return (await admin.getSubscription(topic, name)).subscriptionName === name;
    } catch (error) {
      if (error.statusCode === 404) return false;
      throw error;
    }
  },
});
