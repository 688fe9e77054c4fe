// The page of the crash playground: it shows what the server says, and sends moves.  Nothing is decided here.
"use strict";

const token = location.hash.slice(1);
const at = (id) => document.getElementById(id);
const CHOICES = {
  go: ["Go on", "G", "Make the call, and get its reply.", "first"],
  "kill-before": ["Kill before", "B", "The process dies before the call: nothing of it happens.", "fault"],
  "kill-after": ["Kill after", "A", "The call takes effect; the process dies before it learns of that.", "fault"],
  "lose-call": ["Lose the call", "C", "The call never arrives: nothing happens, and the worker gets the same error as for a lost reply.", "fault"],
  lose: ["Lose the reply", "L", "The call takes effect; the worker gets an error in place of the reply.", "fault"],
  refuse: ["Refuse", "R", "The store or the queue is busy: nothing happens, and the worker is told so.", "fault"],
};
const BOXES = {
  receive: "one message, under a lock",
  decide: "a redelivered message, or one whose commit is in doubt: is it on record?",
  load: "the state and its ETag",
  run: "the handler, on a copy in memory: its outputs are only captured",
  commit: "state, outputs and record in one batch, if the ETag holds",
  push: "the outputs of the record, under stored ids",
  settle: "last: the queue drops the message",
};
let shown = null;
let chosen = 1;
let isResting = false; // a guided step, or one back, is under way, or its text has just changed
let lastLine = 0;
let rate = 4;

// A node with attributes and children; texts are set as texts, never as markup.
function node(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key === "on") made.addEventListener("click", value);
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null) made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

const NAMES = { decide: "on record?" };
const REST_MS = 400; // a double click is one click

const count = (n, noun) => `${n} ${noun}${n === 1 ? "" : "s"}`;

function button(key, label, move, { kind = "", title = null, disabled = false, letter = "", pressed = null, rests = false } = {}) {
  return node("button", {
    type: "button", "data-key": key, class: kind, title, disabled, "aria-pressed": pressed,
    "aria-keyshortcuts": letter || null, "aria-disabled": rests && isResting ? "true" : null, on: () => (rests ? once(move) : send(move)),
  }, label);
}

// Replace what a place holds, only where it differs, and keep the focus where it was.
function fill(place, ...children) {
  const next = node("div", {}, ...children);
  if (place.innerHTML === next.innerHTML) return;
  const key = place.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  place.replaceChildren(...next.childNodes);
  const again = key && place.querySelector(`[data-key="${key}"]:not(:disabled)`);
  if (again) again.focus();
  else if (key) (place.querySelector("button.first:not(:disabled)") || place.querySelector("button:not(:disabled)"))?.focus();
}

function show(next) {
  if (shown && next.revision < shown.revision) return;
  const before = shown;
  shown = next;
  const { view } = next;
  if (!view.workers.some((worker) => worker.number === chosen)) chosen = 1;
  showGuide(next);
  showVerdict(view.verdict);
  showOrders(view, next.is_auto);
  at("hint").textContent = next.guide || next.is_auto ? "" : view.hint;
  fill(at("add"),
    view.free_worker && !next.is_auto
      ? button("add", `Start worker ${view.free_worker}`, { do: "start", worker: view.free_worker }, { kind: "small" }) : null);
  fill(at("workers-body"), ...view.workers.map((worker) => showWorker(worker, next.is_auto)));
  showStore(view, before && before.view, next.is_auto);
  showParcels(view);
  showHistory(view.history, next.is_auto);
}

