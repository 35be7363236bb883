// The event stream. The browser reconnects by itself with Last-Event-ID; a stream it gave up is opened anew.

import { byId } from "./dom.js";

const TYPES = ["job.submitted", "job.state", "job.changed", "job.deleted", "step.state", "step.expanded", "task.state",
  "task.split", "frame.published", "frame.current", "artifact.published", "attempt.started", "attempt.ended",
  "slot.state", "slot.audit", "node.state", "buffer.waiting", "buffer.orphaned", "guard.climb",
  "guard.let_go", "guard.not_us", "guard.telemetry_lost"];

/** Call `seen(type, data)` for every event; `again()` after a gap, when things may have been missed. */
export function listen({ job, seen, again }) {
  let source;
  let lastId = null;
  let broken = false;
  const open = () => {
    const query = new URLSearchParams();
    if (job) query.set("job", job);
    if (lastId) query.set("after", lastId);
    source = new EventSource(`/v1/events${query.size ? `?${query}` : ""}`);
    source.onopen = () => {
      mark("live", "Live");
      if (broken) again?.();
      broken = false;
    };
    source.onerror = () => {
      broken = true;
      mark("connecting", "Reconnecting");
      // closed for good (an error answer, such as 503 at a restart): the browser will not try again
      if (source.readyState === EventSource.CLOSED) setTimeout(open, 2000);
    };
    // events that came while this page was away are not kept any more
    source.addEventListener("gap", () => again?.());
    for (const type of TYPES) {
      source.addEventListener(type, (event) => {
        lastId = event.lastEventId || lastId;
        seen(type, JSON.parse(event.data));
      });
    }
  };
  open();
  addEventListener("pagehide", () => source.close());
  addEventListener("pageshow", (event) => { if (event.persisted) { open(); again?.(); } });
}

/** A page that shows nothing alive says nothing of being connected. */
export function silence() {
  const node = byId("live");
  if (node) node.hidden = true;
}

function mark(state, text) {
  const node = byId("live");
  if (!node) return;
  node.dataset.state = state;
  node.lastElementChild.textContent = text;
}

/** Run `work` soon after calls, at most once in `everyMs`, never two at once, and never while hidden. */
export function calmly(work, everyMs) {
  let timer = null;
  let running = false;
  let wanted = false;
  let last = 0;
  const go = async () => {
    timer = null;
    if (running || document.hidden) { wanted = true; return; }
    running = true;
    wanted = false;
    last = Date.now();
    try { await work(); } catch (error) { if (error.status !== 401) console.warn(error); }
    running = false;
    if (wanted) ask();
  };
  const ask = () => { timer ??= setTimeout(go, Math.max(30, everyMs - (Date.now() - last))); };
  document.addEventListener("visibilitychange", () => { if (!document.hidden && wanted) ask(); });
  return ask;
}
