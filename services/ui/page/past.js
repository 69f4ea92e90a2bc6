// Goes back in time: a slider over the history, and what the plan and its numbers were then.

import { element, time } from "./format.js";

const ASKED_AFTER_MS = 120;

export class Past {
  // changed: called with the state of a moment, or with null for now.
  constructor(place, changed) {
    this.changed = changed;
    this.asked = 0;
    this.slider = element("input", null, { type: "range", id: "past-at", min: 0, max: 1, step: 1, value: 1 });
    this.label = element("output", "now", { for: "past-at" });
    this.now = element("button", "Back to now", { type: "button" });
    this.now.disabled = true;
    place.append(element("label", "Go back in time", { for: "past-at" }), this.slider, this.label, this.now);
    this.slider.addEventListener("input", () => this.ask());
    this.now.addEventListener("click", () => this.leave());
  }

  get at() {
    return this.now.disabled ? null : Number(this.slider.value);
  }

  // The history has these seconds.
  bounds(first, last) {
    this.slider.min = first;
    this.slider.max = last;
    if (this.at === null) this.slider.value = last;
    this.slider.setAttribute("aria-valuetext", this.at === null ? "now" : time(this.at * 1000));
  }

  leave() {
    this.now.disabled = true;
    this.slider.value = this.slider.max;
    this.label.textContent = "now";
    this.slider.setAttribute("aria-valuetext", "now");
    clearTimeout(this.asked);
    this.changed(null);
    this.slider.focus();
  }

  ask() {
    if (this.slider.value === this.slider.max) return this.leave();
    this.now.disabled = false;
    this.label.textContent = time(this.at * 1000);
    this.slider.setAttribute("aria-valuetext", time(this.at * 1000));
    clearTimeout(this.asked);
    this.asked = setTimeout(() => this.fetch(this.at), ASKED_AFTER_MS);
  }

  async fetch(second) {
    const answer = await fetch(`past?ms=${second * 1000 + 999}`);
    if (answer.ok && this.at === second) this.changed(await answer.json());
  }
}
