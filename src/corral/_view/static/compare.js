// A comparison of agents on the same tasks: pass rates with intervals, attempts, diffs side by side.

import { get, route } from "./api.js";
import { button, copyText, h, replace, svg } from "./dom.js";
import { diffView } from "./diff.js";
import { ago, compact, duration, money, number, plural, shorten, visible } from "./format.js";
import { fact, pageHead } from "./session.js";

const VERDICTS = { passed: "good", failed: "bad", missing: "idle", pending: "live" };
const COMPARE_REFRESH_MS = 3000;
const MOST_COMPARED = 3;

function percent(value) {
  return value === null || value === undefined ? "–" : `${Math.round(value * 100)} %`;
}

// A pass rate as a dot with its interval.
function rateDrawing(rate) {
  if (rate.value === null || rate.value === undefined) return null;
  const x = (share) => 4 + share * 152;
  return svg(
    "svg",
    { class: "rate", viewBox: "0 0 160 16", width: "160", height: "16", role: "img", "aria-label": `${percent(rate.low)} to ${percent(rate.high)}` },
    svg("line", { class: "grid", x1: x(0), x2: x(1), y1: 8, y2: 8 }),
    svg("line", { class: "interval", x1: x(rate.low), x2: x(rate.high), y1: 8, y2: 8 }),
    svg("circle", { class: "value", cx: x(rate.value), cy: 8, r: 4 }),
  );
}

function agentTable(agents) {
  const names = ["Agent", "Pass rate", "", "Passed", "Cost", "per attempt", "Tokens", "Median time", "Missing"];
  return h("table", { class: "table" }, h("thead", null, h("tr", null, names.map((each, index) => h("th", { class: index > 2 ? "num" : "" }, each)))),
    h("tbody", null, agents.map((agent) => h("tr", null,
      h("td", null, h("strong", null, visible(agent.agent)), h("span", { class: "dim small" }, ` ${[...agent.models, ...agent.versions].join(" ")}`)),
      h("td", null, h("strong", null, percent(agent.rate.value)), agent.rate.value == null ? null : h("span", { class: "dim" }, ` ${Math.round(agent.rate.low * 100)}–${Math.round(agent.rate.high * 100)}`)),
      h("td", null, rateDrawing(agent.rate)),
      h("td", { class: "num" }, `${number(agent.rate.passed)} of ${number(agent.rate.attempts)}`),
      h("td", { class: "num", title: agent.unpriced ? `${plural(agent.unpriced, "attempt")} without a known cost` : "" }, money(agent.cost_usd)),
      h("td", { class: "num" }, money(agent.mean_cost_usd)),
      h("td", { class: "num" }, compact(agent.tokens)),
      h("td", { class: "num" }, agent.median_seconds == null ? "–" : duration(agent.median_seconds * 1000)),
      h("td", { class: "num" }, agent.missing ? number(agent.missing) : "")))));
}

function differenceList(differences, level) {
  const known = differences.filter((each) => each.value !== null && each.value !== undefined);
  if (!known.length) return null;
  return h("ul", { class: "failures" }, known.map((each) => {
    const isClear = each.low * each.high > 0;
    const points = (share) => `${share > 0 ? "+" : share < 0 ? "−" : ""}${Math.abs(Math.round(share * 100))}`;
    return h("li", null, h("strong", null, `${each.first} − ${each.second}`), h("span", { class: isClear ? (each.value > 0 ? "plus" : "minus") : "" }, `${points(each.value)} points`),
      h("span", { class: "dim" }, `${points(each.low)} to ${points(each.high)} (${Math.round((level ?? 0.95) * 100)} %), ${plural(each.tasks, "shared task")}${isClear ? "" : ": no clear difference"}`));
  }));
}

