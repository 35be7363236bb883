// Progress and time left of jobs and steps: the fraction as farm/client/models.py has it.

const ENDED = new Set(["done", "failed", "cancelled"]);

export const hasEnded = (work) => ENDED.has(work.state);
export const allTasks = (work) => Object.values(work.tasks).reduce((sum, n) => sum + n, 0);
export const badTasks = (work) => work.tasks.failed + work.tasks.unreachable;

/** How much is done, 0 to 1: frames and tasks counted alike. */
export function progress(work) {
  if (work.state === "done") return 1;
  const total = work.frames_total + allTasks(work);
  return total ? Math.min(1, (work.frames_done + work.tasks.done) / total) : 0;
}

/** Share of the work that failed, 0 to 1. */
export function badShare(work) {
  const all = allTasks(work);
  return all ? badTasks(work) / all : 0;
}

/** Seconds left as the farm estimates them, or null before it can. */
export const secondsLeft = (work) => (hasEnded(work) || work.paused ? null : work.eta_s);

/** What to call the job's state: a paused or cancelling job says so. */
export function shownState(job) {
  if (hasEnded(job)) return job.state;
  if (job.cancel_requested) return "cancelling";
  return job.paused ? "paused" : job.state;
}
