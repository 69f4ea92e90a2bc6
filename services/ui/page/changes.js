// Forms that change the running query, or the queries of a group. They need the token of the address that `weir ui
// --allow-changes` has printed; it stays in this tab.

import { element } from "./format.js";

const STRATEGIES = ["auto", "jisc", "moving-state", "parallel-track", "hybmig-bsc", "hybmig"];

// Takes the token out of the address, and returns it.
export function keepToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    sessionStorage.setItem("weir-token", given);
    history.replaceState(null, "", location.pathname);
  }
  return sessionStorage.getItem("weir-token");
}

function field(form, name, label, control) {
  control.name = name;
  control.id = `change-${name}`;
  form.append(element("label", label, { for: control.id }), control);
}

function select(choices) {
  const made = element("select");
  for (const choice of choices) made.append(element("option", choice, { value: choice }));
  return made;
}

export class Changes {
  // paths: what the server offers; the section is hidden if it offers no change.
  constructor(section, paths) {
    section.hidden = !["migrate", "register", "drop"].some((path) => paths.includes(path));
    if (section.hidden) return;
    this.place = section.querySelector("div");
    this.token = keepToken();
    if (!this.token) {
      this.place.append(element("p", "To change something, open the address with the token that weir ui has printed."));
      return;
    }
    if (paths.includes("migrate")) this.migrate();
    if (paths.includes("register")) this.register();
    if (paths.includes("drop")) this.drop();
  }

  // The names of the group's queries.
  show(names) {
    if (!this.dropped || names.join("\n") === this.names) return;
    this.names = names.join("\n");
    const chosen = this.dropped.value;
    this.dropped.replaceChildren(...names.map((name) => element("option", name, { value: name })));
    if (names.includes(chosen)) this.dropped.value = chosen;
  }

  migrate() {
    const form = this.form("migrate", "Change the plan");
    field(form, "plan", "New plan, such as ((A B) C)", element("input", null, { required: "", autocomplete: "off", spellcheck: "false" }));
    field(form, "strategy", "Strategy", select(STRATEGIES));
    this.add(form, "Change the plan");
  }

  register() {
    const form = this.form("register", "Add queries");
    field(form, "text", "A query file: CREATE STREAM as in the group's first file, and INSERT INTO", element("textarea", null, { required: "", rows: "6", spellcheck: "false" }));
    field(form, "from_now", "Read the windows of the past", select(["yes", "no"]));
    this.add(form, "Add the queries", (given) => given.set("from_now", given.get("from_now") === "yes" ? "no" : "yes"));
  }

  drop() {
    const form = this.form("drop", "Drop a query");
    this.dropped = element("select");
    field(form, "query", "Query", this.dropped);
    this.add(form, "Drop the query");
  }

  form(path, name) {
    return element("form", null, { action: path, "aria-label": name, class: "change card" });
  }

  add(form, button, adjust = () => {}) {
    const go = element("button", button, { type: "submit" });
    const said = element("p", null, { role: "status" });
    form.append(go, said);
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const given = new URLSearchParams(new FormData(form));
      adjust(given);
      go.disabled = true;
      said.textContent = "Asking the tasks…";
      try {
        const answer = await fetch(form.getAttribute("action"), { method: "POST", body: given, headers: { "X-Weir-Token": this.token } });
        said.textContent = answer.ok ? (await answer.json()).said : `Not done: ${await answer.text()}`;
      } catch {
        said.textContent = "Not done: the server does not answer.";
      }
      go.disabled = false;
    });
    this.place.append(form);
  }
}