function showGuide({ guide, left, scenarios, is_auto, rate: used }) {
  const body = [];
  if (guide) {
    body.push(node("p", { class: "title" }, guide.title), node("p", { class: "say", "aria-live": "polite" }, guide.text));
    if (guide.scene_count) {
      const dots = node("span", { class: "dots", role: "img", "aria-label": `step ${guide.index} of ${guide.scene_count}` },
        ...Array.from({ length: guide.scene_count }, (_, i) => node("i", { class: i < guide.index ? "on" : "" })));
      body.push(node("div", { class: "row" },
        guide.next_label ? button("next", guide.next_label, { do: "next" }, { kind: "first", letter: "N", rests: true })
          : node("strong", {}, "The end. Play on by hand, or take another scenario."),
        guide.index ? button("back", "Back", { do: "back" }, { rests: true }) : null, dots));
    }
  } else if (left) {
    body.push(node("div", { class: "row" },
      node("p", { class: "say" }, `${is_auto ? "It plays by itself" : "You play by hand"} now.`),
      button("once-more", `Begin “${scenarios[left]}” again`, { do: "begin", id: left, rate })));
  } else {
    body.push(node("p", { class: "say" }, "Take a scenario: each goes step by step and says what to see. Or play by hand below."));
  }
  fill(at("guide-body"), ...body);
  fill(at("scenarios"), ...Object.entries(scenarios).map(([name, title]) =>
    button(`scenario-${name}`, title, { do: "begin", id: name, rate: name === "random" ? Math.max(rate, 20) : rate },
      { pressed: String(Boolean(guide && guide.name === name)) })));
  if (is_auto) rate = used;
  const slider = node("input", { type: "range", min: 0, max: 100, value: Math.round(50 * Math.log10(rate / 0.5) / 1.15), "data-key": "rate", "aria-label": "speed" });
  slider.addEventListener("input", () => {
    rate = 0.5 * 10 ** (slider.value * 1.15 / 50);
    if (shown.is_auto) send({ do: "auto", rate });
  });
  if (document.activeElement !== at("auto").querySelector("input")) {
    fill(at("auto"),
      is_auto ? button("stop", "Stop", { do: "stop" }, { kind: "first" })
        : button("auto", "Play by itself", null, { title: "With random faults, 200 at least" }),
      node("label", {}, "slow", slider, "fast"));
    at("auto").querySelector("input").replaceWith(slider);
  }
}

function showVerdict(verdict) {
  const state = !verdict.is_quiet ? "going" : verdict.is_equal ? "equal" : "unequal";
  const words = { going: ["…", "On its way"], equal: ["✓", "Equal"], unequal: ["✕", "Not equal"] }[state];
  const mark = verdict.order_count ? words : ["", "No order yet"];
  at("verdict").className = `card ${verdict.order_count ? state : ""}`;
  const line = (name, due, is) => node("tr", {}, node("td", {}, name), node("td", {}, String(due)),
    node("td", { class: due === is ? "" : "off" }, String(is)));
  const copies = verdict.copies === 1 ? "1 copy of a parcel, under the id of the first: the reader drops it."
    : `${verdict.copies} copies of parcels, under the ids of the first: the reader drops them.`;
  fill(at("verdict-body"),
    node("p", { class: "mark" }, mark[0] ? node("span", { "aria-hidden": "true" }, mark[0]) : null, mark[1]),
    node("table", {}, node("thead", {}, node("tr", {}, node("th", {}), node("th", {}, "should be"), node("th", {}, "is"))),
      node("tbody", {}, line("nails", verdict.stock_due, verdict.stock), line("parcels", verdict.order_count, verdict.parcels))),
    node("p", { class: "note" }, `${count(verdict.order_count, "distinct order")}, ${count(verdict.fault_count, "fault")}. ${verdict.copies ? copies : ""}`));
}

const deliveries = (n) => (n === 0 ? "not delivered yet" : n === 1 ? "delivered once" : `delivered ${n} times`);

const LOCKS = {
  "": () => "free", held: (holder) => `locked by ${holder}`, dead: (holder) => `locked for ${holder}'s dead process`,
  stray: (holder) => `locked for ${holder}, which does not know`,
};

