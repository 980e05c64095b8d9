// Shows a run, the inbox and open proposals, from what was published.
//
// Laws (agent-runs, section 4):
// 1. The status of a run is asked every 5 seconds until it is completed or failed; the inbox and proposals every 30 seconds.
// 2. Nothing is asked while the tab is hidden.
// 3. While the stream of events is open, nothing is polled: an event makes the page ask once. If the stream ends, the page polls.
// 4. Every text comes from messages/*.json; values are shown as text, never as HTML.

const STATUS_MS = 5000;
const LISTS_MS = 30000;
const STREAM_RETRY_MS = 30000;
const TERMINAL = new Set(["completed", "failed"]);
const LANGUAGES = ["uk", "en"];
const STATUS_FIELDS = [
  "run_id", "agent_slug", "status", "trigger", "started_at", "finished_at", "current_step", "steps", "proposals_created", "error",
];
const INBOX_FIELDS = ["pending_approvals", "pending_proposals", "unknown_receipts"];

const $ = (id) => document.getElementById(id);
const state = {
  messages: {}, language: "en", key: "", run: "", status: null, inbox: null, proposals: null, problem: null,
  waiting: 0, streaming: false, lastEvent: null, timers: {}, stream: null,
};

// ---- Texts.

const text = (name, values = {}) =>
  (state.messages[name] ?? name).replace(/\{(\w+)\}/g, (whole, field) => String(values[field] ?? whole));

async function chooseLanguage(language) {
  const answer = await fetch(`/page/messages/${language}.json`);
  state.messages = await answer.json();
  state.language = language;
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = text(element.dataset.text);
  $("language").value = language;
  render();
}

function preferredLanguage() {
  const wanted = [new URLSearchParams(location.hash.slice(1)).get("lang"), ...navigator.languages];
  return wanted.map((one) => (one ?? "").slice(0, 2)).find((one) => LANGUAGES.includes(one)) ?? "en";
}

// ---- Showing.

function fill(list, rows) {
  list.replaceChildren(...rows.flatMap(([label, value, style]) => {
    const term = document.createElement("dt");
    const description = document.createElement("dd");
    term.textContent = label;
    description.textContent = value;
    if (style) description.className = style;
    return [term, description];
  }));
}

function showStatusField(field, status) {
  if (field === "steps") {
    return status.steps_total === null
      ? text("steps_without_total", { done: status.steps_completed })
      : text("steps_of_total", { done: status.steps_completed, total: status.steps_total });
  }
  const value = status[field];
  if (field === "status") return text(`status_${value}`);
  if (field === "trigger") return text(`trigger_${value}`);
  if (field.endsWith("_at")) return value === null ? text("none") : new Date(value).toLocaleString(state.language);
  if (Array.isArray(value)) return value.length ? value.join(", ") : text("none");
  return value ?? text("none");
}

function render() {
  const { status, inbox, proposals, problem } = state;
  fill($("status"), status === null ? [] : STATUS_FIELDS.map((field) =>
    [text(`field_${field}`), showStatusField(field, status), field === "status" ? status.status : ""]));
  $("status").dataset.status = status?.status ?? "";
  fill($("inbox"), inbox === null ? [] : INBOX_FIELDS.map((field) => [text(`field_${field}`), String(inbox[field])]));
  $("proposals").replaceChildren(...(proposals?.items ?? []).map((one) => {
    const item = document.createElement("li");
    item.textContent = `${one.title} (${one.id})`;
    return item;
  }));
  $("problem").textContent = problem === null ? "" : text(`problem_${problem}`);
  const mode = document.hidden ? "paused" : state.streaming ? "streaming" : "polling";
  $("mode").textContent = text(`mode_${mode}`);
  $("mode").dataset.mode = mode;
  $("mode").dataset.waiting = state.waiting; // how many answers are to come
}

// ---- Asking.

async function ask(path) {
  const answer = await fetch(path, { headers: { Authorization: `Bearer ${state.key}` }, cache: "no-cache" });
  if (!answer.ok) throw Object.assign(new Error(path), { status: answer.status });
  return answer.json();
}

