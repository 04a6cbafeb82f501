// A small Service Bus made of rhea: a namespace with backlog queues, and a primary that takes what it is sent.
//
// The first line of its input says what is to be, one JSON object; its first line of output is {"primary", "secondary"}, the
// ports. When its input ends it prints what it has seen, {"log", "violations", "largestFrame", "transfers"}, and is done.
// Nothing of it shares code with the client that it serves: rhea reads and writes every frame.

import { randomBytes } from "node:crypto";
import { createRequire } from "node:module";
import net from "node:net";
import readline from "node:readline";

const require = createRequire(process.env.MODULES);
const rhea = require("rhea");
const frames = require("rhea/lib/frames.js");
const { message, types } = rhea;

const BATCH_FORMAT = 0x80013700;
const MANAGEMENT = "/$management";
const lines = readline.createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const told = { log: [], violations: [], largestFrame: 0, transfers: 0 };
const wanted = JSON.parse((await lines.next()).value);

// What rhea itself finds strange it says on the console.
for (const method of ["error", "warn"]) console[method] = (...words) => told.violations.push(words.join(" "));

const readFrame = frames.read_frame;
frames.read_frame = (buffer) => {
  told.largestFrame = Math.max(told.largestFrame, buffer.length);
  if (buffer.length > wanted.maxFrameSize) told.violations.push(`a frame of ${buffer.length} bytes`);
  return readFrame(buffer);
};

// rhea decodes a message before it hands it over; the bytes are wanted too.
const decode = message.decode;
message.decode = (raw) => Object.assign(decode(raw), { raw });

const outcome = (name, fields) => message[name](fields).described();

// Says one delivery's outcome in a frame of its own. rhea joins what it is told in one turn: two that follow one another go
// out with the outcome of the first, even where they differ. So only those that are accepted are left to it.
function say(delivery, state, settled) {
  const { link, id } = delivery;
  link.session.output(frames.disposition({ role: link.is_receiver(), first: id, last: id, state, settled }));
  Object.assign(delivery, { state, settled });
}

function note(...entry) {
  told.log.push(entry);
}

// What both namespaces do: sign-in, and a look at whether the peer keeps within the session's window.

function open(container, on) {
  container.sasl_server_mechanisms.enable_anonymous();
  container.on("session_open", ({ session }) => {
    const { incoming } = session;
    const take = incoming.on_transfer;
    incoming.on_transfer = function (frame, receiver) {
      told.transfers += 1;
      if (incoming.next_transfer_id >= incoming.max_transfer_id) told.violations.push("a transfer beyond the window");
      if (!receiver.credit && !receiver._incomplete) told.violations.push("a transfer without credit");
      take.call(this, frame, receiver);
      // rhea would open its window again only once the delivery is whole, which it may be too large for ever to be.
      receiver.connection._register();
    };
  });
  container.on("receiver_open", ({ receiver }) => {
    receiver.set_source(receiver.source);
    receiver.set_target(receiver.target);
  });
  container.on("sender_open", ({ sender }) => {
    sender.set_source(sender.source);
    sender.set_target(sender.target);
  });
  container.on("message", (context) => {
    const { address } = context.receiver.target;
    if (address === "$cbs") signIn(context);
    else if (address.endsWith(MANAGEMENT)) on.request(context, address.slice(0, -MANAGEMENT.length));
    else on.message(context);
  });
  container.on("connection_error", ({ connection }) => told.violations.push(`closed with ${connection.error}`));
  for (const [name, handler] of Object.entries(on)) if (name.startsWith("sender") || name === "sendable") container.on(name, handler);
}

function reply({ connection, message: request, delivery }, node, application_properties, body = null) {
  delivery.accept();
  const sender = connection.find_sender((each) => each.source.address === node);
  sender.send({ correlation_id: request.message_id, application_properties, body });
}

function signIn(context) {
  const { operation, type, name } = context.message.application_properties;
  note("token", operation, type, name);
  reply(context, "$cbs", { "status-code": 202, "status-description": "Accepted" });
}

// The secondary: backlog queues, of which every message is under lock from when it leaves until it is settled.

