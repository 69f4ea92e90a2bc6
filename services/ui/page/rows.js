// The last results, late records and dead letters, read from their topics while they are on the screen.

import { copy } from "./clipboard.js";
import { bytes, count, element, time } from "./format.js";

const EVERY_MS = 5000;
const SAID_MS = 4000;
const KINDS = [["results", "Results"], ["late", "Late"], ["dead", "Dead letters"]];
const LONG = 160;
const REASONS = new Map([
  ["late", "late: behind the watermark of its partition"],
  ["idle", "idle: behind results that went on while its partition was silent"],
]);

const whereOf = (row) => `${row.topic}[${row.partition}]@${row.offset}`;

function originOf({ stream, topic, partition, offset }) {
  return `${stream ? `${stream}: ` : ""}${topic}${partition === null ? "" : `[${partition}]@${offset}`}`;
}

function setText(place, text) {
  if (place.textContent !== text) place.textContent = text;
}

// A text that is short at first where it is long.
function longText(text) {
  const shown = element("span", text, { class: "text" });
  if (text.length <= LONG && text.split("\n").length <= 3) return [shown];
  shown.classList.add("folded");
  const more = element("button", "More", { type: "button", "aria-expanded": "false" });
  more.addEventListener("click", () => {
    const open = !shown.classList.toggle("folded");
    more.setAttribute("aria-expanded", String(open));
    more.textContent = open ? "Less" : "More";
  });
  return [shown, more];
}

function valueOf(name, value) {
  const box = element("div");
  if (value === null) {
    box.append(element("small", name ? `${name}: none` : "no value"));
    return box;
  }
  const about = [name, value.hex ? "in hexadecimal" : "", value.cut ? `the first part of ${bytes(value.bytes)}` : ""].filter(Boolean).join(", ");
  if (about) box.append(element("small", about, { title: `${value.bytes} bytes` }));
  box.append(...longText(value.text));
  return box;
}

export class Rows {
  constructor(place) {
    this.kind = "results";
    this.query = ""; // whose results; empty where there is one query only
    this.found = new Map();
    this.asked = 0;
    this.askedAt = 0;
    this.waits = false;
    this.onScreen = false;
    this.build(place);
    new IntersectionObserver((seen) => {
      this.onScreen = seen.at(-1).isIntersecting;
      this.refresh();
    }).observe(place);
    document.addEventListener("visibilitychange", () => this.refresh());
    setInterval(() => this.refresh(), 1000);
  }

  build(place) {
    const bar = element("div", null, { class: "rows-bar" });
    const list = element("div", null, { role: "tablist", "aria-label": "Kind of records" });
    this.tabs = KINDS.map(([kind, name]) => {
      const tab = element("button", name, { type: "button", role: "tab", id: `rows-${kind}`, "aria-controls": "rows-panel" });
      tab.addEventListener("click", () => this.select(kind));
      return tab;
    });
    list.append(...this.tabs);
    list.addEventListener("keydown", (event) => {
      const last = KINDS.length - 1, at = KINDS.findIndex(([kind]) => kind === this.kind);
      const to = { ArrowLeft: at ? at - 1 : last, ArrowRight: at < last ? at + 1 : 0, Home: 0, End: last }[event.key];
      if (to === undefined) return;
      event.preventDefault();
      this.select(KINDS[to][0]);
      this.tabs[to].focus();
    });
    const again = element("button", "Refresh", { type: "button" });
    again.addEventListener("click", async () => {
      await this.load();
      this.say(this.note.textContent);
    });
    this.said = element("p", null, { role: "status" });
    this.chooser = element("span", null, { hidden: "" });
    this.queries = element("select", null, { id: "rows-query" });
    this.queries.addEventListener("change", () => this.choose(this.queries.value));
    this.chooser.append(element("label", "of query", { for: "rows-query" }), " ", this.queries);
    bar.append(list, this.chooser, again, this.said);
    this.note = element("p", null, { class: "hint" });
    this.panel = element("div", null, { role: "tabpanel", id: "rows-panel", tabindex: "0" });
    this.head = element("thead");
    this.body = element("tbody");
    const table = element("table");
    table.append(this.head, this.body);
    this.panel.append(table);
    place.replaceChildren(bar, this.note, this.panel);
    this.showTab();
  }

  // Says in the tabs how many late records and dead letters the tasks have found.
  count(tasks) {
    const sum = (of) => tasks.reduce((sum, task) => sum + (of(task) ?? 0), 0);
    const found = [0, sum((task) => task.late), sum((task) => task.dead_letters)];
    this.tabs.forEach((tab, n) => setText(tab, found[n] ? `${KINDS[n][1]} (${count(found[n])})` : KINDS[n][1]));
  }

  // The names of a group's queries, whose results are shown one query at a time.
  offer(names) {
    const offered = [...this.queries.options].map((option) => option.value);
    if (names.join("\n") === offered.join("\n")) return;
    this.queries.replaceChildren(...names.map((name) => element("option", name, { value: name })));
    this.choose(names.includes(this.query) ? this.query : names[0] ?? "");
  }

  choose(query) {
    const changed = query !== this.query;
    this.queries.value = this.query = query;
    this.chooser.hidden = !query || this.kind !== "results";
    if (!changed || this.kind !== "results") return;
    this.showTab();
    if (this.askedAt) this.load();
  }

