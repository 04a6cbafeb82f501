"use strict";
// Everything that is shown becomes text of a node: no string is ever parsed as HTML.

const [TOKEN, SERVER, REFUSAL] = ["token", "server", "refusal"].map(name => document.querySelector(`meta[name=${name}]`).content);
const SHOWN = 500, HEX_BYTES = 65536, SAMPLES = 60, RUNS_MS = 3000;
const COUNTS = { active: ["Active", "n"], dead_letter: ["Dead", "n dead"], scheduled: ["Scheduled", "n wide scheduled"],
  deferred: ["Deferred", "n wide deferred"], transfer: ["Transfer", "n wide transfer"],
  transfer_dead_letter: ["Transfer dead", "n wide dead transfer_dead_letter"], size_bytes: ["Size", "n wide"] };

const main = document.getElementById("main"), live = document.getElementById("live");
const namespaces = new Map(); // side -> {head, entities: Map(path -> row)}
const EMPTY = { update() {}, close() {}, refresh() {} };
let filter = "", view = EMPTY;

// Words

const grouped = n => n.toLocaleString("en").replaceAll(",", "\u202f");

function bytes(n) {
  if (!n) return "";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (n < 1000 || unit === "GB") return `${n < 10 && unit !== "B" ? n.toFixed(1) : Math.round(n)} ${unit}`;
    n /= 1000;
  }
}

function age(seconds) {
  const at = Math.max(0, Date.now() / 1000 - seconds);
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["m", 60]]) if (at >= size) return `${Math.floor(at / size)}${unit}`;
  return `${Math.floor(at)}s`;
}

/** A time that is written in ISO 8601, or of the emulator's clock in milliseconds. */
const moment = at => at ? (typeof at === "number" ? new Date(at).toISOString() : at).slice(0, 19).replace("T", " ") + "Z" : "";
const plural = (n, one, many = one + "s") => `${grouped(n)} ${n === 1 ? one : many}`;

/** Numbers that JavaScript would round stay as they are written, where the browser can tell. */
const parse = text => JSON.parse(text, (_, value, at) =>
  typeof value === "number" && Math.abs(value) > Number.MAX_SAFE_INTEGER && at?.source ? JSON.rawJSON(at.source) : value);
/** A value of a type that JSON lacks is an object of its type and its text. */
const isTyped = value => value !== null && typeof value === "object" && Object.keys(value).sort().join() === "type,value";
const textOf = value => isTyped(value) ? textOf(value.value) : typeof value === "string" ? value : JSON.stringify(value);

