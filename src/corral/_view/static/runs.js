// The list of all runs: sessions, pipelines and batches, live.

import { address, follow, get } from "./api.js";
import { h, keyed, replace } from "./dom.js";
import { ago, compact, money, moment, shorten, shortPath, tone } from "./format.js";
import { moveFocus } from "./keys.js";

const KINDS = [["", "All"], ["session", "Sessions"], ["pipeline", "Pipelines"], ["batch", "Batches"]];
const STATES = [["", "Any state"], ["live", "Running"], ["waiting", "Waiting"], ["failed", "Failed"], ["success", "Finished"]];
const FOLDERS = { session: "sessions", pipeline: "pipelines", batch: "batches" };
const SEARCH_DELAY = 220;
const DAY = 86400;

export function runLink(run) {
  const folder = run.comparison ? "compare" : FOLDERS[run.kind];
  return `#${address(`/${folder}/${encodeURIComponent(run.id)}`, { db: run.db })}`;
}

export function statePill(run) {
  return h(
    "span",
    { class: `state ${tone(run.state)}`, title: run.state_text },
    h("span", { class: "mark", "aria-hidden": "true" }),
    h("span", { class: "words" }, run.state_text || run.state),
  );
}

export function timeAgo(time) {
  return h("time", { data: { ago: time ?? "" }, title: moment(time) }, ago(time));
}

function runKey(run) {
  return `${run.kind}/${run.db ?? ""}/${run.id}`;
}

function runRow(run, search) {
  const spent = [run.tokens == null ? "" : compact(run.tokens), run.cost_usd == null ? "" : money(run.cost_usd)];
  return h(
    "a",
    { class: `run ${run.live ? "is-live" : ""} ${run.pending ? "is-pending" : ""}`, href: runLink(run), data: { id: run.id } },
    statePill(run),
    h(
      "span",
      { class: "what" },
      h("span", { class: "title" }, run.kind === "session" ? null : h("span", { class: "badge" }, run.comparison ? "comparison" : run.kind), shorten(run.kind === "batch" ? `${run.id}: ${run.title}` : run.title, 200) || "(no prompt)"),
      run.snippet ? h("span", { class: "snippet" }, marked(run.snippet, search)) : null,
    ),
    h("span", { class: "who" }, run.agent, run.model ? h("span", { class: "dim" }, ` ${run.model}`) : null),
    h("span", { class: "where dim", title: run.cwd }, run.label ? h("span", { class: "badge" }, run.label) : null, shortPath(run.cwd)),
    h("span", { class: "spent" }, h("span", { class: "dim" }, spent[0]), h("span", { class: "usd", title: run.cost_source }, spent[1])),
    h("span", { class: "when dim" }, timeAgo(run.last_event ?? run.updated)),
  );
}

// The text with the words of the search marked.
function marked(text, search) {
  const words = search.split(/\s+/).filter(Boolean).map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  if (!words.length) return shorten(text, 400);
  return shorten(text, 400)
    .split(new RegExp(`(${words.join("|")})`, "i"))
    .map((part, index) => (index % 2 ? h("mark", null, part) : part));
}

// A run that is paused on its budget waits for a person, too.
const isWaiting = (run) => run.pending > 0 || run.state === "paused";

function groupOf(run, now) {
  if (isWaiting(run)) return "Waiting for you";
  if (run.live) return "Running";
  const midnight = new Date(now).setHours(0, 0, 0, 0) / 1000;
  const time = run.updated || run.created;
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY) return "Yesterday";
  if (time >= midnight - 6 * DAY) return "Last 7 days";
  return "Earlier";
}

function compareRuns(a, b) {
  return Number(isWaiting(b)) - Number(isWaiting(a)) || Number(b.live) - Number(a.live) || b.updated - a.updated;
}

function choices(name, options, chosen, act) {
  return h(
    "div",
    { class: "segments", role: "group", "aria-label": name },
    options.map(([value, label]) =>
      h("button", { type: "button", "aria-pressed": String(value === chosen), on: { click: () => act(value) } }, label),
    ),
  );
}

