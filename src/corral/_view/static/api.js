// Where data comes from: the HTTP API of `corral view`, or the JSON block of an exported file. No
// other module knows.
//
// An exported file has <script type="application/json" id="corral-data"> with
// {"start": route, "answers": {path with sorted query: answer}}.

const embedded = document.getElementById("corral-data");
const stored = embedded ? JSON.parse(embedded.textContent) : null;
const RETRY_FIRST = 500;
const RETRY_MOST = 10000;

export const isOffline = stored !== null;
export const startRoute = stored?.start ?? "#/";

export class ApiError extends Error {
  constructor(status, answer) {
    super(answer?.error?.message ?? (status ? `The server answered ${status}` : "The server does not answer"));
    this.status = status;
    this.code = answer?.error?.code ?? "";
    this.hint = answer?.error?.hint ?? "";
  }
}

// A path with its query. Keys are sorted, values that are missing are left out.
export function address(path, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== null && value !== "");
  const text = given
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([key, value]) => `${key}=${encodeURIComponent(value)}`)
    .join("&");
  return text ? `${path}?${text}` : path;
}

// The path of an API resource: each part is encoded.
export function route(...parts) {
  return `/api/${parts.map((part) => encodeURIComponent(part)).join("/")}`;
}

async function request(path, options) {
  let response;
  try {
    response = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0);
  }
  let answer = null;
  try {
    answer = await response.json();
  } catch {
    if (response.ok) throw new ApiError(response.status);
  }
  if (!response.ok) throw new ApiError(response.status, answer);
  return answer;
}

export async function get(path, query, signal) {
  const full = address(path, query);
  if (!stored) return request(full, { signal, headers: { Accept: "application/json" } });
  if (full in stored.answers) return stored.answers[full];
  throw new ApiError(404, { error: { code: "not_included", message: "This is not in the exported file" } });
}

export async function post(path, body = {}, query) {
  if (stored) throw new ApiError(403, { error: { code: "offline", message: "An exported file cannot change a run" } });
  return request(address(path, query), {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(body),
  });
}

// Follows a stream of server-sent events from a cursor on. `handlers` has a function for each event
// name, and `connected(bool)`. A lost connection is opened again at the cursor. A hidden tab holds
// no connection: browsers allow six for all tabs of a host.
export function follow(path, { query = {}, cursor = null }, handlers) {
  if (stored) return { close() {}, cursor: () => cursor };
  let source = null;
  let timer = 0;
  let wait = RETRY_FIRST;
  let closed = false;
  let after = cursor;

  function shut() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function open() {
    shut();
    if (closed || document.hidden) return;
    source = new EventSource(address(path, { ...query, after }));
    source.onopen = () => {
      wait = RETRY_FIRST;
      handlers.connected?.(true);
    };
    source.onerror = () => {
      handlers.connected?.(false);
      shut();
      timer = setTimeout(open, wait);
      wait = Math.min(wait * 2, RETRY_MOST);
    };
    for (const name of Object.keys(handlers)) {
      if (name === "connected") continue;
      source.addEventListener(name, (event) => {
        if (event.lastEventId) after = event.lastEventId;
        handlers[name](JSON.parse(event.data || "null"));
        if (name === "end") close();
      });
    }
  }

  function close() {
    closed = true;
    shut();
    document.removeEventListener("visibilitychange", changed);
  }

  function changed() {
    if (document.hidden) shut();
    else if (!source) open();
  }

  document.addEventListener("visibilitychange", changed);
  open();
  return { close, cursor: () => after };
}
