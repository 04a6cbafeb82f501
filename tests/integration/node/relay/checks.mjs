// The vendor's relay clients for JavaScript, unmodified, as listeners and sender: one JSON line a check, {"check", "error"}.
//
// BASE is ws://HOST:PORT or wss://HOST:PORT, whose CA file NODE_EXTRA_CA_CERTS names. The endpoints are `sockets` and `requests`.

import assert from "node:assert/strict";
import http from "node:http";
import https from "node:https";
import { createRequire } from "node:module";

const require = createRequire(process.env.MODULES);
const sockets = require("hyco-ws");
const requests = require("hyco-https");

const { BASE } = process.env;
const CHECK_MS = 20_000;
const [scheme, authority] = BASE.split("://");
const client = scheme === "wss" ? https : http;
const token = (path) => sockets.createRelayToken(`http://${authority}/${path}`, "RootManageSharedAccessKey", "SAS_KEY_VALUE");
const listening = (path) => ({ server: `${BASE}/$hc/${path}?sb-hc-action=listen`, token: () => token(path) });

function once(emitter, event) {
  return new Promise((resolve, reject) => {
    emitter.on(event, (...values) => resolve(values));
    emitter.on("error", reject);
  });
}

function connect(query = "", protocol = undefined) {
  const url = `${BASE}/$hc/sockets?sb-hc-action=connect${query}`;
  return new sockets(url, protocol, { headers: { ServiceBusAuthorization: token("sockets") } });
}

function send(method, target, parts = [], headers = {}) {
  return new Promise((resolve, reject) => {
    const [host, port] = authority.split(":");
    const given = { ServiceBusAuthorization: token("requests"), ...headers };
    const request = client.request({ host, port, method, path: `/requests${target}`, headers: given }, (answer) => {
      const read = [];
      answer.on("data", (part) => read.push(part));
      answer.on("end", () => resolve({ status: answer.statusCode, headers: answer.headers, body: Buffer.concat(read) }));
    });
    request.on("error", reject);
    for (const part of parts) request.write(part);
    request.end();
  });
}

// Answers with the method, the URL and the size of the body, or as the URL asks for.
function onRequest(request, response) {
  const parts = [];
  request.on("data", (part) => parts.push(part));
  request.on("end", () => {
    const body = Buffer.concat(parts);
    response.setHeader("X-Request", `${request.method} ${request.url}`);
    if (request.url.includes("empty")) {
      response.statusCode = 204;
      response.end();
    } else if (request.url.includes("missing")) {
      response.statusCode = 404;
      response.end("the listener's own");
    } else if (request.url.includes("large")) {
      for (let number = 0; number < 10; number += 1) response.write("y".repeat(50_000));
      response.end("z");
    } else {
      // The client announces an empty buffer as a body, and does not send it.
      response.end(body.length ? body : "nothing");
    }
  });
}

const checks = {
  "a small request passes with its method, target and header": async () => {
    const answer = await send("GET", "/a%20b?x=1&&y");
    assert.equal(answer.status, 200);
    assert.equal(answer.headers["x-request"], "GET /requests/a%20b?x=1&&y");
    assert.match(answer.headers.via, /^1\.1 /);
  },
  "a body passes over the control channel": async () => {
    const answer = await send("POST", "/echo", ["hello"], { "Content-Length": 5 });
    assert.equal(answer.body.toString(), "hello");
  },
  "a large body passes over a rendezvous": async () => {
    const body = "q".repeat(200_000);
    const answer = await send("POST", "/echo", [body], { "Content-Length": body.length });
    assert.equal(answer.body.toString(), body);
  },
  "a chunked body passes over a rendezvous": async () => {
    const answer = await send("PUT", "/echo", ["a".repeat(40_000), "b".repeat(40_000)]);
    assert.equal(answer.body.length, 80_000);
  },
  "a large answer to a small request passes": async () => {
    const answer = await send("GET", "/large");
    assert.equal(answer.body.length, 500_001);
  },
  "an answer without content has no body, and the next one arrives": async () => {
    assert.equal((await send("GET", "/empty")).status, 204);
    assert.equal((await send("GET", "/next")).status, 200);
  },
  "a listener's own 404 has Via": async () => {
    const answer = await send("GET", "/missing");
    assert.equal(answer.status, 404);
    assert.ok(answer.headers.via);
    assert.equal(answer.body.toString(), "the listener's own");
  },
  "many requests at once get each its own answer": async () => {
    const sent = Array.from({ length: 50 }, (_, number) => send("POST", "/echo", [`number ${number}`], { "Content-Length": `number ${number}`.length }));
    const answers = await Promise.all(sent);
    assert.deepEqual(answers.map((each) => each.body.toString()), sent.map((_, number) => `number ${number}`));
  },
  "text and binary messages are echoed": async () => {
    const socket = connect();
    await once(socket, "open");
    for (const message of ["Grüße", "x".repeat(300_000), Buffer.from([0, 255])]) {
      const echoed = once(socket, "message");
      socket.send(message);
      const [data] = await echoed;
      assert.ok(Buffer.from(data).equals(Buffer.from(message)));
    }
    socket.close();
  },
  "close code and reason reach the listener": async () => {
    const socket = connect();
    await once(socket, "open");
    const closed = new Promise((resolve) => {
      closing = resolve;
    });
    socket.close(4002, "bye");
    assert.deepEqual(await closed, [4002, "bye"]);
  },
  "the listener takes the first subprotocol that the sender offers": async () => {
    const socket = connect("&sb-hc-id=mine", ["first", "second"]);
    await once(socket, "open");
    assert.equal(socket.protocol, "first");
    socket.close();
  },
  "a wrong key is refused": async () => {
    const wrong = sockets.createRelayToken(`http://${authority}/sockets`, "RootManageSharedAccessKey", "wrong");
    const socket = new sockets(`${BASE}/$hc/sockets?sb-hc-action=connect&sb-hc-token=${encodeURIComponent(wrong)}`);
    await assert.rejects(once(socket, "open"), /401/);
  },
};

let closing = () => {};
const relayed = sockets.createRelayedServer(listening("sockets"), (socket) => {
  socket.on("message", (data, flags) => socket.send(data, { binary: flags.binary }));
  socket.on("close", (code, reason) => closing([code, reason]));
});
const server = requests.createRelayedServer(listening("requests"), onRequest);
const ready = [once(relayed, "listening"), once(server, "listening")];
server.listen();
await Promise.all(ready);

for (const [check, run] of Object.entries(checks)) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error("not in time")), CHECK_MS);
  });
  const error = await Promise.race([run(), late]).then(() => null, (failure) => failure.stack);
  clearTimeout(timer);
  process.stdout.write(`${JSON.stringify({ check, error })}\n`);
}
process.exit(0);