function showOrders(view, isAuto) {
  const newest = view.sent.at(-1);
  const items = view.orders.map((order) => node("li", { class: order.lock },
    node("b", {}, order.id), order.is_copy ? node("span", { class: "tag" }, "duplicate") : null,
    node("span", { class: "fine" }, LOCKS[order.lock](order.holder)),
    node("span", { class: "fine" }, deliveries(order.delivery_count + (order.holder ? 1 : 0)))));
  fill(at("orders-body"),
    node("div", { class: "row" },
      button("send", "Send an order", { do: "send" }, { letter: "S", kind: newest ? "" : "first", disabled: isAuto || Boolean(view.why_no_order), title: view.why_no_order || null }),
      button("again", newest ? `Send ${newest} again` : "Send it again", { do: "duplicate", id: newest || "" },
        { letter: "D", disabled: isAuto || !newest }),
      button("time", "Let a minute pass", { do: "time" }, { letter: "T", disabled: isAuto, title: "Locks last a minute; while it passes every worker stands still." }),
      button("sweep", "Sweep", { do: "sweep" }, { letter: "P", disabled: isAuto, title: "Send what records older than a minute still hold, and mark them. Workers do so every half minute; here it happens at a click." })),
    items.length ? node("ul", { class: "queue" }, ...items) : node("p", { class: "empty" }, "The queue is empty."));
}

// The steps in the order of the run: the record is looked for before the load, or behind a commit in doubt.
function boxes(worker) {
  const names = Object.keys(BOXES).filter((step) => step !== "decide");
  names.splice(worker.looks_late ? names.indexOf("commit") + 1 : 1, 0, "decide");
  return names;
}

function showSteps(worker) {
  const steps = boxes(worker);
  const last = Math.max(...[worker.step, worker.died, ...worker.seen].map((step) => steps.indexOf(step)));
  return node("ol", { class: "steps", "aria-label": "steps, in their order" }, ...steps.map((step, i) => {
    const isNow = step === worker.step && (worker.id || worker.choices.length);
    const state = isNow ? "now" : step === worker.died ? "died" : step === worker.doubt ? "doubt"
      : worker.seen.includes(step) ? "done" : worker.id && i < last ? "inside" : "";
    const how = { done: "done", doubt: "perhaps done: call or reply is lost", inside: "in memory, or not needed", died: "it died here" }[state];
    const mark = { doubt: " ?", died: " ✕" }[state] || "";
    return node("li", { class: state, title: `${BOXES[step]}${how ? ` (${how})` : ""}`, "aria-current": isNow ? "step" : null },
      `${NAMES[step] || step}${mark}`, how ? node("span", { class: "unseen" }, `, ${how}`) : null);
  }));
}

function showWorker(worker, isAuto) {
  const w = worker.number;
  const isFree = worker.choices.length > 0 && !isAuto;
  const buttons = !worker.is_alive
    ? [button(`start-${w}`, "Start a new process", { do: "start", worker: w }, { kind: "first", letter: "W", disabled: isAuto })]
    : [...Object.entries(CHOICES).map(([name, [label, letter, title, kind]]) =>
        button(`${name}-${w}`, label, { do: name, worker: w }, { kind, title, letter: w === chosen ? letter : "", disabled: !isFree })),
      button(`finish-${w}`, "Finish", { do: "finish", worker: w }, { letter: w === chosen ? "F" : "", disabled: !isFree })];
  const card = node("article", { class: `worker card ${worker.is_alive ? "" : "dead"} ${w === chosen && shown.view.workers.length > 1 ? "chosen" : ""}`, "aria-label": worker.name },
    node("div", { class: "head" }, node("b", {}, worker.name[0].toUpperCase() + worker.name.slice(1)),
      worker.id ? node("span", {}, `${worker.is_alive ? "has" : "had"} ${worker.id} in hand`) : null,
      node("span", { class: "state" }, worker.is_alive ? "alive" : "✕ killed")),
    showSteps(worker), worker.warning ? node("p", { class: "warning" }, worker.warning) : null,
    node("p", { class: "about" }, worker.about), node("div", { class: "row buttons" }, ...buttons));
  card.addEventListener("focusin", () => { chosen = w; });
  return card;
}

const PARCELS = { unsent: "parcel not sent yet", sent: "sent, not marked yet", marked: "sent and marked" };

