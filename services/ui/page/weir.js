// The page: fetches the state once, follows the events, and draws what has changed.

import { Charts } from "./charts.js";
import { bytes, count, duration, element, perSecond, share, time } from "./format.js";
import { drawPlan, nodeCard } from "./plan.js";

const KEPT_S = 6 * 3600;
const LOST_MS = 5000;

const at = (id) => document.getElementById(id);
const charts = new Charts(at("charts"));
let state = null;
let history = null;
let selected = null;
let range = 600;
let heard = Date.now();

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function showHeadline() {
  const lost = Date.now() - heard > LOST_MS;
  const { tone, reached, held } = state.headline;
  const text = lost ? `This page has not heard from its server for ${duration(Date.now() - heard)}.` : `${reached}${held ? `, held by ${held}` : ""}.`;
  at("headline").dataset.tone = lost ? "ill" : tone;
  setText(at("headline"), text);
  document.title = `${state.query}: ${text}`;
}

function select(id) {
  selected = selected === id ? null : id;
  showPlans();
  at("plans").querySelector(`[data-id="${CSS.escape(id)}"]`)?.focus();
}

function showPlans() {
  const focused = document.activeElement?.dataset?.id;
  const places = [...at("plans").children];
  const scrolled = places.map((place) => place.scrollLeft);
  const drawn = state.plans.map((plan) => {
    const box = element("div", null, { class: "plan", "data-leaving": String(plan.leaving) });
    const whose = state.plans.length > 1 ? ` in ${plan.tasks.length === 1 ? "task" : "tasks"} ${plan.tasks.join(", ")}` : "";
    box.append(element("p", `${plan.leaving ? "Still running while its successor takes over: " : ""}${plan.text}${whose}`));
    box.append(drawPlan(plan, selected, select));
    return box;
  });
  if (!drawn.length) drawn.push(element("p", "No task has reported its plan yet."));
  at("plans").replaceChildren(...drawn);
  drawn.forEach((place, n) => { place.scrollLeft = scrolled[n] ?? 0; });
  if (focused) at("plans").querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  const node = state.plans.flatMap((plan) => plan.nodes).find((one) => one.id === selected);
  at("node").hidden = !node;
  if (node) at("node").replaceChildren(nodeCard(node));
}

const TASK_COLUMNS = [
  ["Task", (t) => String(t.task)],
  ["State", (t) => t.state || "–", "words"],
  ["Final up to", (t) => time(t.cut)],
  ["Reads", (t) => perSecond(t.inputs_per_s), null, (t) => t.inputs_per_s],
  ["Core", (t) => share(t.busy), null, (t) => t.busy],
  ["State size", (t) => bytes(t.state_bytes), null, (t) => t.state_bytes],
  ["Memory budget", (t) => (t.memory ? `${bytes(t.memory[0])} of ${bytes(t.memory[1])}` : "–")],
  ["Wait", (t) => count(t.pending), null, (t) => t.pending],
  ["Results", (t) => count(t.results), null, (t) => t.results],
  ["Late", (t) => count(t.late), null, (t) => t.late],
  ["Says", (t) => t.problem || t.waits_for || "", "words"],
  ["Worker", (t) => t.worker, "words"],
];

function showTasks() {
  const head = element("tr");
  for (const [name, , kind] of TASK_COLUMNS) head.append(element("th", name, { scope: "col", ...(kind ? { class: kind } : {}) }));
  const rows = state.tasks.map((task) => {
    const row = element("tr");
    for (const [, show, kind, exact] of TASK_COLUMNS) {
      row.append(element("td", show(task), { ...(kind ? { class: kind } : {}), ...(exact ? { title: String(exact(task)) } : {}) }));
    }
    return row;
  });
  const top = element("thead"), body = element("tbody");
  top.append(head);
  body.append(...rows);
  at("tasks").replaceChildren(top, body);
}

const effect = (one) => (!one ? "" : `${share(one.saving)} saved${one.silence === null ? "" : `, pause ${duration(one.silence * 1000)}`}`);

function showChanges() {
  at("decisions").replaceChildren(...state.decisions.map((one) => {
    const item = element("li", null, { "data-made": String(one.made) });
    item.append(element("b", one.made ? "Changed the plan" : "Kept the plan"), ` at ${time(one.at)}: ${one.from_plan} → ${one.to_plan} by ${one.strategy}: `, one.reason, ". ");
    item.append(element("small", `Predicted: ${effect(one.predicted)}. ${one.measured?.saving != null ? `Measured: ${effect(one.measured)}.` : ""}`));
    return item;
  }));
  at("migrations").replaceChildren(...[...state.migrations].reverse().map((one) => {
    const progress = one.finished ? "done" : one.total ? `${share(one.done / one.total)} of ${one.unit}` : one.began ? "in progress" : "waits for its time";
    return element("li", `Plan change by ${one.strategy} to ${one.to}${one.began ? ` at ${time(one.began)}` : ""}: ${progress}, longest pause ${duration(one.silence_s * 1000)}`);
  }));
  if (!state.decisions.length && !state.migrations.length) at("migrations").replaceChildren(element("li", "None yet."));
}

// Plan changes at the second of the wall clock in which results reached their event time.
function marks() {
  return state.migrations.filter((one) => one.began).map((one) => {
    const n = history.cut.findIndex((cut) => cut >= one.began);
    return n > 0 ? [history.second[n] * 1000, one.to] : null;
  }).filter(Boolean);
}

function show() {
  setText(at("query"), state.query);
  setText(at("sink"), state.sink ? `results in topic ${state.sink}` : "");
  setText(at("problem"), state.problem);
  setText(at("text"), state.text);
  showHeadline();
  showPlans();
  showTasks();
  showChanges();
  charts.draw(history, range, marks());
}

function add(more) {
  for (const name of Object.keys(history)) {
    const fresh = more[name].filter((_, n) => more.second[n] > (history.second.at(-1) ?? 0));
    if (name !== "second") history[name].push(...fresh);
  }
  history.second.push(...more.second.filter((second) => second > (history.second.at(-1) ?? 0)));
  const extra = history.second.length - KEPT_S;
  if (extra > 0) for (const column of Object.values(history)) column.splice(0, extra);
}

for (const button of document.querySelectorAll("[data-range]")) {
  button.addEventListener("click", () => {
    range = Number(button.dataset.range);
    for (const other of document.querySelectorAll("[data-range]")) other.setAttribute("aria-pressed", String(other === button));
    if (state) charts.draw(history, range, marks());
  });
}

async function begin() {
  const answer = await (await fetch("/state")).json();
  ({ state, history } = answer);
  show();
  const events = new EventSource("/events");
  events.onmessage = (event) => {
    heard = Date.now();
    const found = JSON.parse(event.data);
    state = found.state;
    add(found.history);
    show();
  };
  setInterval(showHeadline, 1000);
}

begin();
