// Draws a group of queries: streams at the left, the operators that read them, and each query's results at the right.

import { bytes, count, element, perSecond, share, short } from "./format.js";
import { edge, svg } from "./plan.js";

const WIDTH = 220, HEIGHT = 66, GAP_X = 72, GAP_Y = 14, PAD = 14;

// So many queries are drawn: those with the most results.
const MOST = 60;

const COLUMN = { source: 0, table: 0, query: 2 };
const column = (node) => COLUMN[node.kind] ?? 1;
const named = (node) => (node.shared ? `shared by ${node.queries.length} queries` : node.queries.join(", "));

function lines(node) {
  if (column(node) === 0) return [node.name, node.kind, node.windows.length > 1 ? `${node.windows.length} windows` : node.windows.join("")];
  if (node.kind === "query") return [node.name, node.running ? perSecond(node.per_s) : "does not run", `${count(node.results)} results`];
  return [`${node.kind} ${named(node)}`, `${share(node.cores)} of a core`, `${bytes(node.state_bytes)} state`];
}

function drawn(nodes) {
  const queries = nodes.filter((node) => node.kind === "query");
  const most = new Set([...queries].sort((a, b) => b.results - a.results).slice(0, MOST).map((node) => node.id));
  return { shown: nodes.filter((node) => node.kind !== "query" || most.has(node.id)), left: queries.length - most.size };
}

// Each column is spread over the height of the longest one.
function layout(nodes) {
  const columns = [0, 1, 2].map((n) => nodes.filter((node) => column(node) === n));
  const rows = Math.max(...columns.map((nodes) => nodes.length), 1);
  const places = new Map();
  columns.forEach((some, n) => some.forEach((node, k) => {
    places.set(node.id, { x: PAD + n * (WIDTH + GAP_X), y: PAD + ((k + 0.5) * rows / some.length - 0.5) * (HEIGHT + GAP_Y) });
  }));
  return { places, high: 2 * PAD + rows * (HEIGHT + GAP_Y) - GAP_Y };
}

export function drawGroup(nodes, selected, select) {
  const { shown, left } = drawn(nodes);
  const { places, high } = layout(shown);
  const wide = 2 * PAD + 3 * WIDTH + 2 * GAP_X;
  const drawing = svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": "Streams, operators and queries" });
  for (const node of shown) {
    for (const input of node.inputs) {
      const from = places.get(input), to = places.get(node.id);
      drawing.append(edge(from.x + WIDTH, from.y + HEIGHT / 2, to.x, to.y + HEIGHT / 2, node.per_s));
    }
  }
  for (const node of shown) {
    const { x, y } = places.get(node.id);
    const [title, second, third] = lines(node);
    const made = svg("g", { class: "node", tabindex: 0, role: "button", "aria-label": `${node.kind} ${lines(node).join(", ")}`, "aria-pressed": node.id === selected, "data-id": node.id, transform: `translate(${x},${y})` });
    made.append(svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 6 }));
    if (column(node) === 1) made.append(svg("rect", { class: "heat", width: WIDTH, height: HEIGHT, rx: 6, "fill-opacity": Math.min(node.cores || 0, 1) * 0.75 }));
    made.append(svg("text", { x: 10, y: 20 }, short(title, 28)), svg("text", { x: 10, y: 38, class: node.running === false ? "off" : "small" }, second), svg("text", { x: 10, y: 56, class: "small" }, short(third, 32)));
    const choose = () => select(node.id);
    made.addEventListener("click", choose);
    made.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
    });
    drawing.append(made);
  }
  const box = element("div", null, { class: "plan" });
  if (left) box.append(element("p", `The ${MOST} queries with the most results are drawn, ${count(left)} more run.`));
  box.append(drawing);
  return box;
}

// The figures of one node; an operator's also say in words what its queries share, once the server has told.
export function groupCard(node) {
  const list = element("dl");
  const add = (name, value, exact) => {
    if (value !== null && value !== undefined) list.append(element("dt", name), element("dd", value, exact === undefined ? {} : { title: String(exact) }));
  };
  if (node.kind === "query") {
    add("Query", node.name);
    add("Results in topic", node.topic);
    add("Runs", node.running ? "yes" : "no: it has been registered, and no worker has begun it");
    add("Produces", perSecond(node.per_s), node.per_s);
    add("Results", count(node.results), node.results);
  } else if (column(node) === 0) {
    add(node.kind === "table" ? "Table" : "Stream", node.name);
    if (node.windows.length) add("Windows", node.windows.join(", "));
  } else {
    add("Operator", node.kind);
    add(node.shared ? "Shared by" : "Of", node.queries.join(", "));
    add("Share of a core", share(node.cores), node.cores);
    add("Comparisons", perSecond(node.comparisons_per_s), node.comparisons_per_s);
    add("State", `${bytes(node.state_bytes)}, ${count(node.state_tuples)} tuples`, node.state_bytes);
    if (node.memory) add("Memory budget", `${bytes(node.memory[0])} of ${bytes(node.memory[1])}`);
    if (node.owed) add("Pending on disk", `results of at most ${count(node.owed)} pairs`, node.owed);
  }
  return list;
}

const told = new Map();

// A promise about an operator, whose `text` are the words once it is fulfilled; asked for once per set of queries.
export function explainOperator(node) {
  const key = node.queries.join("\n");
  if (!told.has(key)) {
    const asked = fetch(`operator?query=${encodeURIComponent(node.queries[0])}`);
    const words = asked.then(async (answer) => { words.text = answer.ok ? (await answer.json()).text : ""; });
    told.set(key, words);
  }
  return told.get(key);
}