function showStore(view, before, isAuto) {
  const records = view.records.map((record) => node("li", { class: record.parcel },
    node("b", {}, record.order), node("span", { class: "fine" }, PARCELS[record.parcel]),
    button(`again-${record.order}`, "again", { do: "duplicate", id: record.order }, { kind: "small", disabled: isAuto, title: `Send order ${record.order} again, under the same id` }))).reverse();
  const changed = before && before.etag !== view.etag ? "fresh" : "";
  fill(at("store-body"),
    node("p", { class: `stock ${changed}` }, node("b", {}, String(view.stock)), "nails", node("span", { class: "etag" }, `ETag ${view.etag}`)),
    node("h3", {}, "Outbox records"),
    records.length ? node("ul", { class: "rows", tabindex: "0", "aria-label": "Outbox records" }, ...records) : node("p", { class: "empty" }, "None yet."));
}

function showParcels(view) {
  const items = view.parcels.map((parcel) => node("li", { class: parcel.is_copy ? "copy" : "", title: parcel.id },
    node("b", {}, `parcel of ${parcel.order}`), node("code", {}, `id ${parcel.id.slice(0, 4)}…-${parcel.id.split("-").at(-1)}`),
    parcel.is_copy ? node("span", { class: "tag" }, "copy") : null)).reverse();
  fill(at("parcels-body"), items.length ? node("ul", { class: "rows", tabindex: "0", "aria-label": "Parcels" }, ...items) : node("p", { class: "empty" }, "No parcel was sent yet."));
}

function showHistory(history, isAuto) {
  const place = at("history-body");
  place.setAttribute("aria-live", isAuto ? "off" : "polite");
  const newest = history.length ? history.at(-1).number : 0;
  if (newest < lastLine) place.replaceChildren();
  const known = newest < lastLine ? 0 : lastLine;
  for (const line of history) {
    if (line.number > known) place.prepend(node("li", { class: `${line.kind} ${isAuto ? "" : "fresh"}` }, line.text));
  }
  while (place.children.length > 80) place.lastChild.remove();
  if (newest !== lastLine) place.scrollTop = 0;
  lastLine = newest;
}

function complain(text) {
  at("alert").textContent = text;
  at("alert").hidden = !text;
}

async function ask(path, options = {}) {
  const response = await fetch(path, { ...options, headers: { authorization: `Bearer ${token}`, ...options.headers } });
  const answer = await response.json();
  if (!response.ok) throw Object.assign(new Error(answer.error), { isAnswer: true, status: response.status });
  return answer;
}

async function send(move) {
  try {
    const made = move || { do: "auto", rate };
    show(await ask("move", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(made) }));
    complain("");
  } catch (error) {
    complain(error.isAnswer ? `That cannot be done now: ${error.message}.` : "The server does not answer. Start `outbox play` again.");
  }
}

// Make a guided step, and take no other until its text has been there for a moment.
async function once(move) {
  if (isResting) return;
  isResting = true;
  show(shown);
  await send(move);
  await new Promise((wake) => setTimeout(wake, REST_MS));
  isResting = false;
  show(shown);
}

async function follow() {
  for (;;) {
    try {
      show(await ask(`look?after=${shown ? shown.revision : -1}`));
      if (!at("alert").hidden && at("alert").dataset.gone) { complain(""); delete at("alert").dataset.gone; }
    } catch (error) {
      complain(error.isAnswer ? `${error.message}.` : "The server does not answer. Start `outbox play` again, and open its new address.");
      if (error.status === 401) return;
      at("alert").dataset.gone = "yes";
      await new Promise((wake) => setTimeout(wake, 2000));
    }
  }
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
  if (/^[1-3]$/.test(event.key) && shown?.view.workers.some((worker) => worker.number === Number(event.key))) {
    chosen = Number(event.key);
    show(shown);
    return;
  }
  const found = document.querySelector(`button[aria-keyshortcuts="${CSS.escape(event.key.toUpperCase())}"]:not(:disabled)`);
  if (found) { event.preventDefault(); found.click(); }
});
at("reset").addEventListener("click", () => send({ do: "reset" }));
follow();
