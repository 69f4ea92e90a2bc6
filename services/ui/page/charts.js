// The timelines: one small chart per figure, with what happened as marks on all of them.

import { joinLines } from "./cores.js";
import { bytes, count, duration, element, perSecond, share, short, time } from "./format.js";
import { drawMarks, inRange, nearCursor, sentence } from "./marks.js";
import { svg } from "./plan.js";

const one = (of) => (h) => [{ name: "", values: of(h) }];

// lines: of the history and the first second shown, the chart's lines: [{ name, values }], always as many.
const CHARTS = [
  { id: "rates", name: "Tuples read", lines: one((h) => h.inputs), show: perSecond },
  { id: "results", name: "Results", lines: one((h) => h.results), show: perSecond },
  { id: "lag", name: "Results behind the clock", lines: one((h) => h.cut.map((cut, n) => (cut > 0 && h.at_ms[n] - cut < 864e5 ? Math.max(h.at_ms[n] - cut, 0) : null))), show: duration, p99: true },
  { id: "commits", name: "Epochs delivered", lines: one((h) => h.commits), show: perSecond, hideZero: true },
  { id: "commit", name: "Delivery of an epoch takes", lines: one((h) => h.commits.map((n, k) => (n > 0 ? h.commit_s[k] / n * 1000 : null))), show: duration, hideZero: true },
  { id: "cores", name: "Cores", lines: one((h) => h.busy), show: share },
  { id: "joins", name: "Cores by join, about", lines: joinLines, show: share, hideZero: true, absent: 0 },
  { id: "state", name: "State", lines: one((h) => h.state_bytes), show: bytes },
  { id: "memory", name: "Memory and its budget", lines: (h) => [{ name: "used", values: h.memory_bytes }, { name: "budget", values: h.budget_bytes }], show: bytes, hideZero: true },
  { id: "pending", name: "Tuples read and not yet processed", lines: one((h) => h.pending), show: count },
  { id: "owed", name: "Spilled pairs that are still to be joined, at most", lines: one((h) => h.owed), show: count, hideZero: true },
  { id: "late", name: "Late tuples", lines: one((h) => h.late), show: perSecond, hideZero: true },
];

const LEAST_S = 60;
const STUCK_S = 5;
const SYNC = "weir";
const HEIGHT = 170;
const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);
const DASHES = [[], [8, 4], [2, 3], [8, 3, 2, 3], [14, 3], [4, 4], [1, 4]];
const MARKS_TOLD = 3;

// The second since which no result is final; Infinity while some become so.
function stuckSince({ second, cut }) {
  let n = cut.length - 1;
  while (n > 0 && cut[n - 1] === cut.at(-1)) n -= 1;
  return second.at(-1) - second[n] > STUCK_S ? second[n] : Infinity;
}

// The value of now, and what the values of the time shown are usually and at most. What is usual is not looked for in
// the time in which nothing becomes final.
function summary(chart, seconds, values, stuck) {
  const known = values.map((value, k) => [seconds[k], value]).filter(([, value]) => value !== null);
  const good = known.filter(([second]) => second < stuck);
  const sorted = Float64Array.from((good.length ? good : known).map(([, value]) => value)).sort();
  if (!sorted.length) return `now ${chart.show(values.at(-1))}`;
  const of = (part) => chart.show(sorted[Math.min(Math.floor(part * sorted.length), sorted.length - 1)]);
  const most = known.reduce((most, [, value]) => Math.max(most, value), 0);
  const usual = `usually${good.length && stuck < Infinity ? ` until ${time(stuck * 1000).slice(11)}` : ""}`;
  return `now ${chart.show(values.at(-1))}, ${usual} ${of(0.5)}${chart.p99 ? ` (p99 ${of(0.99)})` : ""}, at most ${chart.show(most)}`;
}

// Shares on an axis, where steps may be smaller than a percent.
const fineShare = (value) => `${Number((value * 100).toPrecision(3))} %`;

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--soft"), grid: of("--line"), lines: DASHES.map((_, n) => of(`--line-${n}`)) };
}

