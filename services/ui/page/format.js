// Numbers for people. Every function takes null for "not known".

export function count(value) {
  if (value === null || value === undefined) return "–";
  for (const [limit, unit] of [[1e12, " T"], [1e9, " G"], [1e6, " M"], [1e3, " k"]]) {
    if (value >= 0.9995 * limit) return `${Number((value / limit).toPrecision(3))}${unit}`;
  }
  return String(Number(value.toPrecision(3)));
}

export const perSecond = (value) => (value === null || value === undefined ? "–" : `${count(value)}/s`);

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  for (const [power, unit] of [[40, "TiB"], [30, "GiB"], [20, "MiB"], [10, "KiB"]]) {
    if (value >= 2 ** power) return `${Number((value / 2 ** power).toPrecision(3))} ${unit}`;
  }
  return `${Math.round(value)} B`;
}

export function share(value) {
  if (value === null || value === undefined) return "–";
  return value > 0 && value < 0.005 ? "<1 %" : `${Math.round(value * 100)} %`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(Math.max(ms, 0))} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

// Times are UTC, as everywhere in Weir. 2^63 - 1 is the end of a source.
export function time(ms) {
  if (!ms) return "–";
  if (ms > 8e15) return "the end";
  return new Date(ms).toISOString().replace("T", " ").replace(/\.\d+Z$/, "");
}

export const short = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// An element with text; nothing is ever parsed as HTML.
export function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== null && text !== undefined) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}
