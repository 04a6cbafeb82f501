// rhea: a client that attaches its links again by itself.

import { once } from "node:events";
import { createRequire } from "node:module";
import { serve } from "./lines.mjs";

const require = createRequire(process.env.MODULES);
const rhea = require("rhea");
const { types, message: codec } = rhea;
const { HOST: host, PORT: port, KEY_NAME: username, KEY: password, TRANSPORT: transport } = process.env;

const sockets = rhea.websocket_connect(require("ws"));
const ways = {
  tcp: { host, port },
  tls: { host, port, transport: "tls" },
  websocket: { connection_details: sockets(`wss://${host}:${port}/$servicebus/websocket`, ["AMQPWSB10"]) },
};
const connection = rhea.connect({ ...ways[transport], reconnect: 50, ...(username ? { username, password } : {}) });
connection.on("disconnected", () => {});
connection.on("error", () => {});
const FILTER = "com.microsoft:session-filter";
const links = new Map();
const deliveries = new Map();
let count = 0;

// Return the link of a name, or open it: rhea reports a refusal as an event.
async function link(name, open) {
  if (!links.has(name)) {
    const made = open();
    const failed = once(made, `${made.is_sender() ? "sender" : "receiver"}_error`).then(() => Promise.reject(made.error));
    await Promise.race([once(made, `${made.is_sender() ? "sender" : "receiver"}_open`), failed]);
    links.set(name, made);
  }
  return links.get(name);
}

const text = (message) => String(message.body.content ?? message.body);
const sender = (to) => link(`to ${to}`, () => connection.open_sender(to));

async function settled(from, message) {
  for (;;) {
    // Without a connection the link still has its credit.
    while (!connection.is_open() || !from.sendable()) await once(from, "sendable");
    const sent = from.send(message);
    const outcome = await new Promise((resolve) => {
      const finish = (name) => (context) => context.delivery === sent && resolve([name, context]);
      for (const name of ["accepted", "rejected", "released", "modified"]) from.on(name, finish(name));
      connection.once("disconnected", () => resolve(null));
    });
    if (outcome === null) continue;
    if (outcome[0] !== "accepted") throw outcome[1].delivery.remote_state.error ?? new Error(outcome[0]);
    return;
  }
}

const typed = {
  text: (value) => value,
  int: (value) => types.wrap_int(value),
  long: (value) => types.wrap_long(value),
  binary: (value) => types.wrap_binary(Buffer.from(value, "base64")),
  longs: (values) => types.wrap_array(values, 0x81),
  uuids: (values) => types.wrap_array(values.map((each) => Buffer.from(each.replaceAll("-", ""), "hex")), 0x98),
  maps: (values) => types.wrap_list(values.map(map)),
};
const value = (given) => Object.entries(given).map(([kind, inner]) => typed[kind](inner))[0];
const map = (given) => types.wrap_map(Object.fromEntries(Object.entries(given).map(([key, each]) => [key, value(each)])));

serve({
  async send({ to, body, session, at }) {
    const annotations = at ? { "x-opt-scheduled-enqueue-time": types.wrap_timestamp(at) } : undefined;
    const message = { body: codec.data_section(Buffer.from(body)), group_id: session, message_annotations: annotations };
    await settled(await sender(to), message);
  },

  async receive({ path, session }) {
    const filter = session === undefined ? {} : { [FILTER]: types.wrap_described(session, FILTER) };
    const options = { source: { address: path, filter }, credit_window: 0, autoaccept: false, autosettle: false };
    const receiver = await link(`from ${path} ${session}`, () => connection.open_receiver(options));
    receiver.add_credit(1);
    const [{ message, delivery }] = await once(receiver, "message");
    deliveries.set(++count, delivery);
    return {
      delivery: count,
      body: text(message),
      count: message.delivery_count ?? 0,
      session: message.group_id,
      properties: Object.keys(message.application_properties ?? {}).length,
      ttl: message.ttl,
      partition: message.message_annotations?.["x-opt-partition-id"],
    };
  },

  async browse({ path, count }) {
    const source = { address: path, distribution_mode: "copy" };
    const browser = await link(`copies of ${path}`, () => connection.open_receiver({ source, credit_window: 0 }));
    const bodies = [];
    const whole = new Promise((resolve) => {
      browser.on("message", ({ message }) => bodies.push(text(message)) === count && resolve());
    });
    browser.add_credit(count);
    await whole;
    return bodies;
  },

  // All in one write: a settlement does not wait for its answer.
  async "settle-then-close"({ delivery }) {
    const got = deliveries.get(delivery);
    const closed = once(connection, "connection_close");
    got.accept();
    got.link.close();
    got.link.session.close();
    connection.close();
    await closed;
  },

  async settle({ delivery, how }) {
    const got = deliveries.get(delivery);
    const info = { DeadLetterReason: "told", DeadLetterErrorDescription: "by the client" };
    if (how === "accept") got.accept();
    if (how === "release") got.release();
    if (how === "modify") got.modified({ delivery_failed: true });
    if (how === "defer") got.modified({ undeliverable_here: true });
    if (how === "reject") got.reject({ condition: "com.microsoft:dead-letter", info });
  },

  async request({ node, properties, body }) {
    const reply_to = `reply-${++count}`;
    const out = await sender(node);
    const back = await link(`reply ${node}`, () =>
      connection.open_receiver({ source: node, target: reply_to, credit_window: 0 }),
    );
    back.add_credit(1);
    const answer = once(back, "message");
    await settled(out, { reply_to: back.target.address, message_id: `m${count}`, application_properties: properties, body: body.text ?? map(body) });
    const [{ message }] = await answer;
    const { statusCode, "status-code": code } = message.application_properties;
    return { status: statusCode ?? code, keys: Object.keys(message.body ?? {}).sort() };
  },
});
