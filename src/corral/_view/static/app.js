// The page: header, routes, theme and keyboard. Views are functions that fill an element and return
// how to close them and which keys they have.
//
// All modules together are also one file in an export, so top-level names are unique over modules.

import { get, isOffline, startRoute } from "./api.js";
import { batchView } from "./batch.js";
import { compareView } from "./compare.js";
import { button, h, replace } from "./dom.js";
import { ago } from "./format.js";
import { helpDialog, listenForKeys } from "./keys.js";
import { mergesView } from "./merges.js";
import { pipelineView } from "./pipeline.js";
import { runsView } from "./runs.js";
import { sessionView } from "./session.js";
import { usageView } from "./usage.js";

const VIEWS = { sessions: sessionView, pipelines: pipelineView, batches: batchView, compare: compareView, merges: mergesView, usage: usageView };
const THEMES = ["", "light", "dark"];
const THEME_KEY = "corral-theme";
const main = document.getElementById("main");
let current = null;

function go(hash) {
  location.hash = hash;
}

function title(text, pending = 0) {
  document.title = `${pending ? `(${pending}) ` : ""}${text} · corral`;
}

function storedTheme() {
  try {
    return localStorage.getItem(THEME_KEY) ?? "";
  } catch {
    return "";
  }
}

function useTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
  try {
    localStorage.setItem(THEME_KEY, theme);
  } catch {
    // A file without storage keeps the theme until it is closed.
  }
}

function nextTheme() {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length];
  useTheme(theme);
  document.getElementById("theme").textContent = themeName(theme);
}

function themeName(theme) {
  return { light: "Light", dark: "Dark" }[theme] ?? "Auto";
}

function drawTop(name) {
  const link = (href, label, isHere) => h("a", { href, "aria-current": isHere ? "page" : null }, label);
  replace(
    document.getElementById("top"),
    h("a", { class: "brand", href: isOffline ? startRoute : "#/" }, brandMark(), "corral"),
    isOffline ? h("span", { class: "badge" }, "exported") : h("nav", { "aria-label": "Pages" }, link("#/", "Runs", !name), link("#/merges", "Merges", name === "merges"), link("#/usage", "Usage", name === "usage")),
    h("span", { class: "grow" }),
    h("span", { class: "lost-note", role: "status" }, "Reconnecting…"),
    button(themeName(storedTheme()), nextTheme, { class: "quiet", id: "theme", title: "Theme: as the system, light or dark (t)" }),
    button("?", () => helpDialog(keyMaps), { class: "quiet", "aria-label": "Keyboard help" }),
  );
}

function brandMark() {
  return h("img", { src: brandIcon(), alt: "", width: "18", height: "18" });
}

function brandIcon() {
  return document.querySelector('link[rel="icon"]')?.getAttribute("href") ?? "";
}

const globalKeys = {
  "g l": [() => go(isOffline ? startRoute : "#/"), "list of runs"],
  "g m": [() => isOffline || go("#/merges"), "merge queues"],
  "g u": [() => isOffline || go("#/usage"), "usage"],
  t: [nextTheme, "theme"],
  "?": [() => helpDialog(keyMaps), "this help"],
};

function keyMaps() {
  return [current?.keys ?? {}, globalKeys];
}

function parseRoute(hash) {
  const [path, search = ""] = (hash || startRoute).replace(/^#/, "").split("?");
  const [name = "", id = ""] = path.split("/").filter(Boolean);
  return { name, id: decodeURIComponent(id), query: Object.fromEntries(new URLSearchParams(search)) };
}

function show() {
  const { name, id, query } = parseRoute(location.hash);
  current?.close();
  main.classList.remove("lost");
  replace(main);
  drawTop(name);
  const view = name ? VIEWS[name] : runsView;
  if (!view) return void replace(main, h("p", { class: "empty" }, "There is no such page."));
  current = view(main, { id, query, go, title });
  main.focus({ preventScroll: true });
}

function noAccess() {
  current?.close();
  current = null;
  title("no access");
  replace(main, h("div", { class: "empty" }, h("h1", null, "This page needs its token"), h("p", null, "Open the address that ", h("code", null, "corral view"), " printed, or start it again.")));
}

async function startPage() {
  useTheme(storedTheme());
  drawTop("");
  listenForKeys(keyMaps);
  addEventListener("hashchange", show);
  setInterval(() => {
    for (const each of document.querySelectorAll("time[data-ago]")) each.textContent = ago(Number(each.dataset.ago));
  }, 5000);
  const hadRoute = Boolean(location.hash);
  show();
  if (!isOffline) await greet(hadRoute);
}

// What the server says of itself: the run that was asked for, or that the cookie is not valid.
async function greet(hadRoute) {
  try {
    const info = await get("/api/server");
    if (info.open && !hadRoute) location.hash = info.open;
  } catch (error) {
    if (error.status === 401 || error.status === 403) noAccess();
  }
}

startPage();