export function compareView(root, { id, go, title }) {
  const base = route("compare", id);
  const head = h("div");
  const body = h("div", { class: "document" });
  const chosen = new Set();
  const sides = h("section", { hidden: true });
  replace(root, h("div", { class: "detail-page" }, head, body));
  let detail = null;
  let timer = 0;
  let isClosed = false;

  function state() {
    if (detail.done === detail.total) return { state: "success", state_text: "finished" };
    const pending = detail.agents.reduce((sum, agent) => sum + agent.pending, 0);
    return pending ? { state: "running", state_text: `${number(detail.total - pending)} of ${plural(detail.total, "attempt")}` } : { state: "incomplete", state_text: `${plural(detail.total - detail.done, "attempt")} missing` };
  }

  function attemptMark(attempt) {
    const isChosen = chosen.has(attempt.id);
    return h("button", { type: "button", class: `attempt ${VERDICTS[attempt.verdict]}`, "aria-pressed": String(isChosen), title: visible([attempt.verdict, attempt.reason, attempt.seconds == null ? "" : duration(attempt.seconds * 1000), money(attempt.cost_usd)].filter(Boolean).join(" · ")), on: { click: () => choose(attempt.id) } },
      h("span", { class: "mark" }), attempt.verdict);
  }

  function choose(name) {
    if (!chosen.delete(name)) chosen.add(name);
    if (chosen.size > MOST_COMPARED) chosen.delete(chosen.values().next().value);
    draw();
  }

  function taskTable() {
    const agents = detail.agents.map((agent) => agent.agent);
    return h("table", { class: "table" }, h("thead", null, h("tr", null, ["Task", ...agents].map((each) => h("th", null, each)))),
      h("tbody", null, detail.tasks.map((task) => h("tr", null, h("td", { class: "wide", title: shorten(task.prompt, 800) }, h("strong", null, shorten(task.task, 60)), h("div", { class: "dim small" }, shorten(task.prompt, 140))),
        agents.map((agent) => h("td", null, h("div", { class: "choices" }, task.attempts.filter((attempt) => attempt.agent === agent).map(attemptMark))))))));
  }

  function drawSides() {
    const attempts = detail.tasks.flatMap((task) => task.attempts).filter((attempt) => chosen.has(attempt.id));
    sides.hidden = !attempts.length;
    replace(sides, h("h3", null, "Attempts"), h("div", { class: "sides" }, attempts.map(attemptSide)));
  }

  function attemptSide(attempt) {
    const changes = h("div", null, h("p", { class: "dim" }, attempt.session ? "Loading…" : "No session is stored."));
    if (attempt.session) get(`${route("sessions", attempt.session)}/diff/1`).then((found) => replace(changes, diffView(found.files)), () => replace(changes, h("p", { class: "dim" }, "No diff is stored.")));
    const apply = `corral compare apply ${detail.id} ${attempt.id}`;
    return h("div", { class: "side" }, h("div", { class: "spread" }, h("strong", null, `${attempt.agent} · ${attempt.task}${attempt.repeat > 1 ? ` · ${attempt.repeat}` : ""}`), h("span", { class: `state ${VERDICTS[attempt.verdict]}` }, h("span", { class: "mark" }), attempt.verdict)),
      attempt.reason ? h("p", { class: "dim small" }, shorten(attempt.reason, 400)) : null,
      h("dl", { class: "pairs" }, fact("Model", attempt.model), fact("Time", attempt.seconds == null ? null : duration(attempt.seconds * 1000)), fact("Cost", attempt.cost_usd == null ? null : money(attempt.cost_usd)), fact("Tokens", attempt.tokens == null ? null : compact(attempt.tokens)), fact("Verifier", attempt.exit_code == null ? null : `exit ${attempt.exit_code}`)),
      h("div", { class: "choices" }, attempt.session ? h("a", { class: "button", href: `#/sessions/${encodeURIComponent(attempt.session)}` }, "Open the session") : null, attempt.files?.length ? button("Copy the command to apply it", () => copyText(apply, "the command"), { title: apply }) : null),
      changes);
  }

  function draw() {
    title(shorten(detail.title, 60) || id);
    replace(head, pageHead({ summary: { id, title: detail.title, ...state() }, back: "#/", actions: [], lines: [h("span", null, plural(detail.agents.length, "agent")), h("span", null, plural(detail.tasks.length, "task")), detail.repeat > 1 ? h("span", null, `${detail.repeat} times each`) : null, h("span", null, ago(detail.created))] }));
    replace(body, h("section", null, agentTable(detail.agents), detail.notes.map((note) => h("p", { class: "dim small" }, visible(note)))),
      detail.differences.length ? h("section", null, h("h3", null, "Differences"), differenceList(detail.differences, detail.level)) : null,
      detail.missing.length ? h("section", null, h("h3", null, "Missing"), h("ul", { class: "failures" }, detail.missing.map((each) => h("li", null, h("span", { class: "badge" }, each.code), h("strong", null, plural(each.count, "attempt")), shorten(each.reason, 300))))) : null,
      h("section", null, h("h3", null, "Tasks"), taskTable()), sides,
      detail.skipped.length ? h("section", null, h("h3", null, "Skipped"), h("ul", { class: "failures" }, detail.skipped.map((each) => h("li", null, h("strong", null, each.task), shorten(each.reason, 300))))) : null);
    drawSides();
  }

  async function refresh() {
    try {
      detail = await get(base);
    } catch (error) {
      if (!detail) replace(root, h("p", { class: "empty bad" }, error.message));
      return;
    }
    if (isClosed) return;
    draw();
    if (state().state === "running") timer = setTimeout(refresh, COMPARE_REFRESH_MS);
  }

  refresh();
  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
    },
    keys: { Escape: [() => go("#/"), "back"] },
  };
}
