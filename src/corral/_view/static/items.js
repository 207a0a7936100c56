// The items of a conversation as elements: one line for each tool call, bodies loaded on expand.

import { attempt, button, h, keyed, replace } from "./dom.js";
import { clock, duration, moment, money, shorten, tone, visible } from "./format.js";
import { setMarkup } from "./markup.js";
import { usageText } from "./spend.js";

const MANY_CHILDREN = 6;
const DECISIONS = {
  allow_once: "allowed",
  allow_session: "allowed for the session",
  deny: "denied",
  cancel: "cancelled",
};
const DECIDERS = { policy: "by the policy", person: "by a person", timeout: "at the deadline", agent: "by the agent", hook: "by a hook" };
const STEPS = { completed: "done", done: "done", in_progress: "now", pending: "open", cancelled: "left out" };

// One conversation on the page. `body(key)` loads the complete item.
export class Conversation {
  constructor({ body, cwd }) {
    this.body = body;
    this.cwd = cwd;
    this.open = new Set();
    this.folded = new Map();
  }

  // Fills the element of a page.
  show(element, items) {
    const { order, depths, tools } = nest(items);
    keyed(element, order, (item) => item.key, (item, old) => this.element(item, old));
    const hidden = new Set();
    for (const child of element.children) {
      const item = child.valueShown;
      const depth = depths.get(item.key) ?? 0;
      child.dataset.depth = Math.min(depth, 4);
      const isHidden = item.parent && (hidden.has(item.parent) || this.isFolded(tools.get(item.parent)));
      if (isHidden && item.tool) hidden.add(item.tool.call_id);
      child.hidden = Boolean(isHidden);
    }
    this.addFolds(element, tools);
  }

  isFolded(tool) {
    if (!tool) return false;
    return this.folded.get(tool.call.call_id) ?? (Boolean(tool.call.status) && tool.children > MANY_CHILDREN);
  }

  addFolds(element, tools) {
    for (const tool of tools.values()) {
      if (!tool.children) continue;
      const row = [...element.children].find((child) => child.valueShown === tool.item);
      const place = row?.querySelector(".fold");
      if (!place) continue;
      const folded = this.isFolded(tool);
      replace(
        place,
        button(
          `${folded ? "show" : "hide"} ${tool.children} of the sub-agent`,
          () => {
            this.folded.set(tool.call.call_id, !folded);
            this.show(element, [...element.children].map((child) => child.valueShown));
          },
          { class: "link" },
        ),
      );
    }
  }

  element(item, old) {
    const wasFocused = old?.contains(document.activeElement);
    const node = h(
      "article",
      { class: `item ${item.kind}`, tabindex: "-1", data: { key: item.key } },
      (SHOWN[item.kind] ?? showOther)(item, this),
      item.ts ? h("time", { class: "at", title: moment(item.ts) }, clock(item.ts)) : null,
    );
    if (this.open.has(item.key)) this.expand(node, item);
    if (wasFocused) queueMicrotask(() => node.focus({ preventScroll: true }));
    return node;
  }

  // Opens or closes the body of an item.
  toggle(node) {
    const item = node.valueShown;
    const fold = node.querySelector("details");
    if (fold) {
      fold.open = !fold.open;
      return;
    }
    if (!canExpand(item)) return;
    if (this.open.delete(item.key)) {
      node.querySelector(".body")?.remove();
      mark(node, false);
    } else {
      this.open.add(item.key);
      this.expand(node, item);
    }
  }

  async expand(node, item) {
    mark(node, true);
    if (item.tool?.status && !item.tool.has_more) {
      node.append(h("div", { class: "body" }, bodyOf(item, { output: item.tool.preview })));
      return;
    }
    const place = h("div", { class: "body" }, h("p", { class: "dim" }, "Loading…"));
    node.append(place);
    try {
      const found = await this.body(item.key);
      replace(place, bodyOf(item, found));
    } catch (error) {
      replace(place, h("p", { class: "bad" }, error.message));
    }
  }
}

function mark(node, isOpen) {
  node.classList.toggle("open", isOpen);
  node.querySelector("[aria-expanded]")?.setAttribute("aria-expanded", String(isOpen));
}

function canExpand(item) {
  return Boolean(item.tool || item.more || item.kind === "vendor" || item.permission);
}

