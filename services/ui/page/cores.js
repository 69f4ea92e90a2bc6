// The cores that joins take over time, as the lines of one chart: the largest joins, and the others together.

const MOST = 6;

// The line of each join, by the join's key: a join keeps its line while it is among the largest.
const slots = Array(MOST).fill(null);
const names = new Map();

// [{ name, values }]: MOST lines and one of the others. Rows of `history.joins` are lists of a join's key, its cores,
// and where the server begins its name. A join without a key stands for those that the server does not name.
export function joinLines(history, begin) {
  const totals = new Map();
  history.joins.forEach((row, n) => {
    for (const [key, cores, name] of row) {
      if (name !== undefined) names.set(key, name);
      if (key && history.second[n] >= begin) totals.set(key, (totals.get(key) ?? 0) + cores);
    }
  });
  const largest = new Set([...totals].sort((a, b) => b[1] - a[1]).slice(0, MOST).map(([key]) => key));
  slots.forEach((key, n) => { if (!largest.has(key)) slots[n] = null; });
  for (const key of largest) if (!slots.includes(key)) slots[slots.indexOf(null)] = key;
  const place = new Map(slots.map((key, n) => [key, n]));
  const lines = Array.from({ length: MOST + 1 }, () => Array(history.second.length).fill(null));
  history.joins.forEach((row, n) => {
    for (const [key, cores] of row) {
      const line = lines[place.get(key) ?? MOST];
      line[n] = (line[n] ?? 0) + cores;
    }
  });
  return lines.map((values, n) => ({ name: n === MOST ? "others" : names.get(slots[n]) ?? "", values }));
}