/** Marks that change the direction of a text show their number: a name must not look like another. */
const visible = text => text.replace(/[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g, mark => `\\u${mark.charCodeAt(0).toString(16).padStart(4, "0")}`);

// Nodes

function h(tag, properties = {}, ...children) {
  const node = /^(svg|polyline)$/.test(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value") node.value = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  const shown = children.flat(2).filter(each => each !== null && each !== undefined && each !== false);
  node.append(...shown.map(each => typeof each === "string" ? visible(each) : each));
  return node;
}

/** A column is its heading, the class of its cells, and what a cell of an item shows. */
const table = (label, columns, rows, foot) => h("div", { class: "scroll" }, h("table", { "aria-label": label },
  h("thead", {}, h("tr", {}, columns.map(([name, kind]) => h("th", { scope: "col", class: kind }, name)))), rows, foot));
const listed = (label, columns, items, none) => !items.length ? h("p", { class: "soft" }, none)
  : table(label, columns, h("tbody", {}, items.map(item => h("tr", {}, columns.map(([, kind, cell]) => h("td", { class: kind }, cell(item)))))));
const clamped = text => h("div", { class: "clamped", title: text }, text);
const pairs = entries => h("dl", {}, entries.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));

/** A part of the page that is read from the server, now and with each `refresh`. */
function read(nodesOf) {
  const list = h("div", {}, h("p", { class: "soft" }, "reading…"));
  list.refresh = async () => {
    try {
      const nodes = (await nodesOf()).filter(Boolean), link = list.querySelector(":focus")?.getAttribute("href");
      if (list.querySelector(":active")) return setTimeout(list.refresh, RUNS_MS); // a click that has begun would be lost
      list.replaceChildren(...nodes);
      if (link) list.querySelector(`[href="${link}"]`)?.focus();
    } catch (error) {
      list.replaceChildren(h("p", { class: "down" }, error.message));
    }
  };
  list.refresh();
  return list;
}

/** Buttons of which one is pressed, whose name `show` gets. */
function choices(names, first, show) {
  const choose = chosen => {
    show(chosen);
    names.forEach((name, at) => buttons[at].setAttribute("aria-pressed", String(name === chosen)));
  };
  const buttons = names.map(name => h("button", { type: "button", onclick: () => choose(name) }, name));
  choose(first);
  return buttons;
}

function setText(node, text) {
  if (node.textContent !== visible(text)) node.textContent = visible(text);
}

// The server

const query = values => new URLSearchParams(Object.entries(values).filter(([, value]) => value !== undefined)).toString();

/** Return the text of an answer. Throws the error that it describes. */
async function answered(request) {
  const response = await request, text = await response.text();
  if (response.ok) return text;
  const { message, hint } = parse(text).error;
  throw new Error([message, hint].filter(Boolean).join("; "));
}

const get = async (name, values = {}) => parse(await answered(fetch(`${name}?${query(values)}`)));

const quoted = text => `'${text.replaceAll("'", "'\\''")}'`;
const curlOf = (name, values) => `curl -H ${quoted(`X-Page-Token: ${TOKEN}`)} -d ${quoted(JSON.stringify(values))} `
  + quoted(new URL(`acts/${name}`, location.href.split("#")[0]).href);

async function act(name, values, say) {
  const curl = h("details", {}, h("summary", {}, "as curl"), h("pre", {}, curlOf(name, values)));
  try {
    const found = parse(await answered(fetch(`acts/${name}`, { method: "POST", headers: { "X-Page-Token": TOKEN }, body: JSON.stringify(values) })));
    tell(say(found), "", curl);
    view.refresh();
  } catch (error) {
    tell(`refused: ${error.message}`, "down", curl);
  }
}

function tell(text, kind, ...more) {
  const done = document.getElementById("done");
  done.replaceChildren(h("p", { class: kind }, text, " ", h("button", { type: "button", onclick: () => done.replaceChildren() }, "Close")), ...more);
}

let source;
function listen() {
  // A browser opens six connections to a server at most: a hidden page leaves its own to the others.
  source?.close();
  if (document.hidden) return;
  source = new EventSource("events");
  source.onmessage = event => receive(parse(event.data));
  source.onerror = () => setText(live, `the server does not answer since ${new Date().toLocaleTimeString()}; what is shown is older`);
}

function receive(event) {
  if (event.server !== SERVER) return location.reload(); // it has restarted, and refuses the token of this page
  if (event.all) namespaces.clear();
  for (const { entities, ...head } of event.namespaces) {
    const known = namespaces.get(head.side) ?? { entities: new Map() };
    known.head = head;
    for (const row of entities) known.entities.set(row.path, row);
    namespaces.set(head.side, known);
  }
  setText(live, "live");
  view.update();
}

// The overview

function lineOf(row) {
  const line = h("polyline"), drawn = h("svg", { class: "line", viewBox: `0 0 ${SAMPLES - 1} 16`, preserveAspectRatio: "none", role: "img" }, line);
  drawn.draw = values => {
    const most = Math.max(1, ...values), from = SAMPLES - values.length;
    line.setAttribute("points", values.map((value, at) => `${from + at},${value < 0 ? 15 : 15 - 14 * value / most}`).join(" "));
    drawn.setAttribute("aria-label", values.length ? `active in the last ${Math.ceil(values.length / 2)} minutes: from ${values[0]} to ${values.at(-1)}, at most ${most}` : "no readings yet");
  };
  drawn.draw(row.line);
  return drawn;
}

function cellText(row, name) {
  if (name === "size_bytes") return bytes(row[name]);
  if (name !== "active") return row[name] ? grouped(row[name]) : "";
  if (row.active === null) return row.kind === "topic" ? "" : "?";
  return (row.is_sample ? "~" : "") + grouped(row.active);
}

const entityLink = (side, row) => `#entity/${[side, row.kind, row.path].map(encodeURIComponent).join("/")}`;

function overviewRow(side, row) {
  const cells = Object.values(COUNTS).map(([, kind]) => h("td", { class: kind }));
  const oldest = h("td", { class: "n" }), line = lineOf(row);
  const shown = row.kind === "subscription" ? row.path.split(/\/subscriptions\//i)[1] : row.kind === "backlog" ? row.path.replace(/\/x-servicebus-transfer\//i, "/…/") : row.path;
  const node = h("tr", {}, h("td", { class: row.kind === "subscription" ? "name inner" : "name" },
    h("a", { href: entityLink(side, row), title: row.path, "aria-label": `${row.kind} ${row.kind === "backlog" ? shown : row.path}` }, shown)), cells, oldest, h("td", { class: "wide" }, line));
  node.show = row => {
    Object.keys(COUNTS).forEach((name, at) => setText(cells[at], cellText(row, name)));
    setText(oldest, row.oldest ? age(row.oldest) : "");
    line.draw(row.line);
  };
  return node;
}

function part(side, title, kinds) {
  const body = h("tbody"), total = Object.values(COUNTS).map(([, kind]) => h("td", { class: kind })), more = h("p", { class: "soft" });
  const totalName = h("td", {}), columns = [["Name"], ...Object.values(COUNTS), ["Oldest", "n"], ["Active, 30 min", "wide"]];
  const drawn = table(title, columns, body, h("tfoot", {}, h("tr", {}, totalName, total, h("td"), h("td", { class: "wide" }))));
  const node = h("section", { "aria-label": `${title} of ${side}` }, h("h2", {}, title), drawn, more);
  const rows = new Map();
  node.update = entities => {
    const found = [...entities.values()].filter(row => kinds.includes(row.kind) && row.path.toLowerCase().includes(filter));
    found.sort((a, b) => a.path.localeCompare(b.path, "en", { numeric: true, sensitivity: "base" }));
    const shown = found.slice(0, SHOWN), paths = new Set(shown.map(row => row.path));
    for (const [path, each] of rows) if (!paths.has(path)) { each.remove(); rows.delete(path); }
    shown.forEach((row, at) => {
      if (!rows.has(row.path)) rows.set(row.path, overviewRow(side, row));
      const each = rows.get(row.path);
      each.show(row);
      if (body.children[at] !== each) body.insertBefore(each, body.children[at] ?? null);
    });
    setText(totalName, plural(found.length, "entity", "entities"));
    const totals = { is_sample: found.some(row => row.is_sample) };
    Object.keys(COUNTS).forEach((name, at) => {
      const counted = found.filter(row => row.kind !== "topic" || name !== "active"), known = counted.filter(row => row[name] !== null);
      totals[name] = counted.length && !known.length ? null : known.reduce((all, row) => all + (row[name] ?? 0), 0);
      setText(total[at], cellText(totals, name));
      drawn.classList.toggle(`no-${name}`, !totals[name]);
    });
    setText(more, found.length > shown.length ? `${grouped(found.length - shown.length)} more: type a part of a name to find them` : "");
    node.hidden = !found.length;
  };
  return node;
}

function overview() {
  const input = h("input", { type: "search", value: filter, "aria-label": "Filter by name", placeholder: "Filter by name  (/)", oninput: () => {
    filter = input.value.toLowerCase();
    view.update();
  } });
  const sides = h("div", { class: "sides" }), lead = h("p", { class: "lead" }), shown = new Map();
  main.replaceChildren(lead, h("div", { class: "row" }, input), sides);
  return {
    input,
    update() {
      setText(lead, [...namespaces.values()].map(({ head }) => head.headline).join(""));
      for (const [side, { head, entities }] of namespaces) {
        if (!shown.has(side)) {
          const parts = [part(side, "Backlog queues", ["backlog"]), part(side, "Queues", ["queue"]), part(side, "Topics and subscriptions", ["topic", "subscription"])];
          const state = h("p"), note = h("p", { class: "note" });
          const title = head.side === head.name ? head.name : `${head.name} (${head.side})`;
          const create = TOKEN && h("details", {}, h("summary", {}, "Create an entity"), createForm(side));
          shown.set(side, { parts, state, note });
          sides.append(h("section", { "aria-label": title }, h("h1", {}, title), state, note, parts, create));
        }
        const { parts, state, note } = shown.get(side);
        state.replaceChildren(h("span", { class: head.state }, head.state), ` since ${new Date(head.since * 1000).toLocaleTimeString()}${head.reason && ": "}`, visible(head.reason));
        setText(note, head.note);
        parts.forEach(each => each.update(entities));
      }
    },
  };
}

// Acts

/** A form of an act, whose values are read from its fields. */
function actForm(name, label, fields, valuesOf, say) {
  return h("form", { onsubmit: event => {
    event.preventDefault();
    try { act(name, valuesOf(Object.fromEntries(new FormData(event.target))), say); } catch (error) { tell(error.message, "down"); }
  } }, fields, h("div", {}, h("button", {}, label)));
}

const input = (name, label, more = {}) => h("label", {}, label, h("input", { name, ...more }));
const select = (name, label, choices) => h("label", {}, label, h("select", { name }, choices.map(each => h("option", {}, each))));

function sendForm(side, path) {
  return actForm("send", "Send", [
    h("label", {}, "Body", h("textarea", { name: "body", value: "hello" })),
    h("div", { class: "row" }, input("message_id", "Message id"), input("session_id", "Session id"), input("subject", "Subject"),
      input("content_type", "Content type"), input("time_to_live", "Time to live", { placeholder: "PT1H" }),
      input("scheduled_enqueue_time", "Enqueue at, UTC", { placeholder: "2030-01-31T10:00:00Z" })),
    input("properties", "Properties, as JSON", { placeholder: "{\"n\": 1}" }),
  ], ({ body, properties, ...named }) => {
    const message = { body, ...Object.fromEntries(Object.entries(named).filter(([, value]) => value)) };
    if (properties) message.properties = parse(properties);
    return { side, path, message };
  }, () => `sent one message to ${path}`);
}

function createForm(side) {
  return actForm("create", "Create", [
    h("div", { class: "row" }, select("kind", "Kind", ["queue", "topic", "subscription"]),
      input("path", "Path", { required: true, placeholder: "orders, or TOPIC/subscriptions/NAME" })),
    input("properties", "Properties, as JSON", { placeholder: "{\"requires_session\": true}" }),
  ], ({ kind, path, properties }) => ({ side, kind, path, properties: properties ? parse(properties) : {} }),
  found => `created ${found.created}`);
}

const actButton = (name, label, values, say) => actForm(name, label, [], () => values, say);

// An entity

const heldText = message => message.body_text ?? message.body;

function bodyViews(message) {
  const raw = message.body_base64 ? Uint8Array.from(atob(message.body_base64), each => each.charCodeAt(0)) : new TextEncoder().encode(textOf(message.body));
  if (message.body === null && !message.body_base64) return { text: () => message.flaw ? "it cannot be read" : "null" };
  const held = heldText(message), isText = held !== null;
  const views = { text: () => isText ? textOf(held) : "not text; see hex" };
  try {
    const parsed = typeof held === "string" ? parse(held) : held;
    if (isText) views.JSON = () => JSON.stringify(parsed, null, 2);
  } catch { /* it is not JSON */ }
  views.hex = () => {
    const lines = [];
    for (let at = 0; at < Math.min(raw.length, HEX_BYTES); at += 16) {
      const bytes = [...raw.slice(at, at + 16)];
      lines.push(`${at.toString(16).padStart(6, "0")}  ${bytes.map(each => each.toString(16).padStart(2, "0")).join(" ").padEnd(48)} ${bytes.map(each => each > 31 && each < 127 ? String.fromCharCode(each) : ".").join("")}`);
    }
    if (raw.length > HEX_BYTES) lines.push(`${plural(raw.length - HEX_BYTES, "byte")} more; sbpair peek --body prints all`);
    return lines.join("\n");
  };
  return views;
}

function messageDetails(message) {
  const body = h("pre", { tabindex: 0, "aria-label": "Body" }), views = bodyViews(message);
  const first = message.body_base64 && heldText(message) === null ? "hex" : views.JSON && typeof heldText(message) !== "string" ? "JSON" : "text";
  const facts = [["Message id", message.message_id ?? ""], ["Sequence number", textOf(message.sequence_number)], ["Session", message.session_id],
    ["Subject", message.subject], ["Content type", message.content_type], ["Correlation id", message.correlation_id],
    ["Enqueued", moment(message.enqueued_at)], ["Expires", moment(message.expires_at)], ["State", message.state], ["Scheduled for", moment(message.scheduled_at)], ["Malformed", message.flaw],
    ["Dead-letter reason", message.dead_letter_reason], ["Dead-letter description", message.dead_letter_description],
    ["Destination", message.destination && `${message.destination}: where this stranded message belongs`]];
  const properties = Object.entries(message.properties);
  const typeOf = ([, value]) => isTyped(value) ? value.type : typeof value !== "number" ? typeof value : Number.isInteger(value) ? "int" : "double";
  return h("div", {}, pairs(facts.filter(([, value]) => value !== null && value !== undefined && value !== "")),
    properties.length > 0 && listed("Properties", [["Property", "name", each => each[0]], ["Type", "", typeOf], ["Value", "name", each => textOf(each[1])]], properties),
    h("div", { class: "row" }, h("strong", {}, "Body"), choices(Object.keys(views), first, name => setText(body, views[name]()))), body,
    h("details", {}, h("summary", {}, "Annotations"), pairs(Object.entries(message.annotations ?? {}).map(([name, value]) => [name, textOf(value)]))));
}

function detailsButton(message) {
  const button = h("button", { type: "button", "aria-expanded": "false", "aria-label": `message ${textOf(message.sequence_number)}`, onclick: () => {
    const isOpen = button.getAttribute("aria-expanded") === "true", row = button.closest("tr");
    if (isOpen) row.nextSibling.remove();
    else row.after(h("tr", {}, h("td", { class: "name", colspan: 9 }, messageDetails(message))));
    button.setAttribute("aria-expanded", String(!isOpen));
  } }, textOf(message.sequence_number));
  return button;
}

const stateOf = message => message.locked_until ? moment(message.locked_until) : message.state === "active" ? ""
  : message.state === "scheduled" ? `scheduled for ${moment(message.scheduled_at)}` : message.state;
const causeOf = message => clamped([message.dead_letter_reason, message.dead_letter_description].filter(Boolean).join(": "));
const MESSAGE = [["Sequence", "", detailsButton], ["Id", "name", message => message.message_id], ["Session", "wide name", message => message.session_id],
  ["Enqueued", "wide", message => moment(message.enqueued_at)], ["Expires", "wide", message => moment(message.expires_at)],
  ["Deliveries", "n wide", message => String(message.delivery_count)], ["Locked until, or state", "wide", stateOf], ["Size", "n wide", message => bytes(message.size)]];

function messageList(target, deadLetters) {
  let from = 0;
  const title = deadLetters ? "Dead letters" : "Messages";
  const columns = [...MESSAGE, deadLetters ? ["Reason", "name", causeOf] : ["Destination", "name", message => message.destination]];
  const list = read(async () => {
    const found = await get("peek", { ...target, from, dead_letters: deadLetters ? 1 : undefined });
    const next = found.next && textOf(found.next), goTo = start => { from = start; list.refresh(); };
    return [listed(title, columns, found.messages, `no ${from ? "more " : ""}${title.toLowerCase()}`),
      (from || next) && h("div", { class: "row" },
        h("button", { type: "button", disabled: !from, onclick: () => goTo(0) }, "First"),
        h("button", { type: "button", disabled: !next, onclick: () => goTo(next) }, "Next 50")),
      found.hidden && h("p", { class: "note" }, "a message cannot be read: those after it are not shown")];
  });
  return list;
}

function deadLetterGroups(target) {
  const columns = [["Reason", "name", group => clamped(group.reason ?? "(none)")], ["Number", "n", group => (group.exact ? "" : "~") + grouped(group.messages)],
    ["Destination", "wide name", group => group.destination]];
  if (TOKEN) columns.push(["", "", group => actButton("resubmit", "Resubmit these", { ...target, reason: group.reason ?? "" }, resubmitted)]);
  return read(async () => {
    const { groups } = await get("deadletters", target);
    return [groups.length > 0 && listed("Dead letters by reason", columns, groups),
      TOKEN && groups.length > 0 && h("div", { class: "row" },
        actButton("resubmit", "Resubmit all", target, resubmitted), actButton("remove", "Remove all dead letters", target, removed))];
  });
}

const resubmitted = found => `resubmitted ${plural(found.sent, "dead letter")}${found.stayed ? `; ${grouped(found.stayed)} stayed` : ""}`;
const removed = found => `removed ${plural(found.deleted, "message")}`;

function entityView(side, kind, path) {
  const target = { side, path }, counts = h("p", { role: "status" });
  const holds = kind !== "topic", lists = holds ? [messageList(target, false), deadLetterGroups(target), messageList(target, true)] : [];
  const titled = (title, columns, items) => items.length > 0 && h("div", {}, h("h2", {}, title), listed(title, columns, items));
  const about = read(async () => {
    const found = await get("entity", { ...target, kind: kind === "backlog" ? "queue" : kind });
    return [
      titled("Sessions", [["Session", "name", each => each.id], ["Locked until", "", each => moment(each.locked_until)], ["Owner", "name", each => each.owner],
        ["Messages locked", "n wide", each => each.locked === undefined ? "" : String(each.locked)]], found.sessions),
      titled("Rules", [["Rule", "name", each => each.name], ["Filter", "name", each => each.filter], ["Action", "name", each => each.action]], found.rules),
      pairs(Object.entries(found.description).filter(([, value]) => value.trim()))];
  });
  const refresh = () => [...lists, about].forEach(each => each.refresh());
  const tabs = new Map(), tab = (name, ...nodes) => tabs.set(name, h("section", { "aria-label": name }, nodes));
  if (holds) {
    tab("Messages", lists[0], TOKEN && actButton("purge", "Purge: remove all active messages", target, removed));
    tab("Dead letters", lists[1], lists[2]);
  }
  tab("Description", about, TOKEN && actButton("delete", `Delete this ${kind}`, target, found => { view = EMPTY; location.hash = ""; return `deleted ${found.deleted}`; }));
  const names = [...tabs.keys()], buttons = choices(names, names[0], chosen => tabs.forEach((each, name) => { each.hidden = name !== chosen; }));
  main.replaceChildren(h("p", {}, h("a", { href: "#" }, "← Overview")), h("h1", {}, path),
    h("p", { class: "soft" }, `${kind === "backlog" ? "backlog queue" : kind} of ${side}`), counts,
    TOKEN && kind !== "subscription" ? h("details", {}, h("summary", {}, "Send a message"), sendForm(side, path)) : "",
    h("p", { class: "row" }, buttons, h("button", { type: "button", onclick: refresh }, "Read again")), ...tabs.values());
  return {
    refresh,
    update() {
      const row = namespaces.get(side)?.entities.get(path);
      if (holds) setText(buttons[1], `Dead letters${row?.dead_letter ? ` (${grouped(row.dead_letter)})` : ""}`);
      if (!row) return setText(counts, "it is not there, or not read yet");
      const shown = Object.entries(COUNTS).map(([name, [heading]]) => cellText(row, name) && `${cellText(row, name)} ${heading.toLowerCase()}`);
      setText(counts, [...shown, row.oldest && `oldest ${age(row.oldest)}`].filter(Boolean).join(", "));
    },
  };
}

// Runs

function liveFigures(run) {
  const [before, last] = run.samples ?? [];
  const sum = sample => Object.values(sample.destinations).reduce((all, each) => all + each, 0);
  if (!last) return "running";
  const rate = (sum(last) - sum(before)) / Math.max(0.001, (last.at_ms - before.at_ms) / 1000);
  const left = last.depth === null ? "" : `, ${grouped(last.depth)} left${rate > 0 ? `, about ${Math.ceil(last.depth / rate / 60)} min` : ""}`;
  const most = Object.entries(last.destinations).sort((a, b) => b[1] - a[1]).slice(0, 5).map(([name, count]) => `${name} ${grouped(count)}`).join(", ");
  return [`${grouped(Math.round(rate))}/s${left}`, last.limit, most].filter(Boolean).join("; ");
}

const RUN = [["Run", "name", run => h("a", { href: `#run/${encodeURIComponent(run.id)}` }, run.id)], ["Command", "wide name", run => run.command],
  ["Started", "wide", run => moment(run.started)], ["Outcome", "", run => run.outcome],
  ...Object.entries({ Received: "received", Sent: "sent", Undeliverable: "undeliverable", Stayed: "stayed", "In doubt": "in_doubt", Doubtful: "doubtful_total" })
    .map(([heading, name]) => [heading, "n wide", run => run[name] ? grouped(run[name]) : ""]),
  ["Left over", "n wide", ({ remaining }) => remaining ? remaining.exact || remaining.messages ? `${remaining.exact ? "" : "≥"}${grouped(remaining.messages)}` : "?" : ""], ["Now", "name", run => run.samples ? liveFigures(run) : ""],
  ["Waiting", "name", ({ waiting }) => waiting ? `${waiting.messages === null ? "?" : `${waiting.exact ? "" : "~"}${grouped(waiting.messages)}`} ${waiting.command}` : ""]];

function runs() {
  const list = read(async () => [listed("Runs", RUN, (await get("runs")).runs.slice(0, SHOWN), "no runs in this state directory")]);
  main.replaceChildren(h("h1", {}, "Runs"), list);
  const timer = setInterval(list.refresh, RUNS_MS);
  return { close() { clearInterval(timer); } };
}

function runView(id) {
  const src = `runs/${encodeURIComponent(id)}`;
  main.replaceChildren(h("p", {}, h("a", { href: "#runs" }, "← Runs")), h("h1", {}, id), read(async () => {
    await answered(fetch(src));
    return [h("iframe", { src, title: `Report of ${id}` })];
  }));
  return {};
}

// Faults and the clock of an emulator

function controlView() {
  const clock = h("p"), faults = read(async () => {
    const found = await get("control"), on = Object.entries(found.faults);
    setText(clock, `The clock is at ${moment(found.now_ms)}.`);
    return on.length ? on.map(([id, fault]) =>
      h("div", { class: "row" }, h("code", {}, JSON.stringify(fault)), actButton("end-fault", `End ${id}`, { id }, () => `ended ${id}`)))
      : [h("p", { class: "soft" }, "no fault is on")];
  });
  const ofNumber = fields => Object.fromEntries(Object.entries(fields).filter(([, value]) => value).map(([name, value]) => [name, /^\d+$/.test(value) && name !== "entity" ? Number(value) : value]));
  const begin = read(async () => {
    const { kinds } = await get("control"), kind = h("select", { name: "kind", onchange: () => show() }, Object.keys(kinds).map(each => h("option", {}, each)));
    const fields = h("div", { class: "row" }), show = () => fields.replaceChildren(...kinds[kind.value].map(each => input(each, each.replaceAll("_", " "))));
    show();
    return [actForm("fault", "Begin", [h("div", { class: "row" }, h("label", {}, "Kind", kind), select("namespace", "Namespace", [...namespaces.keys()])), fields], ofNumber, found => `${found.id} is on`)];
  });
  main.replaceChildren(h("h1", {}, "Faults and clock"), clock,
    actForm("clock", "Advance the clock", [input("seconds", "Seconds", { type: "number", min: 1, value: "60" })], ({ seconds }) => ({ advance_ms: Math.round(Number(seconds) * 1000) }), found => `the clock is at ${moment(found.now_ms)}`),
    h("h2", {}, "Faults that are on"), faults, h("h2", {}, "Begin a fault"), begin);
  return { refresh: faults.refresh };
}

// Ways

function route() {
  let [name, ...words] = [""];
  try { [name, ...words] = location.hash.slice(1).split("/").map(decodeURIComponent); } catch { /* it is no link of this page */ }
  view.close();
  const views = { entity: entityView, runs, run: runView, control: controlView };
  view = { ...EMPTY, ...(Object.hasOwn(views, name) && (name !== "entity" || words.length === 3) ? views[name] : overview)(...words) };
  view.update();
}

addEventListener("hashchange", () => {
  route();
  main.focus();
  scrollTo(0, 0);
});
addEventListener("keydown", event => {
  const isTyping = /^(INPUT|TEXTAREA|SELECT)$/.test(event.target.tagName);
  if (event.key === "/" && !isTyping && view.input) {
    event.preventDefault();
    view.input.focus();
  } else if (event.key === "Escape" && !isTyping && location.hash) location.hash = "";
});
if (TOKEN) document.querySelector("a[href='#control']").hidden = false;
if (REFUSAL) document.querySelector("nav").append(h("span", { class: "soft" }, ` ${REFUSAL}`));
document.addEventListener("visibilitychange", listen);
route();
listen();