const EMPTY_HEADER = encoded(message.header({}).described());
const backlog = new Map(Object.entries(wanted.backlog).map(([queue, messages]) => [queue, messages.map(stored)]));
const locked = new Map();

// A message is kept without its header and its annotations, which are written when it is delivered.
function stored({ id, raw, plain }, index) {
  const rest = raw ? Buffer.from(raw, "base64") : message.encode(aliased(plain)).subarray(EMPTY_HEADER.length);
  return { id, rest, number: index + 1, count: 0 };
}

function encoded(value) {
  const writer = new types.Writer();
  writer.write(value);
  return writer.toBuffer();
}

function aliased({ body, aliases, ...properties }) {
  const own = { "x-ms-path": aliases.path, kept: "yes" };
  if (aliases.sessionId) own["x-ms-sessionid"] = aliases.sessionId;
  const span = aliases.ttlTicks && types.wrap_long(aliases.ttlTicks);
  if (span) own["x-ms-timetolive"] = types.wrap_described(span, "com.microsoft:timespan");
  if (aliases.scheduledAt) own["x-ms-scheduledenqueuetimeutc"] = types.wrap_timestamp(aliases.scheduledAt);
  return { ...properties, application_properties: own, body: message.data_section(Buffer.from(body)) };
}

function stamped({ rest, number, count }) {
  const now = Date.now();
  const annotations = {
    "x-opt-sequence-number": types.wrap_long(number),
    "x-opt-enqueued-time": types.wrap_timestamp(now - 60_000),
    "x-opt-locked-until": types.wrap_timestamp(now + 60_000),
  };
  const marked = types.described_nc(types.wrap_ulong(0x72), types.wrap_symbolic_map(annotations));
  return Buffer.concat([encoded(message.header({ delivery_count: count }).described()), encoded(marked), rest]);
}

function pump({ sender }) {
  const queue = backlog.get(sender.source.address);
  while (queue?.length && sender.sendable()) {
    const taken = queue.shift();
    const tag = randomBytes(16);
    const delivery = sender.send(stamped(taken), tag, 0);
    locked.set(delivery, { ...taken, queue, connection: sender.connection });
    note("delivered", taken.id);
  }
}

function settled(name, settle) {
  return ({ sender, delivery }) => {
    const taken = locked.get(delivery);
    if (taken === undefined) return;
    locked.delete(delivery);
    const { error } = delivery.remote_state;
    note("settled", taken.id, name, error?.description ?? null);
    if (!settle) back(taken, 0);
    // As the service does: settled, with the outcome that was asked for.
    if (name === "accepted") delivery.update(true, outcome(name));
    else say(delivery, outcome(name, error ? { error } : undefined), true);
    // That ends it, and nobody answers; rhea would wait for a word, and keep the place for good.
    delivery.remote_settled = true;
    pump({ sender });
  };
}

function back({ queue, connection, ...taken }, more) {
  queue.unshift({ ...taken, count: taken.count + more });
}

const secondary = rhea.create_container({ id: "secondary", treat_modified_as_released: false });
open(secondary, {
  message: ({ delivery }) => delivery.reject({ condition: "amqp:not-allowed", description: "nothing is sent here" }),
  sendable: pump,
  request,
  sender_draining: ({ sender }) => wanted.answersDrain && sender.set_drained(true),
});
for (const [name, settle] of [["accepted", true], ["rejected", true], ["released", false], ["modified", false]])
  secondary.on(name, settled(name, settle));

// Peeks show what is locked, too. A lock is lost with its link here, so that nothing can be settled without one.
function request(context, name) {
  const { application_properties: asked, body } = context.message;
  if (asked.operation !== "com.microsoft:peek-message") {
    reply(context, name + MANAGEMENT, { statusCode: 410, errorCondition: "com.microsoft:message-lock-lost" });
    return;
  }
  const queue = backlog.get(name);
  const there = [...queue, ...[...locked.values()].filter((taken) => taken.queue === queue)];
  const messages = there
    .filter(({ number }) => number >= body["from-sequence-number"])
    .sort((one, other) => one.number - other.number)
    .slice(0, body["message-count"])
    .map((each) => ({ message: stamped(each) }));
  note("peeked", name, messages.length);
  reply(context, name + MANAGEMENT, { statusCode: messages.length ? 200 : 204 }, messages.length ? { messages } : null);
}

