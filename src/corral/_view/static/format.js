// Values as text for people: times, durations, sizes, tokens, money, and text of agents.

const ANSI = /\u001b(?:\[[0-?]*[ -/]*[@-~]|\][^\u0007\u001b]*(?:\u0007|\u001b\\)?|[@-Z\\-_])/g;
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

// The text without escape sequences of terminals; invisible control characters and characters that
// change the direction of the text are made visible.
export function visible(text) {
  return String(text ?? "")
    .replace(/\r\n/g, "\n")
    .replace(ANSI, "")
    .replace(HIDDEN, (c) => `\u2423${c.charCodeAt(0).toString(16).toUpperCase().padStart(2, "0")}`);
}

export function shorten(text, most = 160) {
  const line = visible(text).replace(/\s+/g, " ").trim();
  return line.length > most ? `${line.slice(0, most - 1)}…` : line;
}

export function number(value) {
  return Number(value ?? 0).toLocaleString("en-US");
}

const compactNumber = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });

export function compact(value) {
  return value === null || value === undefined ? "–" : compactNumber.format(value).replace("K", "k");
}

export function money(usd) {
  if (usd === null || usd === undefined) return "–";
  if (usd === 0) return "$0";
  return usd < 0.01 ? "<$0.01" : `$${usd.toFixed(usd < 1000 ? 2 : 0)}`;
}

export function bytes(size) {
  if (size < 1000) return `${size} B`;
  const unit = size < 1e6 ? ["kB", 1e3] : size < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  const value = size / unit[1];
  return `${value < 10 ? value.toFixed(1) : Math.round(value)} ${unit[0]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.round(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${Math.round(seconds % 60)} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.round((seconds % 3600) / 60)} m`;
}

// How long ago a time (seconds since the epoch) was.
export function ago(time, now = Date.now() / 1000) {
  if (!time) return "";
  const passed = Math.max(0, now - time);
  if (passed < 5) return "now";
  if (passed < 60) return `${Math.floor(passed)} s ago`;
  if (passed < 3600) return `${Math.floor(passed / 60)} m ago`;
  if (passed < 86400) return `${Math.floor(passed / 3600)} h ago`;
  if (passed < 86400 * 14) return `${Math.floor(passed / 86400)} d ago`;
  return new Date(time * 1000).toISOString().slice(0, 10);
}

// Formatters are slow to create.
const clockFormat = new Intl.DateTimeFormat("en-GB", { timeStyle: "medium" });
const momentFormat = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function clock(time) {
  return time ? clockFormat.format(time * 1000) : "";
}

export function moment(time) {
  return time ? momentFormat.format(time * 1000) : "";
}

export function plural(count, noun, many = `${noun}s`) {
  return `${number(count)} ${count === 1 ? noun : many}`;
}

// The last two parts of a path.
export function shortPath(path) {
  const parts = String(path ?? "").split("/").filter(Boolean);
  return parts.length > 2 ? `…/${parts.slice(-2).join("/")}` : String(path ?? "");
}

const TONES = {
  running: "live",
  rebasing: "live",
  checking: "live",
  owner: "live",
  waiting_permission: "wait",
  waiting_person: "wait",
  waiting: "wait",
  rate_limited: "wait",
  paused: "wait",
  stalled: "wait",
  retry: "wait",
  retrying: "wait",
  queued: "idle",
  interrupted: "bad",
  success: "good",
  merged: "good",
  partial_success: "good",
  cancelled: "idle",
  skipped: "idle",
  missing: "idle",
  failed: "bad",
  fail: "bad",
  error: "bad",
  denied: "bad",
  timeout: "bad",
  max_turns: "bad",
  max_budget: "bad",
  incomplete: "bad",
};

// The color of a state: live, wait, good, bad or idle.
export function tone(state) {
  return TONES[state] ?? "idle";
}
