// The page: fetches the state once, follows the events, and draws what has changed.

import { Changes } from "./changes.js";
import { Charts } from "./charts.js";
import { bytes, count, duration, element, perSecond, share, time } from "./format.js";
import { drawGroup, explainOperator, groupCard } from "./group.js";
import { happened, showHappened } from "./marks.js";
import { Past } from "./past.js";
import { drawPlan, nodeCard } from "./plan.js";
import { Rows } from "./rows.js";
import { WhatIf } from "./what_if.js";

const KEPT_S = 24 * 3600;
const LOST_MS = 5000;

const at = (id) => document.getElementById(id);
const charts = new Charts(at("charts"));
const past = new Past(at("past"), (found) => { then = found; showThen(); showPlans(); showTasks(); showChanges(); });
let changes = null;
let rows = null;
let state = null;
let then = null; // the state of the moment that the slider shows; null for now
let history = null;
let selected = null;
let range = 600;
let heard = Date.now();

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

function showHeadline() {
  const lost = Date.now() - heard > LOST_MS;
  const { tone, reached, held, advice } = state.headline;
  const text = lost ? `This page has not heard from its server for ${duration(Date.now() - heard)}.` : `${reached}${held ? `, held by ${held}` : ""}.`;
  at("headline").dataset.tone = lost ? "ill" : tone;
  setText(at("headline"), text);
  setText(at("advice"), lost ? "" : advice);
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
  const shown = then ?? state;
  const drawn = shown.plans.map((plan) => {
    const box = element("div", null, { class: "plan", "data-leaving": String(plan.leaving) });
    const whose = shown.plans.length > 1 ? ` in ${plan.tasks.length === 1 ? "task" : "tasks"} ${plan.tasks.join(", ")}` : "";
    box.append(element("p", `${plan.leaving ? "Still running while its successor takes over: " : ""}${plan.text}${whose}`));
    box.append(drawPlan(plan, selected, select));
    return box;
  });
  if (shown.group) drawn.push(drawGroup(shown.group, selected, select));
  if (!drawn.length) drawn.push(element("p", then ? "No task had reported then." : "No task has reported its plan yet."));
  at("plans").replaceChildren(...drawn);
  drawn.forEach((place, n) => { place.scrollLeft = scrolled[n] ?? 0; });
  if (focused) at("plans").querySelector(`[data-id="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  const node = [...(shown.group ?? []), ...shown.plans.flatMap((plan) => plan.nodes)].find((one) => one.id === selected);
  at("node").hidden = !node;
  if (node) at("node").replaceChildren(shown.group ? groupCard(node) : nodeCard(node), ...explanation(node));
}

// What the server has told about an operator of a group; asks for it the first time.
function explanation(node) {
  if (!node.queries?.length || then) return [];
  const words = explainOperator(node);
  if (words.text === undefined) words.then(showPlans);
  return words.text ? [element("pre", words.text, { tabindex: "0" })] : [];
}

// Says of the parts that follow the slider what they show.
function showThen() {
  for (const place of document.querySelectorAll(".then")) {
    setText(place, then ? `As the tasks had reported at ${time(then.now)}, at most half a minute before. The rest of the page is of now.` : "");
  }
}

const SKEWED = 2;

// Over the last minute, among the tasks that do the same.
function inputShare(found) {
  if (!found) return "–";
  const times = found[0] / found[1];
  return times > SKEWED ? `${share(found[0])}, ${count(times)} × an even share` : share(found[0]);
}

// Tuples; or the bytes of states that are in files.
function onDisk(found) {
  if (!found) return "–";
  const [tuples, groups, files] = found;
  return files ? bytes(files) : groups ? `${count(tuples)} tuples` : "nothing";
}

const TASK_COLUMNS = [
  ["Task", (t) => String(t.task)],
  ["State", (t) => (t.state === "running" && t.waits_for ? "waits" : t.state || "–"), "words"],
  ["Worker", (t) => t.worker, "words"],
  ["Waits for, or failed", (t) => t.problem || t.waits_for || "", "words"],
  ["Tuples waiting", (t) => count(t.pending), null, (t) => t.pending],
  ["Final up to", (t) => time(t.cut)],
  ["Reads", (t) => perSecond(t.inputs_per_s), null, (t) => t.inputs_per_s],
  ["Share of all read", (t) => inputShare(t.input_share), null, (t) => t.input_share?.[0] ?? ""],
  ["Core", (t) => share(t.busy), null, (t) => t.busy],
  ["State size", (t) => bytes(t.state_bytes), null, (t) => t.state_bytes],
  ["Memory budget", (t) => (t.memory ? `${bytes(t.memory[0])} of ${bytes(t.memory[1])}` : "none")],
  ["On disk", (t) => onDisk(t.disk), null, (t) => (t.disk ? `${t.disk[0]} tuples, ${t.disk[1]} groups spilled so far` : "")],
  ["Spilled pairs to join", (t) => (t.memory ? count(t.owed) : "–"), null, (t) => t.owed],
  ["Results", (t) => count(t.results), null, (t) => t.results],
  ["Late", (t) => count(t.late), null, (t) => t.late],
  ["Dead letters", (t) => count(t.dead_letters), null, (t) => t.dead_letters],
];

// Columns without a value for any task are left out.
function showTasks() {
  const { tasks } = then ?? state;
  const columns = TASK_COLUMNS.filter(([, show]) => !tasks.length || tasks.some((task) => show(task) !== "–"));
  const head = element("tr");
  for (const [name, , kind] of columns) head.append(element("th", name, { scope: "col", ...(kind ? { class: kind } : {}) }));
  const rows = tasks.map((task) => {
    const row = element("tr");
    for (const [, show, kind, exact] of columns) {
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
  const shown = then ?? state;
  at("decisions").replaceChildren(...shown.decisions.map((one) => {
    const item = element("li", null, { "data-made": String(one.made) });
    item.append(element("b", one.made ? "Changed the plan" : "Kept the plan"), ` at ${time(one.at)}: ${one.from_plan} → ${one.to_plan} by ${one.strategy}: `, one.reason, ". ");
    item.append(element("small", `Predicted: ${effect(one.predicted)}. ${one.measured?.saving != null ? `Measured in the window after the change: ${effect(one.measured)}.` : ""}`));
    return item;
  }));
  at("migrations").replaceChildren(...[...shown.migrations].reverse().map((one) => {
    const progress = one.finished ? "done" : one.total ? `${share(one.done / one.total)} of ${one.unit}` : one.began ? "in progress" : "waits for its time";
    return element("li", `Plan change by ${one.strategy} to ${one.to}${one.began ? ` at ${time(one.began)}` : ""}: ${progress}, longest pause ${duration(one.silence_s * 1000)}`);
  }));
  if (!shown.decisions.length && !shown.migrations.length) at("migrations").replaceChildren(element("li", then ? "None by then." : "None yet."));
}

function showHistory() {
  const marks = happened(state, history);
  charts.draw(history, range, marks);
  showHappened(at("happened"), marks);
}

function show() {
  setText(at("query"), state.query);
  setText(at("sink"), `${state.sink ? `· results in topic ${state.sink} ` : ""}· times in UTC`);
  setText(at("problem"), state.problem);
  setText(at("text"), state.text);
  showHeadline();
  showPlans();
  showTasks();
  showChanges();
  const queries = (state.group ?? []).filter((node) => node.kind === "query").map((node) => node.name);
  changes.show(queries);
  rows?.offer(queries);
  rows?.count(state.tasks);
  showHistory();
  if (history.second.length) past.bounds(history.second[0], history.second.at(-1));
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
    if (state) showHistory();
  });
}

async function begin() {
  const answer = await (await fetch("state")).json();
  ({ state, history } = answer);
  changes = new Changes(at("changes"), answer.offers);
  const offered = (id) => !(at(id).closest("section").hidden = !answer.offers.includes(id));
  if (offered("what-if")) new WhatIf(at("what-if"));
  if (offered("rows")) rows = new Rows(at("rows"));
  show();
  const events = new EventSource(`events?since=${history.second.at(-1) ?? 0}`);
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