// A link that is lost loses its locks: all is back, in the old order.
function gone(connection) {
  const lost = [...locked].filter(([, taken]) => taken.connection === connection);
  for (const [delivery, taken] of lost.reverse()) {
    locked.delete(delivery);
    back(taken, 1);
  }
}

// The primary: it takes messages and batches of them, unless it is told to answer one of them otherwise.

function members({ message: whole, format }) {
  if (format === undefined) return [whole];
  if (format !== BATCH_FORMAT) throw new Error(`message-format ${format}`);
  const found = [];
  for (let at = 0; at < whole.length; ) {
    if (whole.readUIntBE(at, 3) !== 0x005375) throw new Error("a batch holds data sections alone");
    const wide = whole[at + 3] === 0xb0;
    const start = at + (wide ? 8 : 5);
    at = start + (wide ? whole.readUInt32BE(at + 4) : whole[at + 4]);
    found.push(message.decode(whole.subarray(start, at)));
  }
  return found;
}

const FIELDS = {
  released: () => undefined,
  modified: () => ({ delivery_failed: true }),
  rejected: (id) => ({ error: { condition: "amqp:not-allowed", description: `${id} is not wanted` } }),
};

function take(context) {
  const { receiver, delivery } = context;
  const all = members(context);
  const id = all.map((each) => each.message_id).find((each) => wanted.answers[each]?.length);
  const answer = id === undefined ? "accepted" : wanted.answers[id][0];
  // A refusal stays one; everything else is said once.
  if (id !== undefined && answer !== "rejected") wanted.answers[id].shift();
  note("answered", answer, all.map((each) => each.message_id), receiver.target.address, context.format ?? 0);
  if (answer === "accepted") for (const each of all) store(receiver.target.address, each);
  if (answer === "accepted") delivery.accept();
  else say(delivery, outcome(answer, FIELDS[answer](id)), !wanted.settlesSecond);
}

function store(destination, each) {
  note("stored", destination, each.raw.toString("base64"), shown(each));
}

// What rhea reads in it.
function shown({ message_id, group_id, ttl, body, message_annotations, application_properties }) {
  const schedule = message_annotations?.["x-opt-scheduled-enqueue-time"];
  const content = Buffer.isBuffer(body?.content) ? body.content.toString("latin1").slice(0, 40) : null;
  const own = Object.keys(application_properties ?? {});
  return { message_id: String(message_id), group_id, ttl, schedule: schedule ? Number(schedule) : null, content, own };
}

const primary = rhea.create_container({
  id: "primary",
  receiver_options: {
    autoaccept: false,
    credit_window: wanted.creditWindow,
    rcv_settle_mode: wanted.settlesSecond ? 1 : 0,
    max_message_size: 1024 * 1024,
  },
});
open(primary, { message: take });

// Both listen for AMQP; to whoever asks over HTTP they say that he may not.

function listen(container) {
  const options = { max_frame_size: wanted.maxFrameSize, session_buffer_size: wanted.window, reconnect: false };
  const server = net.createServer((socket) => {
    socket.on("error", () => {});
    socket.once("data", (first) => {
      if (first.toString("latin1", 0, 4) !== "AMQP") {
        socket.end("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        return;
      }
      const connection = container.create_connection(options).accept(socket);
      socket.on("close", () => gone(connection));
      socket.emit("data", first);
    });
  });
  return new Promise((resolve) => server.listen(0, "127.0.0.1", () => resolve(server.address().port)));
}

console.log(JSON.stringify({ primary: await listen(primary), secondary: await listen(secondary) }));
await lines.next();
told.left = Object.fromEntries([...backlog].map(([queue, messages]) => [queue, messages.map(({ id }) => id)]));
process.stdout.write(`${JSON.stringify(told)}\n`, () => process.exit(0));
