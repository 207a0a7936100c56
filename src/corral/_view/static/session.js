// One session: its conversation, changes, permissions, raw events and facts.

import { address, follow, get, isOffline, post, route } from "./api.js";
import { attempt, button, copyText, h, notice, refill, replace } from "./dom.js";
import { changeCounts, diffView } from "./diff.js";
import { bytes, clock, compact, duration, moment, number, plural, shorten, shortPath, tone, visible } from "./format.js";
import { answerWith, Conversation, decisionButtons, decisionText, planList } from "./items.js";
import { moveFocus } from "./keys.js";
import { statePill, timeAgo } from "./runs.js";
import { raiseButton, spendPanel } from "./spend.js";
import { PageList } from "./virtual.js";

const TABS = [["conversation", "Conversation"], ["changes", "Changes"], ["permissions", "Permissions"], ["events", "Events"], ["details", "Details"]];
const REFRESH_MS = 1500;

// The list of the items of a log: of a session, or of a visit in a pipeline.
export function conversationList(scroller, { base, log, query = {}, isLive, known, cwd }) {
  const conversation = new Conversation({
    body: (key) => get(`${base}/${key}`, query),
    cwd,
  });
  const list = new PageList(scroller, {
    pages: log.pages,
    follows: isLive || log.pages > 1,
    known,
    load: async (page) => (await get(base, { ...query, page })).items,
    show: (element, items) => conversation.show(element, items),
    keyOf: (item) => item.key,
    pageOf: (item) => Math.floor(item.key / log.page_bytes),
  });
  return { list, conversation };
}

export function conversationKeys(scroller, parts) {
  return {
    j: [() => moveFocus(scroller, ".item", 1), "next"],
    k: [() => moveFocus(scroller, ".item", -1), "previous"],
    Enter: [() => {
      const item = document.activeElement?.closest?.(".item");
      if (item) parts().conversation.toggle(item);
    }, "open, expand"],
    "g g": [() => parts().list.toStart(), "first item"],
    G: [() => parts().list.toEnd(), "last item, follow"],
  };
}

export function pendingCard(pending, decide, answer) {
  if (pending.kind === "permission") {
    return h(
      "div",
      { class: "ask", data: { request: pending.request_id } },
      h("div", { class: "word" }, "Permission needed"),
      h("div", { class: "title" }, shorten(pending.title, 400)),
      pending.lines?.length
        ? h("pre", { class: "preview" }, pending.lines.map((line) => h("span", { class: line.style ?? "" }, `${visible(line.text)}\n`)))
        : pending.text ? h("pre", { class: "preview" }, visible(pending.text)) : null,
      pending.answerable === false ? h("p", { class: "dim" }, "No process is there to receive an answer.") : isOffline ? null : decisionButtons(pending.request_id, decide),
    );
  }
  return questionCard(pending, answer, pending.run_kind === "session" ? (id) => decide(id, "deny") : null);
}

function questionCard(pending, answer, decline = null) {
  const input = h("input", { type: "text", "aria-label": "Answer", placeholder: "Answer", autocomplete: "off" });
  const comment = h("input", { type: "text", "aria-label": "Comment", placeholder: "Comment (optional)", autocomplete: "off" });
  const choices = pending.choices ?? [];
  return h(
    "div",
    { class: "ask question", data: { request: pending.request_id } },
    h("div", { class: "spread" }, h("div", { class: "word" }, "A person is asked"), pending.deadline ? h("span", { class: "dim small" }, `until ${moment(pending.deadline)}`) : null),
    h("div", { class: "title" }, visible(pending.text || pending.title)),
    pending.answerable === false ? h("p", { class: "dim" }, "No process is there to receive an answer.") : null,
    isOffline || !choices.length
      ? null
      : h("div", { class: "choices" }, choices.map((choice, index) => button(choice, () => answer(pending, choice, comment.value.trim()), { class: index ? "" : "primary" })), pending.run_kind === "pipeline" ? comment : null),
    isOffline || (choices.length && !pending.free_text)
      ? null
      : h("form", { class: "choices", on: { submit: (event) => { event.preventDefault(); answer(pending, input.value); } } }, input, h("button", { class: "primary" }, "Answer")),
    isOffline || !decline || pending.answerable === false ? null : h("div", { class: "choices" }, button("Decline", () => decline(pending.request_id))),
  );
}

