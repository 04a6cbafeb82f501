// The client for JavaScript of a campaign: the protocol is that of client.py. MODULES names the installed packages.

import assert from "node:assert/strict";
import { createRequire } from "node:module";

const { ServiceBusClient } = createRequire(process.env.MODULES)("@azure/service-bus");
const wanted = JSON.parse(process.argv[2]);
const SHAPES = 4;

let stopped = false;
let stop;
const stopping = new Promise((resolve) => (stop = resolve));
process.stdin.once("data", () => ((stopped = true), stop()));
process.stdin.once("end", () => ((stopped = true), stop()));

const report = (line) => console.log(JSON.stringify(line));
const name = (number) => `js-${String(number).padStart(8, "0")}`;
const pause = (seconds) => Promise.race([stopping, new Promise((resolve) => setTimeout(resolve, seconds * 1000))]);

function message(number, session) {
  const id = name(number);
  const made = { messageId: id, body: `${id} `.repeat(1 + 40 * (number % SHAPES)) };
  if (session) made.sessionId = session;
  const shape = [
    {},
    {
      applicationProperties: { number: 2 ** 40, ratio: 0.5, yes: true, text: "grüß" },
      subject: "subject",
      contentType: "application/json",
    },
    { correlationId: "correlation", replyTo: "reply", to: "to", body: { id, list: [1, 2.5, null] } },
    { applicationProperties: { empty: "" } },
  ];
  return Object.assign(made, shape[number % SHAPES]);
}

function same(received) {
  const expected = message(Number(received.messageId.slice(3)), received.sessionId);
  try {
    for (const [key, value] of Object.entries(expected)) assert.deepEqual(received[key], value, key);
    if (!expected.applicationProperties) assert.deepEqual(received.applicationProperties ?? {}, {});
    return true;
  } catch (error) {
    report({ failed: received.messageId, error: String(error) });
    return false;
  }
}

async function send(client, { queue, session, first, count, gap }) {
  const sender = client.createSender(queue);
  for (let number = first; count ? number < first + count : !stopped; ) {
    const size = number % 7 === 0 && !count ? 3 : 1;
    const messages = Array.from({ length: size }, (_, member) => message(number + member, session));
    for (;;) {
      try {
        await sender.sendMessages(size === 1 ? messages[0] : messages);
        break;
      } catch (error) {
        report({ failed: name(number), error: String(error) });
        if (stopped) return;
        await pause(0.1);
      }
    }
    for (const each of messages) report({ sent: each.messageId, queue, session });
    number += size;
    await pause(gap);
  }
  await sender.close();
}

// Not receiveMessages: after the loss of its connection, that waits for ever at times, without a gateway, too.
async function receive(client, queue) {
  const receiver = client.createReceiver(queue, { maxAutoLockRenewalDurationInMs: 0 });
  const processMessage = async (each) => {
    const sequence = Number(each.sequenceNumber);
    report({ received: each.messageId, same: same(each), sequence });
    await receiver.completeMessage(each).then(
      () => report({ completed: sequence }),
      (error) => report({ failed: "complete", error: String(error) }),
    );
  };
  const processError = async ({ error }) => report({ failed: "receive", error: String(error) });
  const running = receiver.subscribe(
    { processMessage, processError },
    { autoCompleteMessages: false, maxConcurrentCalls: 20 },
  );
  await stopping;
  await running.close();
  await receiver.close();
}

// It waits for 30 s by default before it tries again.
const client = new ServiceBusClient(process.env.CONNECTION_STRING, { retryOptions: { retryDelayInMs: 1000 } });
await Promise.all([
  ...wanted.send.map((each) => send(client, each)),
  ...wanted.receive.map((queue) => receive(client, queue)),
]);
await client.close();
process.exit(0);