  // What was read, by what was asked for.
  asks() {
    return new URLSearchParams({ kind: this.kind, ...(this.kind === "results" && this.query ? { query: this.query } : {}) }).toString();
  }

  say(text) {
    this.said.textContent = text;
    clearTimeout(this.saying);
    this.saying = setTimeout(() => { this.said.textContent = ""; }, SAID_MS);
  }

  // By itself: not sooner than a while after the last time, and only for somebody who looks.
  refresh() {
    const due = Date.now() - this.askedAt >= EVERY_MS;
    if (due && this.onScreen && document.visibilityState === "visible" && !this.waits) this.load();
  }

  async load() {
    const asked = ++this.asked;
    this.askedAt = Date.now();
    this.waits = true;
    let found = null, problem = "";
    const asks = this.asks();
    try {
      const answer = await fetch(`rows?${asks}`);
      if (answer.ok) found = await answer.json();
      else problem = (await answer.text()).trim();
    } catch (error) {
      problem = error.message;
    }
    if (asked !== this.asked) return; // something else was chosen meanwhile
    this.waits = false;
    if (found) {
      this.found.set(asks, found);
      this.show(found);
    } else {
      setText(this.note, `The records could not be read: ${problem}`);
    }
  }

  select(kind) {
    if (kind === this.kind) return;
    this.kind = kind;
    this.showTab();
    this.load();
  }

  showTab() {
    this.tabs.forEach((tab, n) => {
      const chosen = KINDS[n][0] === this.kind;
      tab.setAttribute("aria-selected", String(chosen));
      tab.tabIndex = chosen ? 0 : -1;
    });
    this.panel.setAttribute("aria-labelledby", `rows-${this.kind}`);
    this.chooser.hidden = !this.query || this.kind !== "results";
    const row = element("tr");
    for (const name of this.columns()) row.append(element("th", name, { scope: "col", class: name.toLowerCase() }));
    this.head.replaceChildren(row);
    this.body.replaceChildren();
    this.panel.scrollTop = 0;
    const found = this.found.get(this.asks());
    if (found) this.show(found);
    else setText(this.note, "Reading …");
  }

  columns() {
    return ["Time", "Record", ...(this.kind === "results" ? [] : ["Reason"]), "Value", "Copy"];
  }

  show(found) {
    const { rows, topic, hidden, complete, note } = found;
    const told = [note || (rows.length ? `The newest ${rows.length} of topic ${topic}.` : `Topic ${topic} has no records.`)];
    if (hidden) told.push("Values and keys are hidden by --hide-values.");
    if (!complete && !note) told.push("Not all was read in time: newer ones may be missing.");
    setText(this.note, told.join(" "));
    this.panel.hidden = !rows.length;
    const anchor = this.anchor(), before = anchor?.offsetTop;
    const focused = this.body.contains(document.activeElement);
    this.place(rows, hidden);
    if (anchor?.isConnected) this.panel.scrollTop += anchor.offsetTop - before;
    if (focused && !this.body.contains(document.activeElement)) this.panel.focus({ preventScroll: true });
  }

  // The row that somebody looks at, which stays where it is.
  anchor() {
    const used = this.body.querySelector("tr:focus-within, tr:hover");
    if (used || !this.panel.scrollTop) return used;
    const top = this.panel.getBoundingClientRect().top;
    return [...this.body.rows].find((row) => row.getBoundingClientRect().bottom > top);
  }

  // Rows that are there already are not touched: they may be unfolded, selected or have the focus.
  place(rows, hidden) {
    const there = new Map([...this.body.rows].map((made) => [made.dataset.row, made]));
    const wanted = new Set(rows.map(whereOf));
    for (const [where, made] of there) if (!wanted.has(where)) made.remove();
    let next = this.body.firstElementChild;
    for (const row of rows) {
      const made = there.get(whereOf(row)) ?? this.make(row, hidden);
      if (made === next) next = next.nextElementSibling;
      else this.body.insertBefore(made, next);
    }
  }

  make(row, hidden) {
    const where = whereOf(row);
    const button = element("button", "Copy", { type: "button", "aria-label": `Copy ${where}` });
    button.addEventListener("click", async () => {
      try {
        await copy(row.value ? `${where} ${row.value.text}` : where);
        this.say(`Copied ${where}`);
      } catch (error) {
        this.say(`Not copied: ${error.message}`);
      }
    });
    const cells = {
      Time: [element("span", time(row.time), { title: `${row.time} ms` })],
      Record: [where, ...(row.origin ? [element("small", `from ${originOf(row.origin)}`)] : [])],
      Reason: [REASONS.get(row.reason) ?? row.reason ?? ""],
      Value: hidden ? [element("small", "hidden by --hide-values")] : [
        ...(row.key ? [valueOf("key", row.key)] : []),
        ...(row.headers ?? []).map(({ name, value: text }) => valueOf(`header ${name}`, text)),
        valueOf("", row.value),
      ],
      Copy: [button],
    };
    const made = element("tr", null, { "data-row": where });
    for (const name of this.columns()) {
      const cell = element("td", null, { class: name.toLowerCase(), "data-name": name });
      cell.append(...cells[name]);
      made.append(cell);
    }
    return made;
  }
}
