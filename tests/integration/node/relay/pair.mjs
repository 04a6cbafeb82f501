// The vendor's relay clients for JavaScript, unmodified, on both sides of a pair.
//
// `pair.mjs listen` echoes requests and messages until stdin ends. `pair.mjs send` prints one JSON line a message, and one
// a request. BASES are two addresses such as wss://HOST:PORT, with the endpoints `sockets` and `requests`.

import https from "node:https";
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const sockets = require("hyco-ws");
const requests = require("hyco-https");
const bases = process.env.BASES.split(" ");

const token = (base, path) => sockets.createRelayToken(`http://${base.split("://")[1]}/${path}`, "RootManageSharedAccessKey", "SAS_KEY_VALUE");
const tell = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
const wait = (emitter, event) => new Promise((resolve, reject) => {
  emitter.on(event, (...values) => resolve(values));
  emitter.on("error", reject);
});

async function listen(base) {
  const listening = (path) => ({ server: `${base}/$hc/${path}?sb-hc-action=listen`, token: () => token(base, path) });
  const relayed = sockets.createRelayedServer(listening("sockets"), (socket) => {
    socket.on("message", (data, flags) => socket.send(data, { binary: flags.binary }));
  });
  const server = requests.createRelayedServer(listening("requests"), (request, response) => {
    const parts = [];
    request.on("data", (part) => parts.push(part));
    request.on("end", () => {
      response.statusCode = 201;
      response.setHeader("X-Request", `${request.method} ${request.url}`);
      response.end(Buffer.concat([Buffer.from("echo "), ...parts]));
    });
  });
  const ready = [wait(relayed, "listening"), wait(server, "listening")];
  server.listen();
  await Promise.all(ready);
}

async function converse(base) {
  const socket = sockets.relayedConnect(`${base}/$hc/sockets/path?q=1&sb-hc-action=connect`, token(base, "sockets"));
  await wait(socket, "open");
  for (const message of ["Grüße", Buffer.alloc(300_000, 7)]) {
    const echoed = wait(socket, "message");
    socket.send(message);
    const [data] = await echoed;
    tell(Buffer.from(data).equals(Buffer.from(message)));
  }
  socket.close(1000, "");
  await wait(socket, "close");
}

async function ask(base, body) {
  const [host, port] = base.split("://")[1].split(":");
  const headers = { ServiceBusAuthorization: token(base, "requests") };
  const request = https.request({ host, port, method: "POST", path: "/requests/path?q=1", headers });
  request.end(body);
  const [answer] = await wait(request, "response");
  const parts = [];
  answer.on("data", (part) => parts.push(part));
  await wait(answer, "end");
  tell([answer.statusCode, answer.headers["x-side"], Buffer.concat(parts).toString() === body]);
}

if (process.argv[2] === "listen") {
  await Promise.all(bases.map(listen));
  tell("listening");
  process.stdin.on("end", () => process.exit(0)).resume();
} else {
  for (const base of bases) {
    await converse(base);
    await ask(base, "small");
    await ask(base, "l".repeat(200_000));
  }
}