export class Charts {
  constructor(place) {
    this.place = place;
    this.charts = new Map();
    this.marks = [];
    this.stuck = Infinity;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.clear());
    new ResizeObserver(() => {
      for (const { plot, box } of this.charts.values()) plot.setSize({ width: box.clientWidth - 16, height: HEIGHT });
    }).observe(place);
  }

  clear() {
    for (const { plot, box } of this.charts.values()) { plot.destroy(); box.remove(); }
    this.charts.clear();
  }

  // marks: of `happened`.
  draw(history, range, marks) {
    this.marks = marks;
    this.stuck = stuckSince(history);
    const end = history.second.at(-1) ?? Date.now() / 1000;
    // A history that is shorter than the range fills the chart.
    const begin = Math.max(end - range, Math.min(history.second[0] ?? end, end - LEAST_S));
    for (const chart of CHARTS) {
      const lines = chart.lines(history, begin);
      if (chart.hideZero && !this.charts.has(chart.id) && !lines.some(({ values }) => values.some((value) => value > 0))) continue;
      const known = this.charts.get(chart.id) ?? this.make(chart, lines);
      known.lines = lines;
      known.plot.setData([history.second, ...lines.map(({ values }) => values)], false);
      known.plot.setScale("x", { min: begin, max: end });
      this.say(known);
    }
  }

  // The values at the cursor; without one those of now.
  say({ chart, plot, now, key, lines }) {
    const [seconds, ...values] = plot.data, n = plot.cursor.idx;
    const at = n !== null && n !== undefined && seconds[n] !== undefined ? n : null;
    if (key) {
      now.textContent = at === null ? "now" : time(seconds[at] * 1000);
      key.forEach(({ item, name, value }, k) => {
        const found = values[k].at(at ?? -1);
        item.hidden = !lines[k].name || !values[k].some((one) => one !== null);
        name.textContent = short(lines[k].name, 26);
        name.title = lines[k].name;
        value.textContent = ` ${chart.show(chart.absent === undefined ? found : found ?? chart.absent)}`;
      });
    } else if (at !== null) {
      now.textContent = `${time(seconds[at] * 1000)}: ${chart.show(values[0][at])}`;
    } else {
      const from = seconds.findIndex((second) => second >= plot.scales.x.min);
      now.textContent = summary(chart, seconds.slice(from), values[0].slice(from), this.stuck);
    }
  }

  make(chart, lines) {
    const box = element("div", null, { class: "chart", id: `chart-${chart.id}`, role: "group", "aria-label": chart.name, tabindex: 0 });
    const now = element("p"), said = element("div", null, { class: "said", role: "status", hidden: "" });
    box.append(element("h3", chart.name), now);
    this.place.append(box);
    const colour = colours();
    const axis = { stroke: colour.ink, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1 } };
    const made = { chart, plot: null, box, now, said, lines, key: null, told: 0 };
    made.plot = new uPlot({
      width: box.clientWidth - 16,
      height: HEIGHT,
      cursor: { sync: { key: SYNC }, drag: { x: false, y: false } },
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [
        { ...axis, space: 72, values: (_, ticks) => ticks.map((tick) => time(tick * 1000).slice(11, ticks[1] - ticks[0] < 60 ? 19 : 16)) },
        { ...axis, size: 76, values: (_, ticks) => ticks.map(chart.show === share ? fineShare : chart.show), ...(chart.show === bytes ? { incrs: POWERS } : {}) },
      ],
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
      series: [{}, ...lines.map((_, n) => ({ stroke: colour.lines[n], dash: DASHES[n], width: 2, points: { show: false }, spanGaps: false }))],
      hooks: {
        setCursor: [() => { if (made.plot) { this.say(made); this.tellNear(made); } }],
        draw: [(u) => drawMarks(u, this.marks)],
      },
    }, [[], ...lines.map(() => [])], box);
    if (lines.length > 1) made.key = legend(box, lines.length);
    box.append(said);
    box.addEventListener("focus", () => { if (box.matches(":focus-visible")) this.step(made, 0); });
    box.addEventListener("blur", () => { said.hidden = true; });
    box.addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      event.preventDefault();
      this.step(made, made.told + (event.key === "ArrowLeft" ? 1 : -1));
    });
    this.charts.set(chart.id, made);
    return made;
  }

  // Tells the marks near the cursor of a chart that the mouse is over.
  tellNear({ plot, box, said }) {
    if (box.matches(":focus-visible")) return;
    const near = box.matches(":hover") ? nearCursor(plot, this.marks) : [];
    said.hidden = !near.length;
    said.textContent = near.slice(0, MARKS_TOLD).map(sentence).join("\n");
  }

  // Tells one of the marks of a chart that has the focus: 0 is the newest one.
  step(known, number) {
    const marks = inRange(known.plot, this.marks);
    known.told = Math.min(Math.max(number, 0), Math.max(marks.length - 1, 0));
    known.said.hidden = !marks.length;
    if (marks.length) known.said.textContent = `${sentence(marks[known.told])} (${known.told + 1} of ${marks.length}; arrow keys show others)`;
  }
}

// A list of the chart's lines, with a sample of each.
function legend(box, length) {
  const list = element("ul", null, { class: "key" });
  box.append(list);
  return Array.from({ length }, (_, n) => {
    const item = element("li"), name = element("span"), value = element("span");
    const sample = svg("svg", { width: 28, height: 8, "aria-hidden": "true" });
    sample.append(svg("line", { class: `line-${n}`, x1: 0, x2: 28, y1: 4, y2: 4, "stroke-width": 2, "stroke-dasharray": DASHES[n].join(" ") || "none" }));
    item.append(sample, name, value);
    list.append(item);
    return { item, name, value };
  });
}
