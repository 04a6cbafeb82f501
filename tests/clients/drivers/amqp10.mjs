// amqp10: a client with a codec and a state machine of its own.

import { once } from "node:events";
import { createRequire } from "node:module";
import { serve } from "./lines.mjs";

const require = createRequire(process.env.MODULES);
const { Client, Policy, Constants, translator } = require("amqp10");
const { HOST, PORT, KEY_NAME, KEY } = process.env;

const FILTER = "com.microsoft:session-filter";
const plain = { encoder: (body) => body, decoder: (body) => body };
const policy = Policy.merge(
  {
    reconnect: { retries: 100, strategy: "fibonacci", forever: true },
    senderLink: { ...plain, attach: { maxMessageSize: 0 } },
    receiverLink: {
      ...plain,
      attach: { maxMessageSize: 0, rcvSettleMode: Constants.receiverSettleMode.settleOnDisposition },
      credit: () => {},
    },
  },
  Policy.ServiceBusQueue,
);
const client = new Client(policy);
client.on("connection:closed", () => {});
client.on("client:errorReceived", (error) => console.error(error));
const signIn = KEY_NAME ? `${KEY_NAME}:${encodeURIComponent(KEY)}@` : "";
const connected = client.connect(`amqp://${signIn}${HOST}:${PORT}`);
const links = new Map();
const deliveries = new Map();
let count = 0;

async function link(name, open) {
  await connected;
  if (!links.has(name)) links.set(name, await open());
  return links.get(name);
}

const typed = {
  text: (value) => value,
  int: (value) => ["int", value],
  long: (value) => ["long", value],
  binary: (value) => Buffer.from(value, "base64"),
  longs: (values) => ["array", "long", ...values],
  uuids: (values) => ["array", "uuid", ...values],
  maps: (values) => ["list", ...values.map(map)],
};
const entry = ([key, given]) => [key, ...Object.entries(given).map(([kind, inner]) => typed[kind](inner))];
const map = (given) => ["map", ...Object.entries(given).flatMap(entry)];

serve({
  async send({ to, body, session, at }) {
    const sender = await link(`to ${to}`, () => client.createSender(to));
    const message = { body: Buffer.from(body) };
    if (session !== undefined) message.properties = { groupId: session };
    if (at) message.messageAnnotations = { "x-opt-scheduled-enqueue-time": new Date(at) };
    for (;;) {
      const back = once(sender, "attached");
      try {
        return await sender.send(message);
      } catch (error) {
        // The client fails what it holds when the connection is lost, and then attaches its links again.
        if (error.description !== "detach-forced") throw error;
        await back;
      }
    }
  },

  async receive({ path, session }) {
    const filter = session !== undefined && { [FILTER]: translator(["described", ["symbol", FILTER], session === null ? ["null"] : ["string", session]]) };
    const options = filter ? { attach: { source: { filter } } } : {};
    const receiver = await link(`from ${path} ${session}`, () => client.createReceiver(path, options));
    receiver.addCredits(1);
    const [message] = await once(receiver, "message");
    deliveries.set(++count, [receiver, message]);
    return {
      delivery: count,
      body: String(message.body),
      count: message.header?.deliveryCount ?? 0,
      session: message.properties?.groupId,
      properties: Object.keys(message.applicationProperties ?? {}).length,
    };
  },

  settle({ delivery, how }) {
    const [receiver, message] = deliveries.get(delivery);
    if (how === "accept") receiver.accept(message);
    if (how === "release") receiver.release(message);
    if (how === "modify") receiver.modify(message, { deliveryFailed: true });
    if (how === "defer") receiver.modify(message, { undeliverableHere: true });
    if (how === "reject") receiver.reject(message, { condition: "com.microsoft:dead-letter", info: { DeadLetterReason: "told" } });
  },

  async request({ node, properties, body }) {
    const replyTo = "reply";
    const out = await link(`to ${node}`, () => client.createSender(node));
    const back = await link(`reply ${node}`, () => client.createReceiver(node, { attach: { target: { address: replyTo } } }));
    back.addCredits(1);
    const answer = once(back, "message");
    await out.send({ properties: { replyTo, messageId: `m${++count}` }, applicationProperties: properties, body: body.text ?? translator(map(body)) });
    const [message] = await answer;
    const { statusCode, "status-code": code } = message.applicationProperties;
    return { status: statusCode ?? code, keys: Object.keys(message.body ?? {}).sort() };
  },
});
