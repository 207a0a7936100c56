// The merge queues: the state of each branch, why it failed, and who made it. Live.

import { follow, get } from "./api.js";
import { h, keyed, refill, replace } from "./dom.js";
import { money, number, plural, shorten, shortPath, visible } from "./format.js";
import { moveFocus } from "./keys.js";
import { runLink, statePill, timeAgo } from "./runs.js";
import { fact } from "./session.js";

const MERGES_REFRESH_MS = 500;
const COLUMNS = [["Branch"], ["State"], ["Reason"], ["Rounds", "num"], ["Cost", "num"], ["When", "num"], ["Made by"]];

const shortCommit = (commit) => (commit ? h("code", { title: commit }, commit.slice(0, 10)) : null);

function queueState(queue) {
  if (queue.working) return { state: "running", state_text: "merging" };
  return queue.open ? { state: "interrupted", state_text: "no process merges it" } : { state: "", state_text: "nothing is queued" };
}

function queueHead(queue) {
  const counts = [["good", queue.merged, "merged"], ["bad", queue.failed, "failed"], [queue.working ? "live" : "idle", queue.open, "open"]];
  return [
    h("div", { class: "head-line" }, h("h2", null, shorten(queue.into, 120)), h("span", { class: "dim", title: queue.repository }, shortPath(queue.repository)), statePill(queueState(queue))),
    h("div", { class: "segments-bar", role: "img", "aria-label": counts.map(([, count, word]) => `${count} ${word}`).join(", ") }, counts.map(([kind, count]) => (count ? h("div", { class: kind, css: { "flex-grow": String(count) } }) : null))),
    h("div", { class: "legend" }, counts.map(([kind, count, word]) => h("span", null, h("span", { class: `mark ${kind}` }), h("strong", null, number(count)), ` ${word}`))),
    queue.pending ? h("p", { class: "problem" }, visible(queue.pending)) : null,
    h("dl", { class: "pairs wide" }, fact("Repository", visible(queue.repository)), fact("Gate", h("span", null, queue.gates.map((gate) => h("div", null, h("code", null, visible(gate)))))), fact("Tip", shortCommit(queue.tip) ?? "the branch is gone"), fact("Continue", queue.command ? h("code", null, visible(queue.command)) : null)),
  ];
}

export function mergesView(root, { go, title }) {
  title("merges");
  const list = h("div", { class: "document merges" });
  const end = h("div", { class: "end-of-list" }, h("p", { class: "dim" }, "Loading…"));
  replace(root, h("div", { class: "list-page" }, list, end));
  const opened = new Set();
  let timer = 0;
  let isLoading = false;
  let isAskedAgain = false;
  let isClosed = false;

  function queueElement(id) {
    const head = h("tr", null, COLUMNS.map(([name, kind]) => h("th", { class: kind ?? "" }, name)));
    return h("section", { "aria-label": id, data: { queue: id } }, h("div", { class: "queue-head" }), h("table", { class: "table" }, h("thead", null, head), h("tbody")), h("p", { class: "dim small" }));
  }

  function output(queue, row) {
    const key = `${queue.id}/${row.number}`;
    const toggled = (event) => (event.target.open ? opened.add(key) : opened.delete(key));
    return h("details", { open: opened.has(key), on: { toggle: toggled } }, h("summary", null, "Output of the gate"), h("pre", { class: "log" }, visible(row.output)));
  }

  function cells(queue, row) {
    const links = [
      row.session ? h("a", { href: `#/sessions/${encodeURIComponent(row.session)}` }, "session") : null,
      row.run ? h("a", { href: runLink(row.run) }, row.run.comparison ? "comparison" : row.run.kind) : null,
    ].filter(Boolean);
    return [
      h("td", null, h("code", null, shorten(row.branch, 120))),
      h("td", { class: "fixed" }, statePill(row)),
      h("td", { class: "wide" }, row.reason ? h("div", { class: row.state === "failed" ? "bad" : "" }, shorten(row.reason, 600)) : row.result ? h("span", { class: "dim" }, "as ", shortCommit(row.result)) : null, row.output ? output(queue, row) : null),
      h("td", { class: "num" }, row.rounds ? `${row.rounds} of ${queue.rounds}` : ""),
      h("td", { class: "num" }, row.cost_usd ? money(row.cost_usd) : ""),
      h("td", { class: "num dim" }, timeAgo(row.ended ?? row.queued)),
      h("td", null, h("span", { class: "links" }, row.owner ? h("span", { class: "dim" }, shorten(row.owner, 40)) : null, links)),
    ];
  }

  function draw(found) {
    const queues = new Map(found.queues.map((queue) => [queue.id, queue]));
    keyed(list, [...queues.keys()], (id) => id, queueElement);
    for (const section of list.children) {
      const queue = queues.get(section.keyOfValue);
      const [head, table, more] = section.children;
      const { rows, ...facts } = queue;
      refill(head, facts, () => queueHead(queue));
      const byNumber = new Map(rows.map((row) => [row.number, row]));
      const body = table.lastElementChild;
      keyed(body, [...byNumber.keys()], (key) => key, () => h("tr", { tabindex: "-1" }));
      for (const line of body.children) {
        const row = byNumber.get(line.keyOfValue);
        refill(line, [row, queue.rounds], () => cells(queue, row));
      }
      const left = queue.open + queue.merged + queue.failed - rows.length;
      replace(more, left > 0 ? `${plural(left, "branch", "branches")} more: corral runs show ${queue.id}` : "");
    }
    list.hidden = !queues.size;
    if (!queues.size) replace(end, h("p", { class: "empty" }, "No merge queues yet. Start one: ", h("code", null, 'corral merge BRANCH --into main --gate "make test"')));
    else replace(end, found.left ? h("p", { class: "dim" }, `${plural(found.left, "queue")} more: corral runs list`) : null);
  }

  async function load() {
    clearTimeout(timer);
    timer = 0;
    isAskedAgain = isLoading;
    if (isLoading) return;
    isLoading = true;
    try {
      const found = await get("/api/merges");
      if (!isClosed) draw(found);
    } catch (error) {
      if (!isClosed && !list.children.length) replace(end, h("p", { class: "empty bad" }, error.message));
    }
    isLoading = false;
    if (isAskedAgain && !isClosed) load();
  }

  // The first event comes at once: the queues may have changed since the page asked.
  let version = null;
  const stream = follow("/api/stream", {}, {
    merges(changed) {
      if (version !== changed.version && !timer) timer = setTimeout(load, version ? MERGES_REFRESH_MS : 0);
      version = changed.version;
    },
    connected: (isConnected) => root.classList.toggle("lost", !isConnected),
  });
  load();

  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      stream.close();
    },
    keys: {
      j: [() => moveFocus(list, "tbody tr", 1), "next"],
      k: [() => moveFocus(list, "tbody tr", -1), "previous"],
      ArrowDown: [() => moveFocus(list, "tbody tr", 1), ""],
      ArrowUp: [() => moveFocus(list, "tbody tr", -1), ""],
      Enter: [() => toggle(document.activeElement), "open, expand"],
      Escape: [() => go("#/"), "back"],
    },
  };

  // Shows the output of the gate, or opens who made the branch.
  function toggle(line) {
    const output = line?.querySelector?.("details");
    if (output) output.open = !output.open;
    else line?.querySelector?.("a[href]")?.click();
  }
}