// Items of a sub-agent follow the tool call that started it; a permission stands before its call.
function nest(items) {
  const tools = new Map();
  const children = new Map();
  const permissions = new Map();
  const roots = [];
  for (const item of items) if (item.tool) tools.set(item.tool.call_id, { item, call: item.tool, children: 0 });
  for (const item of items) {
    const call = item.permission?.call_id;
    if (call && tools.has(call)) permissions.set(call, [...(permissions.get(call) ?? []), item]);
  }
  for (const item of items) {
    const tool = item.parent && tools.get(item.parent);
    if (tool && tool.item !== item) {
      tool.children += 1;
      children.set(item.parent, [...(children.get(item.parent) ?? []), item]);
    } else roots.push(item);
  }
  const order = [];
  const depths = new Map();
  function add(item, depth) {
    if (depths.has(item.key)) return;
    depths.set(item.key, depth);
    for (const asked of (item.tool && permissions.get(item.tool.call_id)) ?? []) add(asked, depth);
    order.push(item);
    for (const child of (item.tool && children.get(item.tool.call_id)) ?? []) add(child, depth + 1);
  }
  for (const item of roots) add(item, item.parent ? 1 : 0);
  return { order, depths, tools };
}

// A path in the workspace without the workspace. A command stays as it is.
function inWorkspace(text, cwd) {
  const folder = cwd && !cwd.endsWith("/") ? `${cwd}/` : cwd;
  if (!folder || !text) return text ?? "";
  return text.split(" ").map((word) => (word.startsWith(folder) && word.length > folder.length ? word.slice(folder.length) : word)).join(" ");
}

function expander(item, conversation, properties, ...children) {
  const node = h("button", { type: "button", "aria-expanded": "false", ...properties }, children);
  node.addEventListener("click", () => conversation.toggle(node.closest(".item")));
  return node;
}

function moreOf(item, conversation) {
  return item.more ? expander(item, conversation, { class: "link" }, "Show all") : null;
}

function markdown(item) {
  return item.html ? setMarkup(h("div", { class: "markdown" }), item.html) : h("pre", { class: "plain" }, visible(item.text));
}

function showPrompt(item, conversation) {
  return [h("div", { class: "who" }, "Prompt"), markdown(item), moreOf(item, conversation)];
}

function showText(item, conversation) {
  return [markdown(item), moreOf(item, conversation)];
}

function showThinking(item, conversation) {
  const text = visible(item.text);
  return h(
    "details",
    null,
    h("summary", null, h("span", { class: "word" }, "Thinking"), " ", h("span", { class: "dim cut" }, shorten(text, 140))),
    item.html ? markdown(item) : h("div", { class: "thoughts" }, text),
    moreOf(item, conversation),
  );
}

const GLYPHS = {
  read: "read",
  edit: "edit",
  delete: "delete",
  move: "move",
  search: "search",
  execute: "run",
  fetch: "fetch",
  think: "think",
  mcp: "mcp",
  other: "tool",
};

function showTool(item, conversation) {
  const call = item.tool;
  const named = call.target || call.title || call.name;
  const target = call.kind === "execute" ? named : inWorkspace(named, conversation.cwd);
  const failed = call.status && call.status !== "success";
  return [
    expander(
      item,
      conversation,
      { class: "call", title: visible(call.title || call.name) },
      h("span", { class: `mark ${call.status ? tone(call.status) : "live"}`, "aria-hidden": "true" }),
      h("span", { class: "kind" }, GLYPHS[call.kind] ?? call.kind),
      h("code", { class: "target" }, shorten(target, 240)),
      h("span", { class: "result" }, callResult(call)),
    ),
    failed && call.preview ? h("pre", { class: "preview" }, visible(call.preview)) : null,
    h("div", { class: "fold" }),
  ];
}

function callResult(call) {
  const parts = [];
  if (!call.status) parts.push("running");
  else if (call.status !== "success") parts.push(call.status);
  if (call.exit !== undefined && call.exit !== null) parts.push(`exit ${call.exit}`);
  if (call.duration_ms !== undefined && call.duration_ms !== null) parts.push(duration(call.duration_ms));
  return parts.join(" · ");
}

export function planList(entries) {
  return h(
    "ol",
    { class: "plan" },
    entries.map((step) =>
      h("li", { class: (STEPS[step.status] ?? "open").replace(" ", "-") }, h("span", { class: "step" }), visible(step.content)),
    ),
  );
}

function showPlan(item) {
  return h("details", { open: true }, h("summary", null, h("span", { class: "word" }, "Plan")), planList(item.plan ?? []));
}

