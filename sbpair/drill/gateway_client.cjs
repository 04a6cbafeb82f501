// Sends through a gateway until its input ends. The first line of input has the settings, as JSON. It writes "send ID"
// before each send, and "accepted ID" or "failed ID" after it.
const { createHash, randomBytes } = require("node:crypto");
const { createInterface } = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");

const found = require.resolve("@azure/service-bus", { paths: [process.cwd(), ...module.paths] });
const { ServiceBusClient } = require(found);

const body = (id) => createHash("sha256").update(id).digest("hex").repeat(1 + (id.length % 7));

async function send(settings, state) {
  const client = new ServiceBusClient(settings.connection_string);
  const sender = client.createSender(settings.queue);
  for (let number = 0; !state.ended; number += 1) {
    const id = `javascript-${number}-${randomBytes(4).toString("hex")}`;
    console.log(`send ${id}`);
    const message = { body: Buffer.from(body(id)), messageId: id, applicationProperties: { of: id, number } };
    // The body as it is: the client would encode it as JSON.
    const raw = { body: message.body, bodyType: "data" };
    try {
      await sender.sendMessages({ ...raw, properties: { messageId: id }, applicationProperties: message.applicationProperties });
      console.log(`accepted ${id}`);
    } catch {
      console.log(`failed ${id}`);
    }
    await sleep(settings.seconds * 1000);
  }
  await sender.close();
  await client.close();
}

const state = { ended: false };
const lines = createInterface({ input: process.stdin });
lines.once("line", (line) => send(JSON.parse(line), state).finally(() => process.exit(0)));
lines.once("close", () => { state.ended = true; });
