// The overview: all registered queries and groups, each with how far it is and what holds it back.

import { keepToken } from "./changes.js";
import { element } from "./format.js";

const EVERY_MS = 2000;
const at = (id) => document.getElementById(id);

function item({ name, about, headline: { tone, reached, held } }) {
  const made = element("li", null, { "data-tone": tone });
  made.append(element("a", name, { href: `q/${encodeURIComponent(name)}/` }), ` ${about}`, element("br"));
  made.append(element("span", `${reached}${held ? `, held by ${held}` : ""}.`, { class: "state" }));
  return made;
}

async function show() {
  let problem = "The server does not answer.", queries = null;
  try {
    const answer = await fetch("queries");
    if (answer.ok) ({ problem, queries } = await answer.json());
  } catch { /* said above */ }
  at("problem").textContent = problem;
  if (queries) {
    const ill = queries.filter((one) => one.headline.tone !== "well").length;
    at("headline").dataset.tone = ill ? "held" : "well";
    at("headline").textContent = queries.length ? `${queries.length} registered, ${ill} with something to look at` : "No query is registered";
    const focused = document.activeElement?.textContent;
    at("queries").replaceChildren(...queries.map(item));
    [...at("queries").querySelectorAll("a")].find((link) => link.textContent === focused)?.focus();
  }
  setTimeout(show, EVERY_MS);
}

keepToken();
show();