async function look(field, path) {
  state.waiting += 1;
  $("mode").dataset.waiting = state.waiting;
  try {
    state[field] = await ask(path);
    state.problem = null;
  } catch (fault) {
    state.problem = { 401: "key", 403: "key", 404: "not_published" }[fault.status] ?? "unavailable";
  }
  state.waiting -= 1;
  render();
}

const isOver = () => state.status !== null && TERMINAL.has(state.status.status);
const lookAtStatus = () => (state.run && !isOver() ? look("status", `/runs/${encodeURIComponent(state.run)}/status`) : undefined);

async function lookAtLists() {
  await look("inbox", "/inbox/stats");
  await look("proposals", "/proposals/pending");
}

// ---- Polling: one timer each, started anew after each answer, so that requests never pile up.

function stopTimer(name) {
  clearTimeout(state.timers[name]);
  delete state.timers[name];
}

function repeat(name, work, ms, goesOn) {
  stopTimer(name);
  if (document.hidden || state.streaming || !state.key || !goesOn()) return;
  state.timers[name] = setTimeout(async () => {
    await work();
    repeat(name, work, ms, goesOn);
  }, ms);
}

function poll() {
  repeat("status", lookAtStatus, STATUS_MS, () => state.run && !isOver());
  repeat("lists", lookAtLists, LISTS_MS, () => true);
}

function stop() {
  for (const name of Object.keys(state.timers)) stopTimer(name);
  state.stream?.abort();
  state.stream = null;
  state.streaming = false;
}

// ---- The stream. `EventSource` cannot send a key in a header, so the page reads the frames itself.

async function openStream() {
  stopTimer("stream");
  if (document.hidden || !state.key) return;
  const stream = new AbortController();
  state.stream = stream;
  const headers = { Authorization: `Bearer ${state.key}`, Accept: "text/event-stream" };
  if (state.lastEvent !== null) headers["Last-Event-ID"] = state.lastEvent;
  try {
    const answer = await fetch("/events/stream", { headers, signal: stream.signal });
    if (answer.status === 410) state.lastEvent = null;
    if (!answer.ok) throw new Error(`stream ${answer.status}`);
    state.streaming = true;
    for (const name of ["status", "lists"]) stopTimer(name);
    render();
    await Promise.all([lookAtStatus(), lookAtLists()]); // what happened before the stream began
    await readFrames(answer.body.getReader());
  } catch {
    // Cut off, refused, or stopped by the page itself.
  }
  if (state.stream !== stream) return;
  state.stream = null;
  state.streaming = false;
  if (document.hidden) return;
  render();
  if (state.timers.lists === undefined) { // otherwise the page polls already
    await Promise.all([lookAtStatus(), lookAtLists()]);
    poll();
  }
  state.timers.stream = setTimeout(openStream, STREAM_RETRY_MS);
}

async function readFrames(reader) {
  const decoder = new TextDecoder();
  let buffered = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    buffered += decoder.decode(value, { stream: true });
    const frames = buffered.split("\n\n");
    buffered = frames.pop();
    for (const frame of frames) takeFrame(frame);
  }
}

function takeFrame(frame) {
  for (const line of frame.split("\n")) {
    if (line.startsWith("id: ")) state.lastEvent = line.slice(4);
    if (!line.startsWith("data: ")) continue;
    const event = JSON.parse(line.slice(6));
    if (event.runId === state.run) lookAtStatus();
    if (event.type === "proposal.created") lookAtLists();
  }
}

// ---- Beginning.

function begin() {
  stop();
  render();
  if (document.hidden || !state.key) return;
  openStream();
}

document.addEventListener("visibilitychange", begin);
$("language").addEventListener("change", (event) => chooseLanguage(event.target.value));
$("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  const run = $("run").value.trim();
  if (run !== state.run) state.status = null;
  Object.assign(state, { key: $("key").value.trim(), run, problem: null });
  begin();
});

const given = new URLSearchParams(location.hash.slice(1));
$("key").value = state.key = given.get("key") ?? "";
$("run").value = state.run = given.get("run") ?? "";
if (given.has("key")) history.replaceState(null, "", location.pathname); // keys do not stay in the address
chooseLanguage(preferredLanguage()).then(begin);
