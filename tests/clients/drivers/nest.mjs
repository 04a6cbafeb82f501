// The transporter nestjs-azure-service-bus-transporter: a microservice of NestJS for each queue, and its client.

import { createRequire } from "node:module";
import { serve } from "./lines.mjs";

const require = createRequire(process.env.MODULES);
require("reflect-metadata");
const { NestFactory } = require("@nestjs/core");
const { Controller, Module } = require("@nestjs/common");
const { AzureServiceBusClient, AzureServiceBusServer, Queue } = require("nestjs-azure-service-bus-transporter");
const { Ctx, Payload } = require("@nestjs/microservices");
const { lastValueFrom } = require("rxjs");

const options = { connectionString: process.env.CONNECTION_STRING, options: {} };
const client = new AzureServiceBusClient(options);
const queues = new Map();
const deliveries = [];

// Start a microservice that hands over each message, and the receiver to settle it with.
async function started(path) {
  const waiting = [];
  const arrived = [];
  class Handler {
    got(message, context) {
      const found = { message, receiver: context.getArgs()[0] };
      const next = waiting.shift();
      if (next) next(found);
      else arrived.push(found);
    }
  }
  const own = Object.getOwnPropertyDescriptor(Handler.prototype, "got");
  Queue({ queueName: path, receiveMode: "peekLock", options: { autoCompleteMessages: false } })(Handler.prototype, "got", own);
  Payload()(Handler.prototype, "got", 0);
  Ctx()(Handler.prototype, "got", 1);
  Controller()(Handler);
  class Root {}
  Module({ controllers: [Handler] })(Root);
  const service = await NestFactory.createMicroservice(Root, { strategy: new AzureServiceBusServer(options), logger: ["error"] });
  await service.listen();
  return () => arrived.shift() ?? new Promise((resolve) => waiting.push(resolve));
}

serve({
  async send({ to, body, session, at }) {
    const message = { body, sessionId: session, scheduledEnqueueTimeUtc: at && new Date(at) };
    await lastValueFrom(client.emit({ name: to }, message), { defaultValue: null });
  },

  async receive({ path }) {
    if (!queues.has(path)) queues.set(path, await started(path));
    const found = await queues.get(path)();
    const { body, deliveryCount } = found.message;
    return { delivery: deliveries.push(found) - 1, body, count: deliveryCount, session: found.message.sessionId };
  },

  async settle({ delivery, how }) {
    const { message, receiver } = deliveries[delivery];
    if (how === "accept") await receiver.completeMessage(message);
    if (how === "modify") await receiver.abandonMessage(message);
    if (how === "defer") await receiver.deferMessage(message);
    if (how === "reject") await receiver.deadLetterMessage(message, { deadLetterReason: "told" });
  },
});