export function runsView(root, { query, go, title }) {
  title("runs");
  const filter = { kind: query.kind ?? "", state: query.state ?? "", agent: query.agent ?? "", q: query.q ?? "" };
  const runs = new Map();
  let cursor = null;
  let isLoading = false;
  let load = new AbortController();

  const search = h("input", {
    type: "search", id: "search", placeholder: "Search all transcripts", "aria-label": "Search all transcripts",
    autocomplete: "off", spellcheck: "false", value: filter.q,
  });
  const filters = h("div", { class: "filters" });
  const list = h("div", { class: "runs", role: "list", "aria-label": "Runs" });
  const end = h("div", { class: "end-of-list" });
  replace(root, h("div", { class: "list-page" }, h("div", { class: "toolbar" }, h("div", { class: "search" }, search, h("kbd", { "aria-hidden": "true" }, "/")), filters), list, end));

  function drawFilters() {
    const agents = [...new Set([filter.agent, ...[...runs.values()].map((run) => run.agent)].filter(Boolean))].sort();
    const select = h("select", { "aria-label": "Agent", on: { change: (event) => set("agent", event.target.value) } },
      h("option", { value: "" }, "Any agent"), agents.map((agent) => h("option", { value: agent, selected: agent === filter.agent }, agent)));
    replace(filters, choices("Kind", KINDS, filter.kind, (value) => set("kind", value)), choices("State", STATES, filter.state, (value) => set("state", value)), select);
  }

  function set(name, value) {
    filter[name] = value;
    history.replaceState(null, "", `#${address("/", filter)}`);
    drawFilters();
    restart();
  }

  function fits(run) {
    if (filter.q) return runs.has(runKey(run));
    if (filter.kind && run.kind !== filter.kind) return false;
    if (filter.agent && run.agent !== filter.agent) return false;
    if (filter.state === "live") return run.live;
    if (filter.state === "waiting") return tone(run.state) === "wait";
    if (filter.state === "failed") return tone(run.state) === "bad";
    return !filter.state || run.state === filter.state;
  }

  function draw() {
    const now = Date.now();
    const groups = new Map();
    const sorted = filter.q ? [...runs.values()] : [...runs.values()].sort(compareRuns);
    for (const run of sorted) {
      const name = filter.q ? "Found" : groupOf(run, now);
      groups.set(name, [...(groups.get(name) ?? []), run]);
    }
    keyed(list, [...groups].map(([name]) => name), (name) => name, groupElement);
    for (const section of list.children) keyed(section.lastElementChild, groups.get(section.keyOfValue), runKey, (run) => runRow(run, filter.q));
    if (!runs.size && !isLoading) replace(end, h("p", { class: "empty" }, emptyText()));
  }

  function groupElement(name) {
    return h("section", { role: "presentation" }, h("h2", null, name), h("div", { class: "rows" }));
  }

  function emptyText() {
    if (filter.q || filter.kind || filter.state || filter.agent) return "No run fits the filter.";
    return ["No runs yet. Start one: ", h("code", null, 'corral run gemini "Explain this repository"')];
  }

  async function more() {
    if (isLoading) return;
    isLoading = true;
    if (!runs.size) replace(end, h("p", { class: "dim" }, "Loading…"));
    const signal = load.signal;
    try {
      const page = await get("/api/runs", { ...filter, cursor, limit: 50 }, signal);
      for (const run of page.runs) runs.set(runKey(run), run);
      cursor = page.next ?? null;
      isLoading = false;
      replace(end, cursor ? h("p", { class: "dim" }, "Loading…") : (page.warnings ?? []).map((text) => h("p", { class: "dim small" }, text)));
      if (runs.size === page.runs.length) drawFilters();
      draw();
    } catch (error) {
      isLoading = false;
      if (error.name !== "AbortError") replace(end, h("p", { class: "empty bad" }, error.message));
    }
  }

  function restart() {
    load.abort();
    load = new AbortController();
    isLoading = false;
    runs.clear();
    cursor = null;
    more();
  }

  let timer = 0;
  search.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => set("q", search.value.trim()), SEARCH_DELAY);
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      list.querySelector("a.run")?.focus();
    }
  });
  const watcher = new IntersectionObserver((entries) => entries.some((each) => each.isIntersecting) && cursor && more());
  watcher.observe(end);
  const stream = follow("/api/stream", {}, {
    runs(changed) {
      for (const run of changed?.runs ?? changed ?? []) if (fits(run)) runs.set(runKey(run), run);
        else runs.delete(runKey(run));
      draw();
    },
    pending() {},
  });
  drawFilters();
  more();

  return {
    close() {
      stream.close();
      watcher.disconnect();
      load.abort();
      clearTimeout(timer);
    },
    keys: {
      j: [() => moveFocus(list, "a.run", 1), "next"],
      k: [() => moveFocus(list, "a.run", -1), "previous"],
      ArrowDown: [() => moveFocus(list, "a.run", 1), ""],
      ArrowUp: [() => moveFocus(list, "a.run", -1), ""],
      Enter: [() => document.activeElement?.click?.(), "open, expand"],
      "/": [() => search.select(), "search"],
      Escape: [() => (search.value ? ((search.value = ""), set("q", "")) : go("#/")), "back"],
    },
  };
}

