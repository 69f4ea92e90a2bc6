// Draws a join tree: sources at the left, the result at the right.

import { bytes, count, duration, element, perSecond, share, short } from "./format.js";
import { addFeedback, addStates, feedbackMark, incomplete, progress, spokenFeedback } from "./joins.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 204, HEIGHT = 66, GAP_X = 56, GAP_Y = 18, PAD = 14;

export function svg(name, attributes = {}, text = null) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== null) made.textContent = text;
  return made;
}

const lookups = (node) => node.lookups ?? [];

// Columns by the height of a node above its leaves, rows by its leaves. Tables in which a source's tuples are looked up
// are in a column before it.
function layout(nodes) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const places = new Map();
  const first = nodes.some((node) => lookups(node).length) ? 1 : 0;
  let row = 0;
  const order = [];
  const stack = [[nodes[0].id, false]];
  while (stack.length) {
    const [id, done] = stack.pop();
    const node = byId.get(id);
    if (!node.left) {
      const tables = Math.max(lookups(node).length, 1);
      places.set(id, { column: first, row: row + (tables - 1) / 2, top: row });
      row += tables;
      order.push(id);
    } else if (done) {
      const left = places.get(node.left), right = places.get(node.right);
      places.set(id, { column: Math.max(left.column, right.column) + 1, row: (left.row + right.row) / 2 });
      order.push(id);
    } else {
      stack.push([id, true], [node.right, false], [node.left, false]);
    }
  }
  return { byId, places, order, rows: row, columns: places.get(nodes[0].id).column + 1 };
}

const x = (place) => PAD + place.column * (WIDTH + GAP_X);
const y = (place) => PAD + place.row * (HEIGHT + GAP_Y);
const width = (rate) => (rate > 0 ? Math.min(1 + Math.log10(1 + rate) * 2, 14) : 1);

// A line as wide as its tuples per second.
export function edge(fromX, fromY, toX, toY, rate) {
  const bend = (toX - fromX) / 2;
  return svg("path", { class: "edge", d: `M${fromX},${fromY} C${fromX + bend},${fromY} ${toX - bend},${toY} ${toX},${toY}`, "stroke-width": width(rate) });
}

// A marked line of a node, made narrower where it is longer than the node is wide.
function marked(text) {
  return svg("text", { x: 10, y: 56, class: "off", ...(text.length > 25 ? { textLength: WIDTH - 20, lengthAdjust: "spacingAndGlyphs" } : {}) }, text);
}

const known = (value) => value !== null && value !== undefined;

// A measured figure; an expected one, with a ~, where nothing is measured.
const figure = (measured, expected, show) => (known(measured) || !known(expected) ? show(measured) : `~${show(expected)}`);
const rate = (node) => figure(node.per_s, node.expected_per_s, perSecond);
const alive = (node) => `${figure(node.alive, node.expected_alive, count)} alive`;

// The partitions for which results wait: [[number, seconds]].
const silent = (node) => (node.silent?.length ? `partition ${node.silent.map(([number]) => number).join(", ")} silent` : "");

const hot = ({ column, value, share: part }) => `${column} = ${value}: ${share(part)}`;

function title(node, most) {
  if (node.left) return short(`${node.kind} ${node.id}`, most);
  return short(node.stream === node.id ? node.id : `${node.stream} ${node.id}`, most);
}

// A bar for each state of a join whose states are not complete; dashed where it is not known how complete one is.
function bars(node) {
  const long = WIDTH / 2 - 14;
  return node.completed.flatMap((part, n) => {
    const at = { x: 10 + n * (long + 8), y: HEIGHT - 6, height: 3 };
    const whole = svg("rect", { class: part === null ? "whole unknown" : "whole", width: long, ...at });
    return part === null ? [whole] : [whole, svg("rect", { class: "done", width: long * part, ...at })];
  });
}

export function describe(node) {
  const hottest = node.hot_keys?.length ? `, hot key ${hot(node.hot_keys[0])}` : "";
  const looked = lookups(node).map(({ by }) => `, ${by}`).join("") + (silent(node) ? `, results wait: ${silent(node)}` : "");
  if (!node.left) return `${node.kind} ${node.stream} as ${node.id} ${node.window}: ${rate(node)}, ${alive(node)}${looked}${hottest}${spokenFeedback(node)}`;
  if (!known(node.per_s)) return `${node.kind} ${node.id}: ${rate(node)}, ${alive(node)}`;
  const off = node.off ? `, ${factor(node.off)}` : "";
  const lacks = incomplete(node) ? `, states so far: ${progress(node)}` : "";
  return `${node.kind} ${node.id}: ${perSecond(node.per_s)}${off}, ${share(node.cores)} of a core, ${bytes(sum(node.state_bytes))} of state${lacks}${spokenFeedback(node)}`;
}

const sum = (pair) => (pair ? pair[0] + pair[1] : null);
const factor = (off) => (off >= 1 ? `${count(off)} × what was expected` : `1/${count(1 / off)} of what was expected`);

// The tables of a source, each with a line to it. What they are is said with the source.
function drawTables(node, place) {
  return lookups(node).flatMap(({ table, alias, by }, n) => {
    const at = { column: place.column - 1, row: place.top + n };
    const group = svg("g", { class: "looked-up", "aria-hidden": "true", transform: `translate(${x(at)},${y(at)})` });
    group.append(svg("title", {}, by));
    group.append(svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 6 }));
    group.append(svg("text", { x: 10, y: 20 }, short(table === alias ? table : `${table} ${alias}`, 22)));
    group.append(svg("text", { x: 10, y: 38, class: "small" }, "table of changing rows"));
    return [edge(x(at) + WIDTH, y(at) + HEIGHT / 2, x(place), y(place) + HEIGHT / 2, 0), group];
  });
}

