// What has happened to a query, as marks on the charts and as a list: failures, restarts, plan changes, decisions.

import { element, time } from "./format.js";

const MOST = 50;
const NEAR_PX = 8;
const LETTER_PX = 12, LETTER_ROWS = 3;

// Kinds differ by letter and line, not by colour alone.
const KINDS = {
  failure: { letter: "F", name: "Failure", dash: [], colour: "--ill" },
  restart: { letter: "R", name: "Restart", dash: [2, 3], colour: "--held" },
  silence: { letter: "S", name: "Silent input", dash: [5, 2], colour: "--held" },
  change: { letter: "P", name: "Plan change", dash: [8, 4], colour: "--mark" },
  made: { letter: "D", name: "Decision to change the plan", dash: [8, 3, 2, 3], colour: "--mark" },
  kept: { letter: "K", name: "Decision to keep the plan", dash: [1, 5], colour: "--soft", faint: true },
};

// [{ kind, text, ms, at }], newest first. Plan changes and decisions have an event time, `at`; they happened at the
// second of the wall clock in which results reached it: `ms`, null where that is not in the history.
export function happened(state, history) {
  const found = history.events.flat().map(([second, kind, text]) => ({ kind, text, ms: second * 1000, order: second * 1000 }));
  const place = (at, kind, text) => {
    const n = history.cut.findIndex((cut) => cut >= at);
    const ms = n > 0 ? history.second[n] * 1000 : null;
    found.push({ kind, text, ms, at, order: ms ?? (n < 0 ? Infinity : 0) });
  };
  for (const one of state.migrations) if (one.began) place(one.began, "change", `to ${one.to} by ${one.strategy}`);
  for (const one of state.decisions) {
    if (one.made) place(one.at, "made", `to ${one.to_plan} by ${one.strategy}: ${one.reason}`);
    else place(one.at, "kept", `${one.from_plan} instead of ${one.to_plan}: ${one.reason}`);
  }
  return found.sort((a, b) => b.order - a.order || (b.at ?? 0) - (a.at ?? 0));
}

const when = (mark) => (mark.ms === null ? `event time ${time(mark.at)}` : time(mark.ms));
export const sentence = (mark) => `${KINDS[mark.kind].letter} ${when(mark)} ${KINDS[mark.kind].name}: ${mark.text}`;

// Draws the marks in a chart of uPlot.
export function drawMarks(u, marks) {
  const style = getComputedStyle(document.documentElement), ratio = devicePixelRatio;
  u.ctx.save();
  u.ctx.font = `600 ${11 * ratio}px system-ui, sans-serif`;
  u.ctx.textAlign = "center";
  u.ctx.lineWidth = 1.5 * ratio;
  const free = Array(LETTER_ROWS).fill(Infinity); // in each row, where the last letter begins
  for (const mark of inRange(u, marks)) {
    const kind = KINDS[mark.kind], x = u.valToPos(mark.ms / 1000, "x", true);
    u.ctx.globalAlpha = kind.faint ? 0.6 : 1;
    u.ctx.strokeStyle = u.ctx.fillStyle = style.getPropertyValue(kind.colour).trim();
    u.ctx.setLineDash(kind.dash.map((length) => length * ratio));
    u.ctx.beginPath();
    u.ctx.moveTo(x, u.bbox.top);
    u.ctx.lineTo(x, u.bbox.top + u.bbox.height);
    u.ctx.stroke();
    const row = free.findIndex((begin) => begin - x >= LETTER_PX * ratio);
    if (row < 0) continue; // it is told when the mark is pointed at
    free[row] = x;
    u.ctx.fillText(kind.letter, x, u.bbox.top + (row * LETTER_PX - 3) * ratio);
  }
  u.ctx.restore();
}

// The marks that a chart shows, newest first.
export function inRange(u, marks) {
  const { min, max } = u.scales.x;
  return marks.filter((mark) => mark.ms !== null && mark.ms / 1000 >= min && mark.ms / 1000 <= max);
}

// Those of them that are near the cursor.
export function nearCursor(u, marks) {
  const left = u.cursor.left;
  if (left === undefined || left < 0) return [];
  return inRange(u, marks).filter((mark) => Math.abs(u.valToPos(mark.ms / 1000, "x") - left) <= NEAR_PX);
}

let listed = null;

export function showHappened(place, marks) {
  const some = marks.slice(0, MOST), key = some.map(sentence).join("\n");
  if (key === listed) return;
  listed = key;
  place.replaceChildren(...some.map((mark) => {
    const kind = KINDS[mark.kind];
    const item = element("li", null, { "data-kind": mark.kind });
    item.append(element("b", kind.letter), ` ${when(mark)} `, element("b", kind.name), `: ${mark.text}`);
    return item;
  }));
  if (!some.length) place.replaceChildren(element("li", "Nothing yet."));
}
