// Usage over time, by agent, model or project: a chart of our own, and a table.

import { address, get } from "./api.js";
import { h, replace, svg } from "./dom.js";
import { compact, money, number, shorten } from "./format.js";

const BY = [["day", "Day"], ["agent", "Agent"], ["model", "Model"], ["project", "Project"]];
const PERIODS = [[7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "1 year"]];
const SERIES = [["cached", "Input from cache"], ["fresh", "Other input"], ["output", "Output"]];
const CHART = { width: 960, height: 220, left: 52, bottom: 22, top: 10 };

function amounts(row, measure) {
  if (measure === "cost") return [0, 0, row.cost_usd ?? 0];
  const { input = 0, cache_read: cached = 0, output = 0 } = row.tokens ?? {};
  return [cached ?? 0, Math.max(0, (input ?? 0) - (cached ?? 0)), output ?? 0];
}

function niceTop(value) {
  if (value <= 0) return 1;
  const unit = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((each) => each * unit).find((each) => each >= value);
}

// Every day of the period, also those without a run.
function everyDay(rows, days) {
  const known = new Map(rows.map((row) => [row.key, row]));
  const all = [];
  for (let back = days - 1; back >= 0; back -= 1) {
    const date = new Date(Date.now() - back * 86400000);
    const key = `${date.getFullYear()}-${String(date.getMonth() + 1).padStart(2, "0")}-${String(date.getDate()).padStart(2, "0")}`;
    all.push(known.get(key) ?? { key, tokens: {}, runs: 0 });
  }
  return all;
}

function dayChart(rows, measure) {
  const { width, height, left, bottom, top } = CHART;
  const sums = rows.map((row) => amounts(row, measure).reduce((a, b) => a + b, 0));
  const most = niceTop(Math.max(...sums, 0));
  const say = measure === "cost" ? money : compact;
  const y = (value) => height - bottom - (value / most) * (height - bottom - top);
  const slot = (width - left) / rows.length;
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `${measure} for each day` });
  for (const share of [0, 0.5, 1]) {
    chart.append(svg("line", { class: "grid", x1: left, x2: width, y1: y(most * share), y2: y(most * share) }), svg("text", { class: "axis end", x: left - 8, y: y(most * share) + 4 }, say(most * share)));
  }
  rows.forEach((row, index) => {
    const x = left + index * slot + slot * 0.12;
    const group = svg("g", null, svg("title", null, `${row.key}: ${say(sums[index])}, ${number(row.runs)} runs`), svg("rect", { class: "hit", x: left + index * slot, y: top, width: slot, height: height - bottom - top }));
    let base = 0;
    amounts(row, measure).forEach((value, series) => {
      if (value > 0) group.append(svg("rect", { class: `series-${series}`, x, y: y(base + value), width: Math.max(1, slot * 0.76), height: Math.max(0.5, y(base) - y(base + value)), rx: 1.5 }));
      base += value;
    });
    chart.append(group);
    const every = Math.ceil(rows.length / 10);
    if (index % every === 0) chart.append(svg("text", { class: "axis", x: x + slot * 0.38, y: height - 6 }, row.key.slice(5)));
  });
  return chart;
}

function barRows(rows, measure) {
  const sums = rows.map((row) => amounts(row, measure).reduce((a, b) => a + b, 0));
  const most = Math.max(...sums, 1e-9);
  return h("div", { class: "bars" }, rows.map((row, index) => h("div", { class: "bar-row" }, h("span", { class: "name", title: row.key }, shorten(row.key, 80) || "(unknown)"),
    h("span", { class: "track" }, amounts(row, measure).map((value, series) => (value ? h("span", { class: `series-${series}`, css: { width: `${(100 * value) / most}%` } }) : null))),
    h("span", { class: "num" }, measure === "cost" ? money(sums[index]) : compact(sums[index])))));
}

function segments(label, options, chosen, act) {
  return h("div", { class: "segments", role: "group", "aria-label": label }, options.map(([value, text]) => h("button", { type: "button", "aria-pressed": String(value === chosen), on: { click: () => act(value) } }, text)));
}

export function usageView(root, { query, go, title }) {
  title("usage");
  const state = { by: query.by ?? "day", days: Number(query.days ?? 30), measure: query.measure ?? "tokens" };
  const tools = h("div", { class: "toolbar" });
  const body = h("div", { class: "document" });
  replace(root, h("div", { class: "list-page" }, tools, body));

  function set(name, value) {
    state[name] = value;
    history.replaceState(null, "", `#${address("/usage", state)}`);
    load();
  }

  function drawTools() {
    replace(tools, h("div", { class: "filters" }, segments("Group by", BY, state.by, (value) => set("by", value)), segments("Measure", [["tokens", "Tokens"], ["cost", "Cost"]], state.measure, (value) => set("measure", value)), segments("Period", PERIODS, state.days, (value) => set("days", value))));
  }

  function totals(rows) {
    const sum = (pick) => rows.reduce((all, row) => all + (pick(row) ?? 0), 0);
    const card = (name, value) => h("div", { class: "card" }, h("span", { class: "dim" }, name), h("strong", null, value));
    return h("div", { class: "cards" }, card("Runs", number(sum((row) => row.runs))), card("Input", compact(sum((row) => row.tokens?.input))), card("From cache", compact(sum((row) => row.tokens?.cache_read))), card("Output", compact(sum((row) => row.tokens?.output))), card("Cost", money(sum((row) => row.cost_usd))));
  }

  function table(rows) {
    const head = { day: "Day", agent: "Agent", model: "Model", project: "Project" }[state.by];
    return h("table", { class: "table" }, h("thead", null, h("tr", null, [head, "Runs", "Input", "From cache", "Output", "Cost"].map((each, index) => h("th", { class: index ? "num" : "" }, each)))),
      h("tbody", null, rows.map((row) => h("tr", null, h("td", { class: "wide" }, shorten(row.key, 120) || "(unknown)"), h("td", { class: "num" }, number(row.runs)), h("td", { class: "num" }, compact(row.tokens?.input)), h("td", { class: "num" }, compact(row.tokens?.cache_read)), h("td", { class: "num" }, compact(row.tokens?.output)), h("td", { class: "num" }, money(row.cost_usd))))));
  }

  let asked = 0;
  async function load() {
    drawTools();
    asked += 1;
    const mine = asked;
    let found;
    try {
      found = await get("/api/usage", { by: state.by, days: state.days });
    } catch (error) {
      replace(body, h("p", { class: "empty bad" }, error.message));
      return;
    }
    if (mine !== asked) return;
    if (!found.rows.length) return void replace(body, h("p", { class: "empty" }, "No usage in this period."));
    const byDay = state.by === "day";
    const legend = state.measure === "tokens" ? h("div", { class: "legend" }, SERIES.map(([, label], index) => h("span", null, h("span", { class: `swatch series-${index}` }), label))) : null;
    replace(body, totals(found.rows), byDay ? dayChart(everyDay(found.rows, state.days), state.measure) : barRows(found.rows, state.measure), legend, found.complete === false ? h("p", { class: "dim small" }, "Some logs were not read in time; reload for all.") : null, table(byDay ? [...found.rows].reverse() : found.rows));
  }

  load();
  return { close: () => (asked += 1), keys: { Escape: [() => go("#/"), "back"] } };
}