export function drawPlan(plan, selected, select) {
  const { byId, places, order, rows, columns } = layout(plan.nodes);
  const wide = 2 * PAD + columns * WIDTH + (columns - 1) * GAP_X + 40;
  const high = 2 * PAD + rows * HEIGHT + (rows - 1) * GAP_Y;
  const drawing = svg("svg", { width: wide, height: high, viewBox: `0 0 ${wide} ${high}`, role: "group", "aria-label": `Plan ${plan.text}` });
  for (const id of order) {
    const node = byId.get(id), place = places.get(id);
    const parent = plan.nodes.find((one) => one.left === id || one.right === id);
    const fromX = x(place) + WIDTH, fromY = y(place) + HEIGHT / 2;
    const toX = parent ? x(places.get(parent.id)) : fromX + 36;
    const toY = parent ? y(places.get(parent.id)) + HEIGHT / 2 + (parent.left === id ? -12 : 12) : fromY;
    drawing.append(edge(fromX, fromY, toX, toY, node.per_s ?? node.expected_per_s), ...drawTables(node, place));
  }
  for (const id of order) {
    const node = byId.get(id), place = places.get(id);
    const group = svg("g", { class: "node", tabindex: 0, role: "button", "aria-label": describe(node), "aria-pressed": id === selected, "data-id": id, transform: `translate(${x(place)},${y(place)})` });
    group.append(svg("rect", { class: "box", width: WIDTH, height: HEIGHT, rx: 6 }));
    if (node.left) group.append(svg("rect", { class: "heat", width: WIDTH, height: HEIGHT, rx: 6, "fill-opacity": Math.min(node.cores || 0, 1) * 0.75 }));
    const mark = feedbackMark(node);
    group.append(svg("text", { x: 10, y: 20 }, title(node, mark ? 16 : 26)));
    if (mark) group.append(svg("text", { x: WIDTH - 10, y: 20, class: "small", "text-anchor": "end" }, mark));
    group.append(svg("text", { x: 10, y: 38, class: "small" }, known(node.cores) ? `${rate(node)} · ${share(node.cores)} of a core` : short(`${rate(node)} ${node.window ?? ""}`, 28)));
    if (incomplete(node)) group.append(svg("text", { x: 10, y: 55, class: "off" }, `◐ ${progress(node)}`), ...bars(node));
    else if (silent(node)) group.append(marked(short(`▲ ${silent(node)}`, 31)));
    else if (node.hot_keys?.length) group.append(marked(short(`▲ hot key ${hot(node.hot_keys[0])}`, 31)));
    else if (node.off) group.append(marked(short(`▲ ${factor(node.off)}`, 30)));
    else group.append(svg("text", { x: 10, y: 56, class: "small" }, node.state_bytes ? `${bytes(sum(node.state_bytes))} state` : alive(node)));
    const choose = () => select(id);
    group.addEventListener("click", choose);
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(); }
    });
    drawing.append(group);
  }
  return drawing;
}

// The figures of one node, exact ones as titles.
export function nodeCard(node) {
  const list = element("dl");
  const add = (name, value, exact) => {
    if (value === null || value === undefined) return;
    list.append(element("dt", name), element("dd", value, exact === undefined ? {} : { title: String(exact) }));
  };
  add(node.left ? "Operator" : node.kind === "table" ? "Table" : "Source", node.left ? `${node.kind} ${node.id}` : `${node.stream} ${node.id} ${node.window}`);
  for (const line of node.conditions) add("Condition", line);
  for (const { by } of lookups(node)) add("Looks up", by.replace(/^look up /, ""));
  if (known(node.per_s)) add("Produces", perSecond(node.per_s), node.per_s);
  if (node.expected_per_s !== null) add("Expected", perSecond(node.expected_per_s) + (node.off ? `: it is ${factor(node.off)}` : ""), node.expected_per_s);
  if (known(node.alive)) add("Alive", `${count(node.alive)} tuples`, node.alive);
  else if (known(node.expected_alive)) add("Alive, expected", `${count(node.expected_alive)} tuples`, node.expected_alive);
  for (const [number, seconds] of node.silent ?? []) add("Results wait for", `partition ${number}, silent for ${duration(seconds * 1000)}`, seconds);
  for (const key of node.hot_keys ?? []) add("Hot key", `${hot(key)} of the living tuples`, key.share);
  addFeedback(add, node);
  if (!node.left) { if (known(node.tuples)) add("Processed", `${count(node.tuples)} tuples`, node.tuples); return list; }
  if (node.state_bytes) {
    add("Takes in", `${perSecond(node.inputs_per_s[0])} left, ${perSecond(node.inputs_per_s[1])} right`);
    if (node.selectivity !== null) add("Selectivity", node.selectivity.toPrecision(3), node.selectivity);
    add("Share of a core, about", share(node.cores), node.cores);
    add("State", `${bytes(node.state_bytes[0])} left, ${bytes(node.state_bytes[1])} right; ${count(node.state_tuples[0])} and ${count(node.state_tuples[1])} tuples`);
    addStates(add, node);
  }
  return list;
}

