// One batch: progress, failures, tasks.

import { address, follow, get, isOffline, post, route } from "./api.js";
import { attempt, button, h, replace } from "./dom.js";
import { compact, duration, money, number, plural, shorten, tone, visible } from "./format.js";
import { timeAgo } from "./runs.js";
import { fact, pageHead } from "./session.js";
import { budgetBars, raiseButton } from "./spend.js";

const BATCH_REFRESH_MS = 1000;

function progress(detail) {
  const parts = [["good", detail.succeeded, "succeeded"], ["bad", detail.failed, "failed"], ["live", detail.running, "running"], ["idle", detail.left, "left"]];
  return h(
    "div",
    { class: "progress" },
    h("div", { class: "segments-bar", role: "img", "aria-label": parts.map(([, count, word]) => `${count} ${word}`).join(", ") },
      parts.map(([kind, count]) => (count ? h("div", { class: kind, css: { "flex-grow": String(count) } }) : null))),
    h("div", { class: "legend" }, parts.map(([kind, count, word]) => h("span", null, h("span", { class: `mark ${kind}` }), h("strong", null, number(count)), ` ${word}`)), h("span", { class: "dim" }, `of ${plural(detail.total, "task")}`)),
  );
}

export function batchView(root, { id, query, go, title }) {
  const base = route("batches", id);
  const where = { db: query.db };
  const page = h("div", { class: "detail-page" });
  const head = h("div");
  const body = h("div", { class: "document" });
  replace(root, fillPage());
  let detail = null;
  let rows = [];
  let next = null;
  let stream = null;
  let timer = 0;
  let isClosed = false;

  function fillPage() {
    return replace(page, head, body);
  }

  function actions() {
    const { summary } = detail;
    if (isOffline) return [];
    const act = (name, done) => button(name, () => attempt(() => post(`${base}/${name === "Cancel" ? "cancel" : "retry"}`, {}, where), (found) => found?.message || done).then(refresh), { class: name === "Cancel" ? "danger" : "primary" });
    return [
      summary.comparison ? h("a", { class: "button", href: `#/compare/${encodeURIComponent(id)}` }, "Show the comparison") : null,
      summary.live ? raiseButton({ state: summary.state, budgets: detail.budgets }, (given) => post(`${base}/budget`, given, where).then((done) => refresh().then(() => done))) : null,
      detail.failed && !summary.live ? act("Retry failed", "The failed tasks run again") : null,
      summary.live || summary.state === "queued" ? act("Cancel", "Cancelled") : null,
    ];
  }

  function draw() {
    const { summary } = detail;
    title(id);
    replace(head, pageHead({
      summary: { ...summary, title: id }, back: "#/", actions: actions(),
      lines: [h("span", null, summary.agent), summary.model ? h("span", null, summary.model) : null, summary.cost_usd == null ? null : h("span", null, money(summary.cost_usd)), summary.tokens == null ? null : h("span", null, `${compact(summary.tokens)} tokens`), h("span", null, "last event ", timeAgo(summary.last_event ?? summary.updated))],
    }));
    replace(
      body,
      progress(detail),
      budgetBars(detail.budgets),
      detail.failures.length ? h("section", null, h("h3", null, "Failures"), h("ul", { class: "failures" }, detail.failures.map((group) => h("li", null, h("span", { class: "badge bad" }, group.code || "error"), h("strong", null, plural(group.count, "task")), h("span", null, shorten(group.message, 300)), h("span", { class: "dim small" }, shorten(group.tasks.join(", "), 160)))))) : null,
      h("section", null, h("h3", null, "Tasks"), h("table", { class: "table" }, h("thead", null, h("tr", null, ["Task", "Status", "Result", "Time", "Tokens", "Cost", ""].map((each, index) => h("th", { class: index > 2 ? "num" : "" }, each)))), h("tbody", null, rows.map(taskRow))), next ? button("Show more tasks", more, { class: "link" }) : null),
      h("section", null, h("h3", null, "Batch"), h("dl", { class: "pairs wide" }, fact("Prompt", shorten(detail.prompt, 600)), fact("Output", detail.output), fact("Folder", detail.folder), fact("Rounds", detail.rounds > 1 ? detail.rounds : null), fact("Command", detail.command ? h("code", null, detail.command) : null))),
    );
  }

  function taskRow(row) {
    return h("tr", null, h("td", null, h("code", null, shorten(row.task, 80))), h("td", null, h("span", { class: `state ${tone(row.status)}` }, h("span", { class: "mark" }), row.status)),
      h("td", { class: "wide" }, row.error ? h("span", { class: "bad" }, shorten(row.error, 200)) : shorten(visible(row.text), 160)),
      h("td", { class: "num" }, row.seconds == null ? "" : duration(row.seconds * 1000)), h("td", { class: "num" }, compact(row.tokens)), h("td", { class: "num" }, money(row.cost_usd)),
      h("td", null, row.session ? h("a", { href: `#/sessions/${encodeURIComponent(row.session)}` }, "open") : ""));
  }

  async function more() {
    const found = await attempt(() => get(base, { ...where, cursor: next }));
    if (!found || isClosed) return;
    rows = [...rows, ...found.rows];
    next = found.next;
    draw();
  }

  async function refresh() {
    clearTimeout(timer);
    timer = 0;
    try {
      detail = await get(base, where);
    } catch (error) {
      if (!detail) replace(root, h("p", { class: "empty bad" }, error.message));
      return;
    }
    if (isClosed) return;
    rows = detail.rows;
    next = detail.next;
    draw();
  }

  refresh();
  stream = follow("/api/stream", {}, {
    runs(changed) {
      const isOurs = (changed?.runs ?? changed ?? []).some((run) => run.id === id);
      if (isOurs && !timer) timer = setTimeout(refresh, BATCH_REFRESH_MS);
    },
  });
  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      stream.close();
    },
    keys: { Escape: [() => go(`#${address("/", {})}`), "back"] },
  };
}
