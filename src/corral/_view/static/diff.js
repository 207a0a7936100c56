// Files changed, with a side-by-side diff that the server has computed.

import { button, h } from "./dom.js";
import { visible } from "./format.js";

const ROWS_AT_ONCE = 300;
const LINE = 2000;

export function changeCounts(added, removed) {
  return h(
    "span",
    { class: "counts" },
    added ? h("span", { class: "plus" }, `+${added}`) : null,
    " ",
    removed ? h("span", { class: "minus" }, `−${removed}`) : null,
  );
}

function cells(cell, side, kind) {
  const text = cell ? visible(cell.text) : "";
  const changed = cell && kind !== "same";
  return [
    h("td", { class: `n ${side}` }, cell ? String(cell.n) : ""),
    h("td", { class: `code ${side}${changed ? " changed" : ""}${cell ? "" : " none"}` }, text.length > LINE ? `${text.slice(0, LINE)}…` : text),
  ];
}

function rowsOf(file) {
  const rows = [];
  for (const hunk of file.hunks) {
    rows.push(h("tr", { class: "hunk" }, h("td", { colspan: "4" }, `@@ −${hunk.old_start} +${hunk.new_start} @@`)));
    for (const row of hunk.rows) {
      rows.push(() => h("tr", { class: row.kind }, cells(row.left, "left", row.kind), cells(row.right, "right", row.kind)));
    }
  }
  return rows;
}

function diffTable(file) {
  const rows = rowsOf(file);
  const body = h("tbody");
  let shown = 0;
  const table = h("div", { class: "diff" }, h("table", { "aria-label": `Changes of ${visible(file.path)}` }, h("colgroup", null, ["n", "", "n", ""].map((kind) => h("col", { class: kind }))), body));
  function more() {
    const next = rows.slice(shown, shown + ROWS_AT_ONCE);
    shown += next.length;
    body.append(...next.map((row) => (typeof row === "function" ? row() : row)));
    table.querySelector(".rest")?.remove();
    if (shown < rows.length) table.append(h("div", { class: "rest" }, button(`Show ${Math.min(ROWS_AT_ONCE, rows.length - shown)} more lines`, more, { class: "link" })));
  }
  more();
  return table;
}

function fileDiff(file, isOpen) {
  const content = h("div");
  function open() {
    if (content.childElementCount) return;
    content.append(file.hunks.length ? diffTable(file) : h("p", { class: "dim note" }, file.note || (file.binary ? "A binary file" : "No lines changed")));
    if (file.truncated) content.append(h("p", { class: "dim note" }, "The diff is cut: the file has more changes."));
  }
  const node = h(
    "details",
    { class: "file-diff", open: isOpen },
    h("summary", null, h("span", { class: `badge ${file.kind}` }, file.kind), h("code", null, visible(file.path)), changeCounts(file.added, file.removed)),
    content,
  );
  node.addEventListener("toggle", () => node.open && open());
  if (isOpen) open();
  return node;
}

export function diffView(files) {
  if (!files.length) return h("p", { class: "empty" }, "No files changed");
  return h("div", { class: "diffs" }, files.map((file, index) => fileDiff(file, index < 3)));
}