export function decisionText(permission) {
  if (!permission.decision) return "waiting";
  return `${DECISIONS[permission.decision] ?? permission.decision} ${DECIDERS[permission.by] ?? permission.by ?? ""}`.trim();
}

export function decisionButtons(requestId, decide) {
  const choose = (decision, label, kind) => button(label, () => decide(requestId, decision), { class: kind, data: { decision } });
  return h(
    "div",
    { class: "choices" },
    choose("allow_once", "Allow once", "primary"),
    choose("allow_session", "Allow for the session", ""),
    choose("deny", "Deny", "danger"),
  );
}

function showPermission(item, conversation) {
  const asked = item.permission;  // one that waits has its card above the conversation
  const isDenied = asked.decision === "deny" || asked.decision === "cancel";
  return h(
    "div",
    { class: "line" },
    h("span", { class: `mark ${isDenied ? "bad" : asked.decision ? "good" : "wait"}`, "aria-hidden": "true" }),
    h("span", { class: "kind" }, "permission"),
    h("span", { class: "target" }, shorten(inWorkspace(asked.title || asked.request_id, conversation.cwd), 200)),
    h("span", { class: "result" }, decisionText(asked), asked.rule ? h("code", null, ` ${shorten(asked.rule, 80)}`) : null),
  );
}

function showFile(item, conversation) {
  return h(
    "div",
    { class: "line" },
    h("span", { class: "mark idle", "aria-hidden": "true" }),
    h("span", { class: "kind" }, item.status ?? "changed"),
    h("code", { class: "target" }, shorten(inWorkspace(item.text, conversation.cwd), 240)),
  );
}

function showError(item) {
  return h("div", { class: "problem" }, h("span", { class: "word" }, item.status ?? "error"), " ", h("span", null, visible(item.text)));
}

function showLog(item) {
  return h("pre", { class: "log" }, visible(item.text));
}

function showUsage(item) {
  return h("div", { class: "small dim" }, usageText(item.usage), item.cost_usd ? ` · ${money(item.cost_usd)}` : "");
}

function showDone(item) {
  const end = h(
    "div",
    { class: "end" },
    h("span", { class: `mark ${tone(item.status)}`, "aria-hidden": "true" }),
    h("span", { class: "word" }, item.status === "success" ? "Finished" : `Ended: ${item.status ?? "unknown"}`),
    h("span", { class: "dim" }, [usageText(item.usage), item.cost_usd ? money(item.cost_usd) : "", shorten(item.text, 200)].filter(Boolean).join(" · ")),
  );
  return item.html ? h("div", null, end, markdown(item)) : end;  // with the evidence of verify
}

function showInit(item) {
  return h("div", { class: "small dim" }, shorten(item.text || "The session started", 300));
}

function showOther(item, conversation) {
  return expander(item, conversation, { class: "link dim" }, shorten(item.text || item.kind, 200));
}

const SHOWN = {
  prompt: showPrompt,
  text: showText,
  thinking: showThinking,
  tool: showTool,
  plan: showPlan,
  permission: showPermission,
  file: showFile,
  error: showError,
  log: showLog,
  usage: showUsage,
  done: showDone,
  init: showInit,
};

function section(title, text, kind) {
  if (!text) return null;
  return h("section", { class: kind ?? "" }, h("h4", null, title), h("pre", null, pretty(text)));
}

function pretty(text) {
  if (/^\s*[[{]/.test(text) && text.length < 200000) {
    try {
      return visible(JSON.stringify(JSON.parse(text), null, 2));
    } catch {
      // not JSON
    }
  }
  return visible(text);
}

function bodyOf(item, found) {
  const parts = [
    section("Input", found.input),
    section("Output", found.output),
    section("Error", found.error, "bad"),
  ].filter(Boolean);
  if (found.html) parts.push(setMarkup(h("div", { class: "markdown" }), found.html));
  else if (found.text) parts.push(h("pre", null, pretty(found.text)));
  if (!parts.length) parts.push(h("p", { class: "dim" }, item.tool && !item.tool.status ? "No output yet" : "No input and no output"));
  if (found.truncated) parts.push(h("p", { class: "dim" }, "Only the first part is shown."));
  return parts;
}

export function answerWith(call, after) {
  return (requestId, decision) => attempt(() => call(requestId, decision), () => DECISIONS[decision] ?? decision).then(after);
}
