// Keyboard: single keys and sequences such as "g l". A view adds its own keys while it is shown.

import { h } from "./dom.js";

const SEQUENCE_MS = 900;

function isTyping(target) {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));
}

// `maps()` gives the key maps, the most specific first: key -> [function, help text].
export function listenForKeys(maps) {
  let prefix = "";
  let timer = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (document.querySelector("dialog[open]")) return;
    if (isTyping(event.target) && event.target.type !== "range") {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if ((event.key === "Enter" || event.key === " ") && event.target.closest?.("a, button, summary")) return;
    const key = prefix ? `${prefix} ${event.key}` : event.key;
    prefix = "";
    clearTimeout(timer);
    for (const map of maps()) {
      if (map[key]) {
        event.preventDefault();
        map[key][0](event);
        return;
      }
      if (Object.keys(map).some((each) => each.startsWith(`${key} `))) {
        prefix = key;
        timer = setTimeout(() => (prefix = ""), SEQUENCE_MS);
        return;
      }
    }
  });
}

export function helpDialog(maps) {
  const rows = new Map();
  for (const map of maps()) {
    for (const [key, [, text]] of Object.entries(map)) if (text && !rows.has(text)) rows.set(text, key);
  }
  const dialog = h(
    "dialog",
    { class: "help", "aria-label": "Keyboard" },
    h("h2", null, "Keyboard"),
    h(
      "dl",
      null,
      [...rows].map(([text, key]) => [h("dt", null, key.split(" ").map((each) => h("kbd", null, each))), h("dd", null, text)]),
    ),
    h("form", { method: "dialog" }, h("button", { class: "primary" }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
}

// Moves the focus between the visible elements of a selector.
export function moveFocus(root, selector, step) {
  const all = [...root.querySelectorAll(selector)].filter((each) => !each.hidden);
  if (!all.length) return;
  const now = all.findIndex((each) => each === document.activeElement || each.contains(document.activeElement));
  let next = now + step;
  if (now < 0) {
    const { top } = root.getBoundingClientRect();
    next = Math.max(0, all.findIndex((each) => each.getBoundingClientRect().bottom > top + 1));
  }
  const target = all[Math.max(0, Math.min(all.length - 1, next))];
  target.focus({ preventScroll: true });
  target.scrollIntoView({ block: "nearest" });
}
