// Copies text to the clipboard.

import { element } from "./format.js";

// The clipboard is there only for pages of this machine and of https.
export async function copy(text) {
  if (navigator.clipboard) { await navigator.clipboard.writeText(text); return; }
  const focused = document.activeElement, area = element("textarea", text, { class: "unseen", "aria-label": "Copied text" });
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  focused?.focus({ preventScroll: true });
  if (!done) throw new Error("the browser refuses it");
}