export function pageHead({ summary, back, lines, actions }) {
  return h(
    "div",
    { class: "head" },
    h("div", { class: "head-line" }, isOffline ? null : h("a", { class: "back", href: back, "aria-label": "Back" }, "←"), h("h1", null, shorten(summary.title, 240) || summary.id), statePill(summary)),
    h("div", { class: "head-line sub dim" }, lines, h("span", { class: "grow" }), h("span", { class: "actions" }, actions)),
  );
}

export function tabBar(tabs, chosen, act) {
  return h(
    "div",
    { class: "tabs", role: "tablist" },
    tabs.map(([id, label, count]) =>
      h("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-selected": String(id === chosen), on: { click: () => act(id) } }, label, count ? h("span", { class: "count" }, String(count)) : null),
    ),
  );
}

export function fact(name, value) {
  return value === null || value === undefined || value === "" ? null : [h("dt", null, name), h("dd", null, value)];
}

export function sessionView(root, { id, query, go, title }) {
  const base = route("sessions", id);
  const head = h("div");
  const tabs = h("div");
  const asks = h("div", { class: "asks", "aria-live": "polite" });
  const scroller = h("div", { class: "scroller", tabindex: "-1", "aria-label": "Conversation" });
  const pane = h("div", { class: "pane", hidden: true });
  const steer = h("div");
  const follower = button("Follow", () => parts?.list.toEnd(), { class: "to-end", hidden: true });
  const aside = h("aside", { "aria-label": "Overview" });
  replace(root, h("div", { class: "detail-page" }, head, tabs, h("div", { class: "columns" }, h("div", { class: "column" }, asks, h("div", { class: "reader" }, scroller, follower), pane, steer), aside)));

  let tab = query.tab ?? "conversation";
  let detail = null;
  let parts = null;
  let stream = null;
  let timer = 0;
  let rawList = null;
  let isClosed = false;

  const decide = answerWith((requestId, decision) => post(route("sessions", id, "permissions", requestId), { decision }), () => refresh());
  const answer = (pending, text) => attempt(() => post(route("sessions", id, "answer"), { text, gate: pending.request_id }), "Answered").then(() => refresh());

  function lines() {
    const { summary, facts } = detail;
    return [
      h("span", null, [summary.agent, facts.version].filter(Boolean).join(" ")),
      facts.model ?? summary.model ? h("span", null, facts.model ?? summary.model) : null,
      h("span", { class: "path", title: summary.cwd }, shortPath(summary.cwd)),
      h("span", null, "last event ", timeAgo(summary.last_event ?? summary.updated)),
    ];
  }

  function actions() {
    const { summary, facts } = detail;
    if (isOffline) return [];
    return [
      summary.live ? button("Cancel", () => attempt(() => post(`${base}/cancel`), "Cancelled"), { class: "danger" }) : null,
      summary.live ? raiseButton({ state: summary.state, budgets: detail.budgets }, (given) => post(`${base}/budget`, given).then(refresh)) : null,
      facts.resume_command ? button("Copy resume command", () => copyText(facts.resume_command, "the command"), { title: facts.resume_command }) : null,
      h("a", { class: "button", href: `${base}/bundle`, download: "" }, "Download bundle"),
    ];
  }

  function draw() {
    const { summary, turns, pending } = detail;
    title(shorten(summary.title, 60) || id, pending.length);
    refill(head, [summary, detail.facts, Boolean(detail.budgets?.length)], () => pageHead({ summary, back: "#/", lines: lines(), actions: actions() }));
    const changed = new Set(turns.flatMap((turn) => turn.files.map((file) => file.path))).size;
    refill(tabs, [tab, changed, pending.length], () => tabBar(TABS.map(([name, label]) => [name, label, { changes: changed, permissions: pending.length }[name]]), tab, choose));
    refill(asks, pending, () => pending.map((each) => pendingCard(each, decide, answer)));
    refill(aside, [detail.turns, detail.usage, detail.plan, detail.context, detail.budgets, summary.cost_usd, detail.log], overview);
    const hasSteer = Boolean(steer.firstChild);
    const canSteer = summary.live && detail.facts.can_steer;
    if (canSteer && !hasSteer) replace(steer, steerForm());
    else if (!canSteer && hasSteer) replace(steer);
  }

  function overview() {
    const { turns, summary, facts, plan } = detail;
    const files = fileTotals(turns);
    return [
      spendPanel({ usage: detail.usage, usd: summary.cost_usd, source: summary.cost_source, context: detail.context, window: detail.context_window, budgets: detail.budgets }),
      plan.length ? h("section", { class: "panel" }, h("h3", null, "Plan"), planList(plan)) : null,
      files.length
        ? h("section", { class: "panel" }, h("h3", null, "Files changed"), h("ul", { class: "files" }, files.slice(0, 12).map((file) => h("li", null, h("button", { type: "button", class: "link", title: file.path, on: { click: () => choose("changes") } }, shortPath(file.path)), changeCounts(file.added, file.removed)))), files.length > 12 ? h("p", { class: "dim small" }, `and ${files.length - 12} more`) : null)
        : null,
      h(
        "section",
        { class: "panel" },
        h("h3", null, "Process"),
        h("dl", { class: "pairs" }, fact("Turns", number(turns.length)), fact("Started", clock(summary.created)), fact("Time", duration(turns.reduce((sum, turn) => sum + (turn.duration_ms ?? 0), 0))), fact("Sandbox", facts.sandbox ?? "none"), fact("Process", facts.pid), fact("Log", bytes(detail.log.size))),
      ),
    ];
  }

  function steerForm() {
    const input = h("input", { type: "text", placeholder: "Send a message to the running agent", "aria-label": "Message to the running agent", autocomplete: "off" });
    return h("form", { class: "steer", on: { submit: async (event) => {
      event.preventDefault();
      if (!input.value.trim()) return;
      if (await attempt(() => post(`${base}/steer`, { text: input.value }), "Sent")) input.value = "";
    } } }, input, h("button", null, "Send"));
  }

  function choose(name) {
    tab = name;
    history.replaceState(null, "", `#${address(`/sessions/${encodeURIComponent(id)}`, { tab: name === "conversation" ? "" : name })}`);
    const isConversation = name === "conversation";
    scroller.parentElement.hidden = !isConversation;
    pane.hidden = isConversation;
    rawList?.close();
    rawList = null;
    draw();
    if (!isConversation) replace(pane, { changes, permissions, events, details }[name]());
    else parts?.list.measured();
  }

  function changes() {
    const turns = detail.turns.filter((turn) => turn.has_diff || turn.files.length);
    if (!turns.length) return h("p", { class: "empty" }, "This session changed no files");
    return turns.map((turn) => {
      const place = h("div", null, h("p", { class: "dim" }, "Loading…"));
      if (turn.has_diff) get(`${base}/diff/${turn.number}`).then((found) => replace(place, diffView(found.files)), (error) => replace(place, fileList(turn, error.message)));
      else replace(place, fileList(turn, "The lines of this change are not stored."));
      return h("section", { class: "turn" }, h("h3", null, `Turn ${turn.number}`, h("span", { class: "dim" }, ` ${shorten(turn.prompt, 120)}`)), place);
    });
  }

  function fileList(turn, why) {
    return [h("ul", { class: "files" }, turn.files.map((file) => h("li", null, h("span", { class: `badge ${file.kind}` }, file.kind), h("code", null, visible(file.path)), changeCounts(file.lines_added, file.lines_removed)))), h("p", { class: "dim small" }, why)];
  }

  function permissions() {
    const rows = h("tbody");
    const asked = new Map();
    const more = h("div");
    async function load(page) {
      const found = await attempt(() => get(`${base}/events`, { page, q: '"permission_' }));
      for (const { line } of found?.events ?? []) note(parsedEvent(line));
      replace(rows, [...asked.values()].map(permissionRow));
      const isEmpty = !asked.size && found?.next == null;
      replace(more, found?.next != null ? button("Search on", () => load(found.next), { class: "link" }) : isEmpty ? h("p", { class: "empty" }, "The agent has asked for no permission") : null);
    }
    function note(event) {
      const known = asked.get(event.request_id) ?? {};
      if (event.type === "permission_request") asked.set(event.request_id, { ...known, ...event, asked_at: event.ts });
      else if (event.type === "permission_decision") asked.set(event.request_id, { ...event, ...known, decision: event.decision, by: event.by, rule: event.rule, ts: event.ts });
    }
    load(0);
    return [h("table", { class: "table" }, h("thead", null, h("tr", null, ["Time", "Kind", "Request", "Decision", "Rule"].map((each) => h("th", null, each)))), rows), more];
  }

  function permissionRow(asked) {
    return h(
      "tr",
      null,
      h("td", { class: "dim" }, clock(asked.asked_at ?? asked.ts)),
      h("td", null, asked.kind ?? ""),
      h("td", { class: "wide" }, shorten(asked.title ?? asked.request_id, 200)),
      h("td", { class: asked.decision === "deny" ? "bad" : "" }, decisionText(asked)),
      h("td", null, asked.rule ? h("code", null, shorten(asked.rule, 120)) : ""),
    );
  }

  function events() {
    const box = h("div", { class: "scroller raw" });
    const search = h("input", { type: "search", placeholder: "Search raw events", "aria-label": "Search raw events" });
    function all() {
      rawList = new PageList(box, {
        pages: detail.log.pages,
        follows: true,
        load: async (page) => (await get(`${base}/events`, { page })).events,
        show: (element, lines) => replace(element, lines.map(rawLine)),
        keyOf: (event) => event.offset,
        pageOf: (event) => Math.floor(event.offset / detail.log.page_bytes),
      });
    }
    async function find(text) {
      rawList?.close();
      rawList = null;
      if (!text) return all();
      const hits = h("div");
      const rest = h("div");
      replace(box, hits, rest);
      await scan(text, 0, hits, rest);
    }
    async function scan(text, page, hits, rest) {
      replace(rest, h("p", { class: "dim" }, "Searching…"));
      const found = await attempt(() => get(`${base}/events`, { page, q: text }));
      if (!found) return;
      hits.append(...found.events.map(rawLine));
      replace(rest, found.next != null ? button("Search on", () => scan(text, found.next, hits, rest), { class: "link" }) : h("p", { class: "dim" }, plural(hits.childElementCount, "hit")));
    }
    let wait = 0;
    search.addEventListener("input", () => {
      clearTimeout(wait);
      wait = setTimeout(() => find(search.value.trim()), 250);
    });
    queueMicrotask(all);
    return [h("div", { class: "toolbar" }, h("div", { class: "search" }, search), h("span", { class: "dim small" }, `${bytes(detail.log.size)} in ${plural(detail.log.pages, "page")}`)), box];
  }

  function rawLine(event) {
    if (event.kind === "error") return h("p", { class: "bad" }, event.text);
    const type = /"type":"(\w+)"/.exec(event.line)?.[1] ?? "";
    const body = h("pre", null, event.line.length > 600 ? `${visible(event.line.slice(0, 600))}…` : visible(event.line));
    const row = h("div", { class: "raw-line" }, h("button", { type: "button", class: "link type", "aria-expanded": "false", title: `byte ${event.offset}` }, type || "line"), body);
    row.firstChild.addEventListener("click", () => {
      const isOpen = row.classList.toggle("open");
      row.firstChild.setAttribute("aria-expanded", String(isOpen));
      body.textContent = isOpen ? indented(event.line) : visible(event.line.slice(0, 600));
    });
    return row;
  }

  function indented(line) {
    try {
      return visible(JSON.stringify(JSON.parse(line), null, 2));
    } catch {
      return visible(line);
    }
  }

  function details() {
    const { facts, turns, summary } = detail;
    return [
      h("section", { class: "panel" }, h("h3", null, "Process"), h("dl", { class: "pairs wide" },
        fact("Agent", [facts.agent, facts.version].filter(Boolean).join(" ")), fact("Model", facts.model), fact("Folder", facts.cwd), fact("Session", id), fact("Agent's session", facts.session_id),
        fact("Credentials", facts.auth), fact("Sandbox", [facts.sandbox ?? "none", facts.sandbox_reason].filter(Boolean).join(": ")), fact("Process", facts.pid), fact("State", summary.state_text),
        fact("Command", facts.argv?.length ? h("code", null, facts.argv.map(shellWord).join(" ")) : null), fact("Resume", facts.resume_command ? h("span", null, h("code", null, facts.resume_command), " ", button("Copy", () => copyText(facts.resume_command, "the command"), { class: "link" })) : null),
        fact("Resume in its own program", facts.native_resume_command ? h("span", null, h("code", null, facts.native_resume_command), " ", button("Copy", () => copyText(facts.native_resume_command, "the command"), { class: "link" })) : null),
        fact("Capabilities", facts.capabilities?.join(", ")), fact("Tools", facts.tools?.join(", ")))),
      facts.policy_report ? h("section", { class: "panel" }, h("h3", null, "Policy"), h("pre", null, visible(facts.policy_report))) : null,
      facts.stderr_tail ? h("section", { class: "panel" }, h("h3", null, "Standard error"), h("pre", { class: "log" }, visible(facts.stderr_tail))) : null,
      h("section", { class: "panel" }, h("h3", null, "Turns"), h("table", { class: "table" }, h("thead", null, h("tr", null, ["", "Prompt", "Status", "Time", "In", "Out", "Cost"].map((each, index) => h("th", { class: index > 2 ? "num" : "" }, each)))), h("tbody", null, turns.map(turnRow)))),
    ];
  }

  function turnRow(turn) {
    return h("tr", null, h("td", { class: "dim" }, String(turn.number)),
      h("td", { class: "wide" }, h("button", { type: "button", class: "link", on: { click: () => showTurn(turn) } }, shorten(turn.prompt, 160) || "(no prompt)"), turn.error ? h("div", { class: "bad small" }, shorten(turn.error, 300)) : null),
      h("td", null, h("span", { class: `state ${tone(turn.status)}` }, turn.status)), h("td", { class: "num" }, duration(turn.duration_ms)), h("td", { class: "num" }, compact(turn.usage?.input)), h("td", { class: "num" }, compact(turn.usage?.output)), h("td", { class: "num" }, turn.cost?.usd == null ? "–" : `$${turn.cost.usd.toFixed(4)}`));
  }

  function showTurn(turn) {
    choose("conversation");
    parts.list.follows = false;
    parts.list.goTo(Math.floor(turn.log_start / detail.log.page_bytes));
  }

  async function refresh() {
    clearTimeout(timer);
    timer = 0;
    try {
      const found = await get(base);
      if (isClosed) return;
      detail = found;
      draw();
    } catch (error) {
      notice(error.message, "bad");
    }
  }

  function refreshSoon() {
    if (!timer) timer = setTimeout(refresh, REFRESH_MS);
  }

  async function start() {
    try {
      detail = await get(base);
    } catch (error) {
      replace(root, h("p", { class: "empty bad" }, error.message));
      return;
    }
    if (isClosed) return;
    draw();
    parts = conversationList(scroller, { base: `${base}/items`, log: detail.log, isLive: detail.summary.live, cwd: detail.summary.cwd });
    scroller.addEventListener("scroll", () => (follower.hidden = parts.list.follows), { passive: true });
    followSession(detail.log.size);
    if (tab !== "conversation") choose(tab);
  }

  function followSession(cursor) {
    stream = follow(`${base}/stream`, { cursor }, {
      items(found) {
        parts.list.upsert(found?.items ?? found);
        rawList?.measured();
        refreshSoon();
      },
      state(found) {
        detail.summary = found.summary ?? found;
        if (found.pending) detail.pending = found.pending;
        draw();
        refreshSoon();
      },
      end: () => refresh().then(() => isClosed || waitForNextTurn(stream.cursor())),
      connected: (isUp) => root.classList.toggle("lost", !isUp),
    });
  }

  // A session that is not running can get a further prompt in any process.
  function waitForNextTurn(cursor) {
    stream = follow("/api/stream", {}, {
      runs(changed) {
        if (!(changed?.runs ?? []).some((run) => run.id === id && run.live)) return;
        stream.close();
        refresh().then(() => isClosed || followSession(cursor));
      },
    });
  }

  function decideFirst(decision) {
    const first = detail?.pending.find((each) => each.kind === "permission");
    if (first) decide(first.request_id, decision);
  }

  start();
  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      stream?.close();
      parts?.list.close();
      rawList?.close();
    },
    keys: {
      ...conversationKeys(scroller, () => parts),
      a: [() => decideFirst("allow_once"), "allow the first pending permission"],
      d: [() => decideFirst("deny"), "deny it"],
      "/": [() => { choose("events"); pane.querySelector("input")?.focus(); }, "search"],
      Escape: [() => (tab === "conversation" ? go("#/") : choose("conversation")), "back"],
      ...Object.fromEntries(TABS.map(([name, label], index) => [String(index + 1), [() => choose(name), index ? "" : "1–5: tabs"]])),
    },
  };
}

function fileTotals(turns) {
  const totals = new Map();
  for (const file of turns.flatMap((turn) => turn.files)) {
    const known = totals.get(file.path) ?? { path: file.path, added: 0, removed: 0 };
    known.added += file.lines_added ?? 0;
    known.removed += file.lines_removed ?? 0;
    totals.set(file.path, known);
  }
  return [...totals.values()];
}

// A raw event. Of one that the server has cut, the short fields are found.
function parsedEvent(line) {
  try {
    return JSON.parse(line);
  } catch {
    const field = (name) => new RegExp(`"${name}":"([^"\\\\]*)"`).exec(line)?.[1];
    return { type: field("type"), request_id: field("request_id"), decision: field("decision"), by: field("by"), title: "(too long to show)" };
  }
}

function shellWord(word) {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replace(/'/g, "'\\''")}'`;
}
