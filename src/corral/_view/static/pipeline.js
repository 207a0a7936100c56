// One pipeline: its graph with the path taken, its gates, its steps, and replay.

import { address, follow, get, isOffline, post, route } from "./api.js";
import { attempt, button, h, refill, replace, svg } from "./dom.js";
import { clock, compact, duration, money, number, plural, shorten, shortPath, tone, visible } from "./format.js";
import { moveFocus } from "./keys.js";
import { answerWith } from "./items.js";
import { drawing } from "./markup.js";
import { timeAgo } from "./runs.js";
import { budgetBars, raiseButton } from "./spend.js";
import { conversationKeys, conversationList, fact, pageHead, pendingCard } from "./session.js";

const PLAY_MS = 450;
const NODE_TONES = ["live", "wait", "good", "bad", "idle", "none"];
const ZOOMS = [0.4, 0.5, 0.65, 0.8, 1, 1.25, 1.6, 2];

export function pipelineView(root, { id, query, go, title }) {
  const base = route("pipelines", id);
  const where = { db: query.db };
  const head = h("div");
  const asks = h("div", { class: "asks", "aria-live": "polite" });
  const canvas = h("div", { class: "graph", tabindex: "-1", "aria-label": "Graph" });
  const zoomBox = h("div", { class: "zoom" });
  const player = h("div", { class: "player" });
  const panel = h("aside", { class: "node-panel", "aria-label": "Step" });
  replace(root, h("div", { class: "detail-page pipeline" }, head, asks, h("div", { class: "columns" }, h("div", { class: "column" }, h("div", { class: "graph-box" }, canvas, zoomBox), player), panel)));

  let detail = null;
  let steps = [];
  let position = null;
  let selected = query.node ?? null;
  let scale = null;
  let ticking = 0;
  let stream = null;
  let parts = null;
  let shownLog = "";
  let timer = 0;
  let isClosed = false;
  let shownSvg = "";

  // A gate of the run, or a question of the agent of a node.
  const reply = (pending, text, comment) => (pending.run_kind === "pipeline"
    ? post(`${base}/answer`, { text, gate: pending.request_id, comment }, where)
    : post(route("sessions", pending.run_id, "answer"), { text, gate: pending.request_id }));
  const answer = (pending, text, comment = "") => attempt(() => reply(pending, text, comment), "Answered").then(() => refresh());

  function lines() {
    const { summary, path } = detail;
    return [
      h("span", null, plural(path.length, "step")),
      summary.tokens == null ? null : h("span", null, `${compact(summary.tokens)} tokens`),
      summary.cost_usd == null ? null : h("span", null, money(summary.cost_usd)),
      detail.durable ? null : h("span", { title: "It asks where it was started, and cannot be continued or retried." }, "in memory"),
      detail.goal && detail.goal !== summary.title ? h("span", { class: "goal" }, shorten(detail.goal, 120)) : null,
      h("span", null, "last event ", timeAgo(summary.last_event ?? summary.updated)),
    ];
  }

  function actions() {
    if (isOffline) return [];
    const runs = ["running", "queued", "waiting_person", "rate_limited", "paused", "stalled"].includes(detail.summary.state);
    return [
      runs ? raiseButton({ state: detail.summary.state, budgets: detail.budgets }, (given) => post(`${base}/budget`, given, where).then((done) => refresh().then(() => done))) : null,
      runs ? button("Cancel", () => attempt(() => post(`${base}/cancel`, {}, where), "Cancelled").then(refresh), { class: "danger" }) : null,
      h("a", { class: "button", href: address(`${base}/bundle`, where), download: "" }, "Download bundle"),
    ];
  }

  function draw() {
    title(shorten(detail.summary.title, 60) || id, detail.questions.length);
    refill(head, [detail.summary, detail.path.length, Boolean(detail.budgets?.length)], () => pageHead({ summary: detail.summary, back: "#/", lines: lines(), actions: actions() }));
    refill(asks, detail.questions, () => detail.questions.map((each) => pendingCard(each, answerWith((request, decision) => post(route("sessions", each.run_id, "permissions", request), { decision }), refresh), answer)));
    if (shownSvg !== detail.graph.svg) {
      shownSvg = detail.graph.svg;
      drawGraph();
    }
    paint();
    drawPanel();
  }

  function drawGraph() {
    const drawn = drawing(detail.graph.svg);
    for (const node of detail.graph.nodes) {
      const group = nodeElement(drawn, node.id);
      if (!group) continue;
      group.classList.add("step-node");
      group.setAttribute("tabindex", "0");
      group.setAttribute("role", "button");
      group.setAttribute("aria-label", visible(node.label));
      group.addEventListener("click", () => select(node.id));
      group.addEventListener("keydown", (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), select(node.id)));
      const label = group.querySelector("text");
      if (label) group.append(svg("text", { class: "facts", x: label.getAttribute("x"), y: Number(label.getAttribute("y")) + 10 }));
    }
    for (const marker of drawn.querySelectorAll("marker")) {
      for (const [name, value] of [["markerUnits", "userSpaceOnUse"], ["markerWidth", "9"], ["markerHeight", "9"]]) marker.setAttribute(name, value);
    }
    replace(canvas, drawn);
    fit();
    replace(zoomBox, button("−", () => zoom(-1), { "aria-label": "Smaller" }), button("+", () => zoom(1), { "aria-label": "Larger" }), button("Fit", () => { scale = null; fit(); }));
  }

  function nodeElement(drawn, name) {
    for (const group of drawn.querySelectorAll("g")) if ((group.dataset.node ?? group.id) === name) return group;
    return null;
  }

  function fit() {
    const drawn = canvas.querySelector("svg");
    if (!drawn) return;
    const [, , width, height] = drawn.getAttribute("viewBox").split(" ").map(Number);
    const full = Math.min(1.15, (canvas.clientWidth - 24) / width, Math.max(0.78, (canvas.clientHeight - 24) / height));
    const used = scale ?? Math.max(0.4, full);
    drawn.style.setProperty("width", `${width * used}px`);
    drawn.style.setProperty("height", `${height * used}px`);
    canvas.dataset.scale = used;
  }

  function zoom(step) {
    const now = scale ?? Number(canvas.dataset.scale);
    const larger = ZOOMS.find((each) => each > now + 0.01) ?? 2;
    const smaller = [...ZOOMS].reverse().find((each) => each < now - 0.01) ?? 0.4;
    scale = step > 0 ? larger : smaller;
    fit();
  }

  // The state of each node and edge: now, or at the position of the slider.
  function states() {
    if (position === null || position >= steps.length) {
      return {
        nodes: new Map(detail.graph.nodes.map((node) => [node.id, node.state])),
        edges: detail.graph.edges.map((edge) => edge.taken),
      };
    }
    const nodes = new Map();
    const edges = detail.graph.edges.map(() => 0);
    for (const event of steps.slice(0, position)) {
      if (event.node && event.state) nodes.set(event.node, event.state);
      for (const edge of event.edges) edges[edge] += 1;
    }
    return { nodes, edges };
  }

  function paint() {
    const { nodes, edges } = states();
    const isNow = position === null || position >= steps.length;
    for (const node of detail.graph.nodes) {
      const group = nodeElement(canvas, node.id);
      if (!group) continue;
      const state = nodes.get(node.id);
      group.classList.remove(...NODE_TONES);
      group.classList.add(!state || state === "idle" ? "none" : tone(state));
      group.classList.toggle("selected", node.id === selected);
      const facts = group.querySelector(".facts");
      const text = isNow ? nodeFacts(node) : state && state !== "idle" ? state : "";
      if (facts) facts.textContent = text;
      group.classList.toggle("has-facts", Boolean(text));
    }
    const drawnEdges = canvas.querySelectorAll("path.edge");
    detail.graph.edges.forEach((_, index) => drawnEdges[index]?.classList.toggle("taken", edges[index] > 0));
    drawPlayer();
  }

  function nodeFacts(node) {
    const parts = [];
    if (node.visits > 1) parts.push(`${node.visits}×`);
    if (node.attempts > 1) parts.push(plural(node.attempts, "attempt"));
    if (node.cost_usd) parts.push(money(node.cost_usd));
    else if (node.ended && node.started && node.ended - node.started >= 1) parts.push(duration((node.ended - node.started) * 1000));
    return parts.join(" · ");
  }

  function drawPlayer() {
    if (!steps.length) return replace(player);
    const now = position ?? steps.length;
    const event = steps[now - 1];
    if (!player.firstChild) {
      const slider = h("input", { type: "range", min: "0", "aria-label": "Position in the run" });
      slider.addEventListener("input", () => seek(Number(slider.value)));
      replace(player, button("", toggle, { class: "play" }), slider, h("span", { class: "where" }));
    }
    const [play, slider, text] = player.children;
    play.textContent = ticking ? "Pause" : "Replay";
    slider.max = steps.length;
    slider.value = now;
    replace(text, h("span", { class: "dim" }, `${number(now)} of ${number(steps.length)}`), " ", event ? h("span", null, clock(event.ts), " ", eventText(event)) : "the start");
    return player;
  }

  function eventText(event) {
    if (!event.node) return shorten([event.type.replaceAll("_", " "), event.text].filter(Boolean).join(": "), 120);
    const what = event.state ?? event.type.replaceAll("_", " ");
    const more = event.state === "running" ? "" : event.text;
    return shorten(`${labelOf(event.node)}: ${[what, more].filter(Boolean).join(", ")}`, 120);
  }

  function seek(to) {
    position = to >= steps.length ? null : to;
    paint();
  }

  function toggle() {
    if (ticking) return pause();
    if (position === null) position = 0;
    ticking = setInterval(() => {
      seek((position ?? steps.length) + 1);
      if (position === null) pause();
    }, PLAY_MS);
    return paint();
  }

  function pause() {
    clearInterval(ticking);
    ticking = 0;
    paint();
  }

  function select(name) {
    selected = name;
    history.replaceState(null, "", `#${address(`/pipelines/${encodeURIComponent(id)}`, { ...where, node: name })}`);
    shownLog = "";
    paint();
    drawPanel();
  }

  function drawPanel() {
    const node = detail.graph.nodes.find((each) => each.id === selected);
    const key = node ? `${node.id}/${node.visit}` : "path";
    if (key === shownLog && node && parts) return drawNodeHead(node);
    shownLog = key;
    parts?.list.close();
    parts = null;
    return node ? drawNode(node) : drawPath();
  }

  function drawPath() {
    const { path } = detail;
    return replace(
      panel,
      h("h3", null, "Path"),
      path.length ? null : h("p", { class: "dim" }, "No step has started."),
      h("ol", { class: "path" }, path.map((visit) => h("li", null, h("button", { type: "button", class: "step", on: { click: () => select(visit.node) } },
        h("span", { class: `mark ${tone(visit.status)}` }), h("span", { class: "name" }, labelOf(visit.node)), h("span", { class: "dim" }, [visit.status, visit.attempts > 1 ? plural(visit.attempts, "attempt") : "", visit.ended ? duration((visit.ended - visit.started) * 1000) : ""].filter(Boolean).join(" · ")))))),
      detail.reason ? h("p", { class: "small" }, visible(detail.reason)) : null,
      budgetBars(detail.budgets),
      h("dl", { class: "pairs" }, fact("Folder", detail.folder ? h("span", { title: detail.folder }, shortPath(detail.folder)) : null), fact("Branch", detail.branch), fact("Forked from", detail.forked_from)),
    );
  }

  function labelOf(name) {
    return shorten(detail.graph.nodes.find((each) => each.id === name)?.label ?? name, 60);
  }

  function drawNodeHead(node) {
    replace(
      panel.firstElementChild,
      h("div", { class: "spread" }, h("h3", null, visible(node.label)), button("All steps", () => select(null), { class: "link" })),
      h("dl", { class: "pairs" }, fact("State", node.state), fact("Kind", node.kind), fact("Visits", node.visits || null), fact("Attempts", node.attempts || null), fact("Cost", node.cost_usd == null ? null : money(node.cost_usd)), fact("Tokens", node.tokens == null ? null : compact(node.tokens)), fact("Time", node.ended ? duration((node.ended - node.started) * 1000) : null)),
      node.reason ? h("p", { class: "bad" }, visible(node.reason)) : null,
      node.notes ? h("p", { class: "notes" }, shorten(node.notes, 600)) : null,
      h("div", { class: "choices" },
        node.session ? h("a", { class: "button", href: `#/sessions/${encodeURIComponent(node.session)}` }, "Open the session") : null,
        !isOffline && detail.durable && node.visits ? button("Retry from here", () => retry(node)) : null),
    );
  }

  async function retry(node) {
    const done = await attempt(() => post(`${base}/retry`, { node: node.id }, where), (found) => found?.message || "A new run was started");
    if (done?.id) go(`#${address(`/pipelines/${encodeURIComponent(done.id)}`, where)}`);
  }

  async function drawNode(node) {
    const scroller = h("div", { class: "scroller" });
    replace(panel, h("div", { class: "node-head" }), scroller);
    drawNodeHead(node);
    const visit = detail.path.findLast?.((each) => each.node === node.id && each.has_log);
    if (!visit) {
      replace(scroller, h("p", { class: "dim" }, "This step has no conversation."));
      return;
    }
    const items = `${route("pipelines", id, "visits", visit.visit)}/items`;
    try {
      const first = await get(items, { ...where, page: "last" });
      if (isClosed || shownLog !== `${node.id}/${node.visit}`) return;
      const log = { pages: first.pages, page_bytes: first.page ? first.first_byte / first.page : 32768 };
      parts = conversationList(scroller, { base: items, log, query: where, isLive: node.state === "running", known: [[first.page, first.items]], cwd: detail.summary.cwd });
    } catch (error) {
      replace(scroller, h("p", { class: "dim" }, error.message));
    }
  }

  async function refresh() {
    clearTimeout(timer);
    timer = 0;
    const found = await attempt(() => get(base, where));
    const events = await attempt(() => get(`${base}/events`, { ...where, after: 0 }));
    if (isClosed || !found) return;
    detail = found;
    steps = (events?.events ?? []).filter((event) => event.type !== "checkpoint_saved");
    draw();
  }

  function refreshSoon() {
    if (!timer) timer = setTimeout(refresh, 400);
  }

  const resized = new ResizeObserver(fit);
  resized.observe(canvas);
  refresh().then(() => {
    if (!detail && !isClosed) return replace(root, h("p", { class: "empty bad" }, "This run could not be read."));
    if (!isClosed) stream = follow(`${base}/stream`, { query: where }, { state: refreshSoon, events: refreshSoon, pipeline: refreshSoon, end: refreshSoon });
    return undefined;
  });

  return {
    close() {
      isClosed = true;
      clearTimeout(timer);
      clearInterval(ticking);
      resized.disconnect();
      stream?.close();
      parts?.list.close();
    },
    keys: {
      ...conversationKeys(panel, () => parts ?? { conversation: { toggle() {} }, list: { toStart() {}, toEnd() {} } }),
      j: [() => moveFocus(panel, ".item, .path button", 1), "next"],
      k: [() => moveFocus(panel, ".item, .path button", -1), "previous"],
      " ": [toggle, "replay, pause"],
      ArrowRight: [() => seek((position ?? steps.length) + 1), "replay: next step"],
      ArrowLeft: [() => seek(Math.max(0, (position ?? steps.length) - 1)), "replay: previous step"],
      Escape: [() => (selected ? select(null) : go("#/")), "back"],
    },
  };
}
