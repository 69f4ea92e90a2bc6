// The page of one moment, in one file without a server: draws the document that is in it.

import { bytes, count, duration, element, perSecond, share, time } from "./format.js";
import { drawPlan, nodeCard } from "./plan.js";

const at = (id) => document.getElementById(id);
const state = JSON.parse(at("document").textContent);
let selected = null;

function select(id) {
  selected = selected === id ? null : id;
  const places = [...at("plans").children].map((place) => place.scrollLeft);
  showPlans();
  [...at("plans").children].forEach((place, n) => { place.scrollLeft = places[n]; });
  at("plans").querySelector(`[data-id="${CSS.escape(id)}"]`).focus({ preventScroll: true });
}

function showPlans() {
  at("plans").replaceChildren(...state.plans.map((plan) => {
    const box = element("div", null, { class: "plan" });
    const whose = state.plans.length > 1 ? ` in ${plan.tasks.length === 1 ? "task" : "tasks"} ${plan.tasks.join(", ")}` : "";
    box.append(element("p", `${plan.leaving ? "Still running while its successor takes over: " : ""}${plan.text}${whose}`));
    box.append(drawPlan(plan, selected, select));
    return box;
  }));
  const node = state.plans.flatMap((plan) => plan.nodes).find((one) => one.id === selected);
  at("node").hidden = !node;
  if (node) at("node").replaceChildren(nodeCard(node));
}

const TASK_COLUMNS = [
  ["Task", (t) => String(t.task)],
  ["Final up to", (t) => time(t.cut), (t) => t.cut],
  ["Reads", (t) => perSecond(t.inputs_per_s), (t) => t.inputs_per_s],
  ["Core", (t) => share(t.busy), (t) => t.busy],
  ["State size", (t) => bytes(t.state_bytes), (t) => t.state_bytes],
  ["Memory budget", (t) => (t.memory ? `${bytes(t.memory[0])} of ${bytes(t.memory[1])}` : "–")],
  ["Wait", (t) => count(t.pending), (t) => t.pending],
  ["Results", (t) => count(t.results), (t) => t.results],
  ["Late", (t) => count(t.late), (t) => t.late],
];

function showTasks() {
  const head = element("tr"), top = element("thead"), body = element("tbody");
  for (const [name] of TASK_COLUMNS) head.append(element("th", name, { scope: "col" }));
  top.append(head);
  for (const task of state.tasks) {
    const row = element("tr");
    for (const [, show, exact] of TASK_COLUMNS) row.append(element("td", show(task), exact ? { title: String(exact(task)) } : {}));
    body.append(row);
  }
  at("tasks").append(top, body);
  at("tasks").closest("section").hidden = !state.tasks.length;
}

const effect = (one) => `${share(one.saving)} saved, pause ${duration(one.silence === null ? null : one.silence * 1000)}`;

function showChanges() {
  for (const one of state.decisions) {
    const item = element("li", null, { "data-made": String(one.made) });
    item.append(element("b", one.made ? "Changed the plan" : "Kept the plan"), ` at ${time(one.at)}: ${one.from_plan} → ${one.to_plan} by ${one.strategy}: ${one.reason}. `);
    item.append(element("small", `Predicted: ${effect(one.predicted)}. ${one.measured ? `Measured: ${effect(one.measured)}.` : ""}`));
    at("changes").append(item);
  }
  for (const one of [...state.migrations].reverse()) {
    const progress = one.finished ? "done" : one.total ? `${share(one.done / one.total)} of ${one.unit}` : one.began ? "in progress" : "waits for its time";
    at("changes").append(element("li", `Plan change by ${one.strategy} to ${one.to}${one.began ? ` at ${time(one.began)}` : ""}: ${progress}, longest pause ${duration(one.silence_s * 1000)}`));
  }
  at("changes").closest("section").hidden = !at("changes").children.length;
}

at("query").textContent = state.query;
at("sink").textContent = state.sink ? `results in topic ${state.sink}` : "";
at("basis").textContent = `${state.basis}.`;
at("problem").textContent = state.problem;
at("aggregate").textContent = state.aggregate.join("\n");
at("aggregate").hidden = !state.aggregate.length;
at("text").textContent = state.text;
at("made").textContent = `Made by weir explain at ${time(state.now)} UTC.`;
showPlans();
showTasks();
showChanges();
