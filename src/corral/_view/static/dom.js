// Creates and updates DOM nodes. Text is always set as text, never parsed as HTML, and without
// characters that hide or reorder text. Styles are set through the CSSOM, because the content
// security policy forbids style attributes.

import { visible } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

function setProperty(node, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (name === "on") for (const [event, act] of Object.entries(value)) node.addEventListener(event, act);
  else if (name === "css") for (const [key, text] of Object.entries(value)) node.style.setProperty(key, text);
  else if (name === "data") Object.assign(node.dataset, value);
  else if (name === "value") node.value = value;
  else if (name === "title" || name === "aria-label") node.setAttribute(name, visible(value));
  else node.setAttribute(name, value === true ? "" : String(value));
}

function build(node, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) setProperty(node, name, value);
  fill(node, children);
  return node;
}

// Appends nodes and texts; empty values are left out, arrays are flattened.
export function fill(node, children) {
  for (const child of [children].flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false && child !== "") node.append(child instanceof Node ? child : visible(child));
  }
  return node;
}

export function h(tag, properties, ...children) {
  return build(document.createElement(tag), properties, children);
}

export function svg(tag, properties, ...children) {
  return build(document.createElementNS(SVG, tag), properties, children);
}

export function replace(node, ...children) {
  node.replaceChildren();
  return fill(node, children);
}

const FOCUSABLE = "a[href], button, input, select, summary, [tabindex]";

// Replaces the children only if `value` has changed since the last call; the focus stays at the
// same place.
export function refill(node, value, make) {
  const text = JSON.stringify(value);
  if (node.valueDrawn === text) return;
  node.valueDrawn = text;
  const place = node.contains(document.activeElement) ? [...node.querySelectorAll(FOCUSABLE)].indexOf(document.activeElement) : -1;
  replace(node, make());
  if (place >= 0) node.querySelectorAll(FOCUSABLE)[place]?.focus({ preventScroll: true });
}

// Updates the children of `parent` to one element for each value, in order. An element stays the
// same node while its key stays; it is made again only if the value is another object.
export function keyed(parent, values, keyOf, create) {
  const old = new Map();
  for (const child of parent.children) old.set(child.keyOfValue, child);
  let next = parent.firstElementChild;
  for (const value of values) {
    const key = keyOf(value);
    let child = old.get(key);
    old.delete(key);
    if (!child || child.valueShown !== value) {
      const made = create(value, child);
      made.keyOfValue = key;
      made.valueShown = value;
      if (child && child !== made) {
        if (child === next) next = made;
        child.replaceWith(made);
      }
      child = made;
    }
    if (child === next) next = next.nextElementSibling;
    else parent.insertBefore(child, next);
  }
  for (const child of old.values()) child.remove();
}

// A button. `act` may be asynchronous: the button is disabled until it ends.
export function button(label, act, properties) {
  const node = h("button", { type: "button", ...properties }, label);
  node.addEventListener("click", async (event) => {
    event.stopPropagation();
    node.disabled = true;
    try {
      await act(event);
    } finally {
      node.disabled = false;
    }
  });
  return node;
}

export function notice(text, kind = "info") {
  const node = h("div", { class: `notice ${kind}` }, text);
  document.getElementById("notices").append(node);
  setTimeout(() => node.remove(), kind === "bad" ? 9000 : 4000);
}

// Runs a call and shows its error as a notice. Returns undefined then.
export async function attempt(call, done) {
  try {
    const answer = await call();
    if (done) notice(typeof done === "function" ? done(answer) : done, "good");
    return answer ?? {};
  } catch (error) {
    notice(error.hint ? `${error.message}. ${error.hint}` : error.message, "bad");
    return undefined;
  }
}

export async function copyText(text, what) {
  try {
    await navigator.clipboard.writeText(text);
    notice(`Copied ${what}`, "good");
  } catch {
    notice(text);
  }
}

// Asks for numbers. `fields` have a name and a label. Gives an object with those that were filled in,
// or null if the dialog is cancelled or nothing is.
export function askNumbers(title, fields) {
  return new Promise((resolve) => {
    const inputs = fields.map(({ name, label }) => h("input", { type: "number", name, min: "0", step: name === "cost" ? "any" : "1", "aria-label": label, autocomplete: "off" }));
    const rows = fields.map(({ label }, index) => h("label", { class: "spread" }, h("span", null, label), inputs[index]));
    const form = h("form", { method: "dialog" }, h("h2", null, title), rows, h("div", { class: "choices" }, h("button", { class: "primary", value: "ok" }, "Raise"), h("button", { value: "cancel", formnovalidate: true }, "Cancel")));
    const dialog = h("dialog", { class: "ask-text" }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      const given = Object.fromEntries(inputs.filter((input) => Number(input.value) > 0).map((input) => [input.name, Number(input.value)]));
      resolve(dialog.returnValue === "ok" && Object.keys(given).length ? given : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    inputs[0].select();
  });
}
