// The timelines: one small chart per figure, with plan changes as marks on all of them.

import { bytes, count, duration, element, perSecond, share, time } from "./format.js";

const CHARTS = [
  { id: "rates", name: "Tuples read", of: (h) => h.inputs, show: perSecond },
  { id: "results", name: "Results", of: (h) => h.results, show: perSecond },
  { id: "lag", name: "Results behind the clock", of: (h) => h.cut.map((cut, n) => (cut > 0 && h.at_ms[n] - cut < 864e5 ? Math.max(h.at_ms[n] - cut, 0) : null)), show: duration },
  { id: "cores", name: "Cores", of: (h) => h.busy, show: share },
  { id: "state", name: "State", of: (h) => h.state_bytes, show: bytes },
  { id: "pending", name: "Tuples that wait", of: (h) => h.pending, show: count },
  { id: "owed", name: "Pairs pending on disk, at most", of: (h) => h.owed, show: count, hideZero: true },
  { id: "late", name: "Late tuples", of: (h) => h.late, show: perSecond, hideZero: true },
];

const SYNC = "weir";
const POWERS = Array.from({ length: 50 }, (_, n) => 2 ** n);

function colours() {
  const style = getComputedStyle(document.documentElement);
  const of = (name) => style.getPropertyValue(name).trim();
  return { ink: of("--soft"), grid: of("--line"), line: of("--link"), mark: of("--mark") };
}

export class Charts {
  constructor(place) {
    this.place = place;
    this.charts = new Map();
    this.marks = [];
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.clear());
    new ResizeObserver(() => {
      for (const { plot, box } of this.charts.values()) plot.setSize({ width: box.clientWidth - 16, height: 170 });
    }).observe(place);
  }

  clear() {
    for (const { plot, box } of this.charts.values()) { plot.destroy(); box.remove(); }
    this.charts.clear();
  }

  // marks: [[ms, text]]
  draw(history, range, marks) {
    this.marks = marks;
    const end = history.second.at(-1) ?? Date.now() / 1000;
    for (const chart of CHARTS) {
      const values = chart.of(history);
      if (chart.hideZero && !this.charts.has(chart.id) && !values.some((value) => value > 0)) continue;
      const known = this.charts.get(chart.id) ?? this.make(chart);
      known.plot.setData([history.second, values], false);
      known.plot.setScale("x", { min: end - range, max: end });
      const last = values.at(-1);
      known.now.textContent = `now ${chart.show(last)}, most ${chart.show(Math.max(0, ...values.filter((v, n) => v !== null && history.second[n] >= end - range)))}`;
    }
  }

  make(chart) {
    const box = element("div", null, { class: "chart", id: `chart-${chart.id}`, role: "group", "aria-label": chart.name });
    const now = element("p");
    box.append(element("h3", chart.name), now);
    this.place.append(box);
    const colour = colours();
    const axis = { stroke: colour.ink, grid: { stroke: colour.grid, width: 1 }, ticks: { stroke: colour.grid, width: 1 } };
    const plot = new uPlot({
      width: box.clientWidth - 16,
      height: 170,
      cursor: { sync: { key: SYNC }, drag: { x: false, y: false } },
      legend: { show: false },
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      axes: [
        { ...axis, values: (_, ticks) => ticks.map((tick) => time(tick * 1000).slice(11, 16)) },
        { ...axis, size: 76, values: (_, ticks) => ticks.map((tick) => chart.show(tick)), ...(chart.show === bytes ? { incrs: POWERS } : {}) },
      ],
      scales: { y: { range: (_, least, most) => [0, most > 0 ? most * 1.08 : 1] } },
      series: [{}, { stroke: colour.line, width: 2, points: { show: false }, spanGaps: false }],
      hooks: {
        setCursor: [(u) => {
          const n = u.cursor.idx;
          if (n !== null && n !== undefined && u.data[1][n] !== undefined) now.textContent = `${time(u.data[0][n] * 1000)}: ${chart.show(u.data[1][n])}`;
        }],
        draw: [(u) => {
          u.ctx.save();
          u.ctx.strokeStyle = colour.mark;
          u.ctx.setLineDash([4, 4]);
          for (const [ms] of this.marks) {
            const at = u.valToPos(ms / 1000, "x", true);
            if (at < u.bbox.left || at > u.bbox.left + u.bbox.width) continue;
            u.ctx.beginPath();
            u.ctx.moveTo(at, u.bbox.top);
            u.ctx.lineTo(at, u.bbox.top + u.bbox.height);
            u.ctx.stroke();
          }
          u.ctx.restore();
        }],
      },
    }, [[], []], box);
    const made = { plot, box, now };
    this.charts.set(chart.id, made);
    return made;
  }
}
