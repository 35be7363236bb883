// The tasks of a job that slots work on now: how far each is, and inside which frame. Asked each second.

import { get } from "../api.js";
import { bar, fill, h, keyed, setBar } from "../dom.js";
import { count, plural, tenths } from "../format.js";

const EVERY_MS = 1000;
const MOST = 6;

/** Keep `holder` up to date while `job()` has tasks at work. */
export function watchRunning(holder, job) {
  let asking = false;
  const look = async () => {
    if (asking || document.hidden) return;
    if (!job()?.tasks.running) { fill(holder); return; }
    asking = true;
    try {
      draw(holder, job(), (await get(`/v1/jobs/${job().id}/tasks`, { state: "running", limit: MOST })).items);
    } catch {
      // the page's own refresh says what is wrong
    } finally {
      asking = false;
    }
  };
  setInterval(look, EVERY_MS);
  return look;
}

function draw(holder, job, tasks) {
  if (!holder.firstElementChild) holder.append(h("ul", { class: "running", "aria-label": "At work" }), h("small"));
  const [list, more] = holder.children;
  keyed(list, tasks, (task) => task.id,
    () => h("li", null, h("span", { class: "what" }), bar(0), h("span", { class: "how" })),
    (node, task) => {
      const [what, line, how] = node.children;
      what.textContent = `${task.step}${task.frames ? ` ${task.frames}` : ""}`;
      how.textContent = progressOf(task);
      setBar(line, task.progress ?? 0, { state: "running", label: `${what.textContent}: ${how.textContent}` });
    });
  const others = job.tasks.running - tasks.length;
  more.textContent = others > 0 ? `and ${plural(others, "task")} more` : "";
}

/** Words for a task's progress: which of its frames is in work, and how much of that frame is done. */
export function progressOf(task) {
  if (task.progress === null) return "preparing";
  const frames = task.frames ? framesIn(task.frames) : 1;
  if (frames === 1) return tenths(task.progress);
  const at = Math.min(task.progress * frames, frames - 1e-6);
  return `frame ${count(Math.floor(at) + 1)} of ${count(frames)}, ${tenths(at % 1)} of it`;
}

/** How many frames a range such as `1-9:2,20` holds. */
function framesIn(range) {
  return range.split(",").reduce((sum, part) => {
    const [, first, last, step] = part.match(/^(-?\d+)(?:-(-?\d+))?(?::(\d+))?$/) ?? [];
    return sum + (last === undefined ? 1 : Math.floor((last - first) / (step ?? 1)) + 1);
  }, 0);
}
