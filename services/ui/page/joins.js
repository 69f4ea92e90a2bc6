// What is shown of a join's states and of the feedback to it: in its node, and on its card.

import { bytes, count, duration } from "./format.js";

const SIDES = ["left", "right"];

export const incomplete = (node) => Boolean(node.completed) && node.completed.some((part) => part !== 1);

// How complete the states are that lack something: "left 42 %, right not complete".
export function progress(node) {
  const part = (value) => (value === null ? "not complete" : `${Math.floor(value * 100)} %`);
  return SIDES.map((side, n) => (node.completed[n] === 1 ? "" : `${side} ${part(node.completed[n])}`)).filter(Boolean).join(", ");
}

const total = (node, name) => (node.feedback ?? []).reduce((sum, edge) => sum + edge[name], 0);

// A few words for a node that keeps tuples back, or has made fewer results, since a join above does not need them.
export function feedbackMark(node) {
  const kept = total(node, "kept_back"), saved = total(node, "suppressed");
  return kept ? `‖ ${count(kept)} kept` : saved ? `‖ ${count(saved)} saved` : "";
}

export function spokenFeedback(node) {
  const kept = total(node, "kept_back"), saved = total(node, "suppressed");
  return kept || saved ? `, by feedback ${count(kept)} tuples kept back and ${count(saved)} results not made` : "";
}

// Lines of the card: add(name, value, exact value).
export function addFeedback(add, node) {
  for (const edge of node.feedback ?? []) {
    const saved = edge.saved_bytes ? `, which saved ${bytes(edge.saved_bytes)} of state` : "";
    const text = `from ${edge.consumer}: ${count(edge.kept_back)} tuples kept back now, about ${count(edge.suppressed)} results not made${saved}; ${count(edge.demanded)} made, ${count(edge.late)} of them late; detecting took ${duration(edge.detecting_s * 1000)}${edge.watching ? "" : "; it rests now"}`;
    add("Feedback", text, `${edge.kept_back} kept back, ${edge.suppressed} not made, ${edge.saved_bytes} B saved, ${edge.demanded} made, ${edge.late} late`);
  }
}

export function addStates(add, node) {
  const both = (values) => `${count(values[0])} left, ${count(values[1])} right`;
  if (node.living) add("Alive in the states", both(node.living), node.living.join(", "));
  if (node.per_tuple !== null && node.per_tuple !== undefined) add("Results per tuple", node.per_tuple.toPrecision(3), node.per_tuple);
  if (node.groups) add("Partition groups in memory", both(node.groups), node.groups.join(", "));
  if (!incomplete(node)) return;
  const [done, all] = node.keys;
  const keys = all[0] + all[1] ? `; ${done[0] + done[1]} of ${all[0] + all[1]} keys completed` : "";
  add("States so far", `${progress(node)}${keys}`, node.completed.join(", "));
}
