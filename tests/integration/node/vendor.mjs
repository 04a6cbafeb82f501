// A program for the vendor's emulator: administration over plain HTTP on port 5300, messages on port 5672. It prints its steps.

import { createRequire } from "node:module";

const { ServiceBusAdministrationClient, ServiceBusClient } = createRequire(process.env.MODULES)("@azure/service-bus");
const KEY = "SharedAccessKeyName=RootManageSharedAccessKey;SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;";

const admin = new ServiceBusAdministrationClient(`Endpoint=sb://localhost:5300;${KEY}`);
// As the vendor's sample does it: this client always uses HTTPS, and drops the port.
const http = admin._httpClient;
const send = http.sendRequest.bind(http);
http.sendRequest = (request) => {
  request.allowInsecureConnection = true;
  request.url = request.url.replace(/^https:\/\/[^/]+/, "http://localhost:5300");
  return send(request);
};
await admin.createQueue("from-node");
console.log((await admin.getQueue("from-node")).name);

const bus = new ServiceBusClient(`Endpoint=sb://localhost;${KEY}`);
await bus.createSender("from-node").sendMessages({ body: "hello from Node" });
const [message] = await bus.createReceiver("from-node").receiveMessages(1, { maxWaitTimeInMs: 10_000 });
console.log(message.body);
await bus.close();
