// The only module that turns a string into elements. The server makes HTML of Markdown without
// passing any HTML through; this is the second check. The string is parsed where nothing runs and
// nothing is loaded (a template, a document without a window), and only elements and attributes of
// a list are copied, with their text.

import { visible } from "./format.js";

const HTML_TAGS = new Set(
  ("A B BLOCKQUOTE BR CODE DEL DIV EM H1 H2 H3 H4 H5 H6 HR I INPUT LI OL P PRE S SPAN STRONG SUB SUP " +
    "TABLE TBODY TD TH THEAD TR UL").split(" "),
);
const SVG_TAGS = new Set(["svg", "g", "path", "text", "tspan", "title", "defs", "marker", "rect", "line", "circle", "polygon"]);
const SVG_ATTRIBUTES = new Set(
  ("id class d x y x1 x2 y1 y2 cx cy r rx ry width height viewBox points transform refX refY markerWidth " +
    "markerHeight orient stroke-dasharray marker-end role data-node data-edge").split(" "),
);
const SAFE_LINK = /^(https?:|mailto:)/i;
const SVG_SPACE = "http://www.w3.org/2000/svg";
const policy = globalThis.trustedTypes?.createPolicy("corral", { createHTML: (text) => text });

const parsed = document.createElement("template");

function trusted(text) {
  return policy ? policy.createHTML(text) : text;
}

function copyHtml(source, target) {
  for (const node of source.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) target.append(visible(node.data));
    else if (node.nodeType === Node.ELEMENT_NODE) {
      if (!HTML_TAGS.has(node.tagName)) {
        target.append(visible(node.textContent));
        continue;
      }
      const made = document.createElement(node.tagName);
      copyAttributes(node, made);
      copyHtml(node, made);
      target.append(made);
    }
  }
}

function copyAttributes(source, made) {
  const tag = made.tagName;
  if (tag === "A") {
    const link = source.getAttribute("href") ?? "";
    if (!SAFE_LINK.test(link)) return;
    made.href = link;
    made.target = "_blank";
    made.rel = "noopener noreferrer";
    made.title = visible(link);
  } else if (tag === "INPUT") {
    made.type = "checkbox";
    made.disabled = true;
    made.checked = source.hasAttribute("checked");
  } else if (tag === "OL" && source.hasAttribute("start")) {
    made.start = Number(source.getAttribute("start")) || 1;
  } else if (tag === "CODE") {
    const language = /^language-([\w+#.-]{1,20})$/.exec(source.className);
    if (language) made.dataset.language = language[1];
  } else if ((tag === "TD" || tag === "TH") && /^(left|center|right)$/.test(source.className)) {
    made.className = source.className;
  }
}

// Fills `target` with the server's HTML of a Markdown text.
export function setMarkup(target, text) {
  const made = document.createDocumentFragment();
  parsed.innerHTML = trusted(text);
  copyHtml(parsed.content, made);
  parsed.content.replaceChildren();
  target.replaceChildren(made);
  return target;
}

function copySvg(source) {
  const made = document.createElementNS(SVG_SPACE, source.localName);
  for (const { name, value } of source.attributes) {
    if (SVG_ATTRIBUTES.has(name) && (name !== "marker-end" || /^url\(#[\w-]+\)$/.test(value))) made.setAttribute(name, value);
  }
  for (const node of source.childNodes) {
    if (node.nodeType === Node.TEXT_NODE) made.append(visible(node.data));
    else if (node.nodeType === Node.ELEMENT_NODE && SVG_TAGS.has(node.localName)) made.append(copySvg(node));
  }
  return made;
}

// The server's drawing of a graph as an element, without its styles.
export function drawing(text) {
  const root = new DOMParser().parseFromString(trusted(text), "image/svg+xml").documentElement;
  return root.localName === "svg" ? copySvg(root) : document.createElementNS(SVG_SPACE, "svg");
}
