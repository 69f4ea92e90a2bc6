// Compares the running plan with others, when somebody asks: their predicted work, and how to change to the best one.

import { copy } from "./clipboard.js";
import { count, duration, element, perSecond, share, time } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const BAR = 96;
const FEW_JOINS = 4;

const percent = (value) => `${count(value * 100)}\u00a0%`;

function bar(part) {
  const drawing = document.createElementNS(SVG, "svg"), box = document.createElementNS(SVG, "rect");
  for (const [key, value] of Object.entries({ class: "bar", width: BAR, height: 10, "aria-hidden": "true" })) drawing.setAttribute(key, String(value));
  for (const [key, value] of Object.entries({ width: Math.max(part * BAR, 1), height: 10 })) box.setAttribute(key, String(value));
  drawing.append(box);
  return drawing;
}

function planCell(row) {
  const cell = element("th", null, { scope: "row", class: "words" });
  const marks = [[row.running, "Runs now"], [row.former, "Ran before"], [row.best, "Best found"], [row.asked, "Yours"]];
  cell.append(...marks.filter(([is]) => is).flatMap(([, word]) => [element("strong", word, { class: "mark" }), " "]), element("code", row.plan));
  return cell;
}

function joinsCell(row) {
  const cell = element("td", null, { class: "words" });
  const all = element("details", null, row.joins.length > FEW_JOINS ? {} : { open: "" });
  all.append(element("summary", `${row.joins.length} joins`));
  for (const { join, per_s } of row.joins) all.append(element("div", `${join} ${perSecond(per_s)}`, { title: String(per_s) }));
  cell.append(all);
  return cell;
}

function table(plans) {
  const made = element("table"), top = element("thead"), body = element("tbody"), head = element("tr");
  for (const [name, kind] of [["Plan", "words"], ["Predicted work"], ["Predicted share of a core"], ["Expected of its joins", "words"]]) {
    head.append(element("th", name, { scope: "col", ...(kind ? { class: kind } : {}) }));
  }
  const most = Math.max(...plans.map((row) => row.relative));
  for (const row of plans) {
    const line = element("tr"), work = element("td", null, { title: String(row.relative) });
    work.append(bar(row.relative / most), " ", element("span", `${count(row.relative)} × now`, { class: "times" }));
    line.append(planCell(row), work, element("td", percent(row.cores), { title: String(row.cores) }), joinsCell(row));
    body.append(line);
  }
  top.append(head);
  made.append(top, body);
  return made;
}

async function copyOrSelect(text, place, said) {
  try {
    await copy(text);
    said.textContent = "Copied.";
  } catch {
    getSelection().selectAllChildren(place);
    said.textContent = "The browser does not let this page copy. The command is selected: copy it yourself.";
  }
}

function change(found) {
  if (!found) return [element("p", "The running plan is the best one found.")];
  const text = element("p");
  text.append(element("code", found.plan), ` would save ${share(found.saving)} of the work${found.certain === false ? ", which is within the error of the estimates" : ""}.`);
  if (found.strategy) text.append(` The change by ${found.strategy} would hold results up for about ${duration(found.silence_s * 1000)} and take ${duration(found.work_s * 1000)} of work (${found.reason}).`);
  const command = element("pre", found.command, { tabindex: "0", "aria-label": "Command" });
  const button = element("button", "Copy", { type: "button", "aria-label": "Copy the command" }), said = element("span", null, { role: "status" });
  button.addEventListener("click", () => copyOrSelect(found.command, command, said));
  const line = element("p");
  line.append(button, " ", said);
  return [text, element("p", "To change to it:"), command, line];
}

export class WhatIf {
  constructor(place) {
    this.turn = 0;
    this.plan = "";
    this.measured = "";
    this.button = element("button", "Compare plans", { type: "button" });
    this.said = element("p", null, { role: "status", class: "hint" });
    this.table = element("div", null, { class: "wide", role: "group", tabindex: "0", "aria-label": "Plans compared" });
    this.change = element("div");
    this.input = element("input", null, { id: "what-if-plan", type: "text", autocomplete: "off", spellcheck: "false", "aria-describedby": "what-if-wrong" });
    this.wrong = element("pre", null, { id: "what-if-wrong", role: "alert", tabindex: "0" });
    const label = element("label", "A plan of your own ", { for: "what-if-plan" });
    const form = element("form"), line = element("div", null, { class: "ask" });
    line.append(this.input, element("button", "Predict its work"));
    form.append(label, line, this.wrong);
    this.found = element("div", null, { hidden: "" });
    this.found.append(this.table, this.change, form);
    place.append(this.button, this.said, this.found);
    this.button.addEventListener("click", () => this.ask(this.plan));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(this.input.value.trim());
    });
  }

  // Asks the server; an answer that a later one has overtaken is not shown.
  async ask(plan) {
    const turn = ++this.turn;
    this.say("Comparing plans.");
    let answer, body;
    try {
      answer = await fetch(plan ? `what-if?plan=${encodeURIComponent(plan)}` : "what-if");
      body = await (answer.ok ? answer.json() : answer.text());
    } catch {
      answer = null;
    }
    if (turn !== this.turn) return;
    if (!answer) this.say("The server of this page does not answer.");
    else if (answer.ok) this.show(body, plan);
    else if (answer.status === 400) this.refuse(body);
    else this.say(`The server of this page answers ${answer.status}.`);
  }

  say(text) {
    this.said.textContent = text;
  }

  refuse(text) {
    this.say(this.measured);
    this.wrong.textContent = text.trim();
    this.input.setAttribute("aria-invalid", "true");
  }

  show(found, plan) {
    this.plan = plan;
    this.button.textContent = "Refresh comparison";
    this.wrong.textContent = "";
    this.input.removeAttribute("aria-invalid");
    this.found.hidden = found.note !== "";
    this.measured = found.note || `As measured at ${time(found.at)} in ${found.tasks === 1 ? "one task" : `${found.tasks} tasks`}. Work is that of all tasks together, per second of event time.`;
    this.say(this.measured);
    if (found.note) return;
    if (!this.input.value) this.input.value = found.plans.find((row) => row.running).plan;
    this.table.replaceChildren(table(found.plans));
    this.change.replaceChildren(...change(found.change));
  }
}
