// Tokens, cost and context as text and as small drawings.

import { askNumbers, attempt, button, h } from "./dom.js";
import { compact, money } from "./format.js";

const SOURCES = { metered: "counted by corral", estimated: "counted by corral, in part by an estimate", reported: "reported by the agent", computed: "computed from list prices", unknown: "unknown" };

export function usageText(usage) {
  if (!usage || (usage.input == null && usage.output == null)) return "";
  const cached = usage.cache_read ? ` (${compact(usage.cache_read)} cached)` : "";
  return `${compact(usage.input)} in${cached} · ${compact(usage.output)} out`;
}

export function sourceBadge(source) {
  return source && source !== "unknown" ? h("span", { class: "badge", title: SOURCES[source] }, source) : null;
}

function usageRow(name, value) {
  return value == null ? null : [h("dt", null, name), h("dd", null, compact(value))];
}

// How full a bar is, in percent; `tone` picks its color.
export function bar(share, tone = "") {
  const percent = Math.max(0, Math.min(100, share * 100));
  return h("div", { class: `bar ${tone}`, role: "img", "aria-label": `${Math.round(percent)} %` }, h("div", { css: { width: `${percent}%` } }));
}

const exactMoney = (usd) => (usd > 0 && usd < 0.1 ? `$${usd.toFixed(4)}` : money(usd));
const LIMITS = [
  ["cost", "max_cost", "US dollars", exactMoney],
  ["tokens", "max_total_tokens", "tokens", compact],
  ["calls", "max_calls", "model calls", compact],
];

// The limits of a budget that are set, with what is spent of them.
export function limitsOf(budget) {
  return LIMITS.filter(([, limit]) => budget?.[limit] != null).map(([name, limit, label, text]) => {
    const spent = budget[name] ?? 0;
    return { name, label, share: spent / budget[limit], text: `${text(spent)} of ${text(budget[limit])}${name === "cost" ? "" : ` ${label}`}` };
  });
}

// A button that raises the budget of a run. `post` sends the amounts.
export function raiseButton({ state, budgets }, post) {
  const limits = limitsOf(budgets?.[0]);
  if (!limits.length) return null;
  const ask = async () => {
    const given = await askNumbers("Raise the budget by", limits.map(({ name, label }) => ({ name, label })));
    if (given) await attempt(() => post(given), (done) => done?.message || "The budget was raised");
  };
  return button("Raise budget", ask, { class: state === "paused" ? "primary" : "" });
}

export function budgetBars(budgets) {
  return (budgets ?? []).flatMap((budget, index) =>
    limitsOf(budget).map(({ name, text, share }) =>
      h("div", { class: "context budget", data: { limit: name } }, h("div", { class: "spread small" }, h("span", null, index ? "Shared budget" : "Budget"), h("span", null, text)), bar(share, share >= 1 ? "bad" : share > 0.85 ? "wait" : "")),
    ),
  );
}

export function spendPanel({ usage, usd, source, context, window, budgets }) {
  return h(
    "section",
    { class: "panel spend" },
    h("h3", null, "Spend"),
    h("div", { class: "amount" }, h("strong", null, money(usd)), " ", sourceBadge(source)),
    h(
      "dl",
      { class: "pairs" },
      usageRow("Input", usage?.input),
      usageRow("from cache", usage?.cache_read),
      usageRow("Output", usage?.output),
      usageRow("reasoning", usage?.reasoning),
    ),
    usage?.coverage === "partial" ? h("p", { class: "dim small" }, "Some runs did not report all their tokens.") : null,
    usage?.coverage === "estimated" ? h("p", { class: "dim small" }, "The tokens of some model calls are an estimate: their responses did not come.") : null,
    context
      ? h(
          "div",
          { class: "context" },
          h("div", { class: "spread small" }, h("span", null, "Context"), h("span", null, window ? `${Math.round((100 * context) / window)} % of ${compact(window)}` : compact(context))),
          window ? bar(context / window, context / window > 0.85 ? "wait" : "") : null,
        )
      : null,
    budgetBars(budgets),
  );
}
