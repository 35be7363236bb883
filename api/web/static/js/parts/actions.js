// What a person may do with a job.

import { patch, post, remove } from "../api.js";
import { ask, h, icon, toast } from "../dom.js";
import { acting, leaveTo, may } from "../shell.js";
import { badTasks, hasEnded } from "../work.js";

/** Draw the buttons that fit the job's state; `changed()` is called after each command, and `beGoing(true)` is
 * awaited before the job is deleted, `beGoing(false)` where it could not be. */
export function showActions(holder, job, me, changed, beGoing) {
  const allowed = may(me, "operate") || (may(me, "submit") && job.user.id === me.user_id);
  const mark = [job.state, job.paused, job.cancel_requested, badTasks(job) > 0, allowed].join();
  const field = holder.querySelector("input");
  if (field && document.activeElement !== field) field.value = job.priority;
  holder.dataset.version = job.version;
  if (holder.dataset.mark === mark) return;
  holder.dataset.mark = mark;
  if (!allowed) { holder.replaceChildren(); return; }
  const command = (verb, label, iconName, told, props = {}) => acting(h("button", { type: "button", ...props }, icon(iconName), label),
    async () => { await post(`/v1/jobs/${job.id}/${verb}`); toast(told); changed(); });
  const open = !hasEnded(job);
  holder.replaceChildren(...[
    open && priority(job, holder, changed),
    open && !job.paused && command("pause", "Pause", "pause", "Paused: running tasks park"),
    open && job.paused && command("resume", "Resume", "play", "It goes on"),
    badTasks(job) > 0 && command("retry", "Retry failed", "retry", "The failed tasks run again"),
    open && !job.cancel_requested && acting(h("button", { type: "button", class: "danger" }, icon("stop"), "Cancel"), async () => {
      if (!await ask("Cancel this job?", "What runs stops at its next step. Finished frames stay.", "Cancel the job")) return;
      await post(`/v1/jobs/${job.id}/cancel`);
      toast("Cancelled");
      changed();
    }),
    !open && acting(h("button", { type: "button", class: "danger" }, icon("bin"), "Delete"), async () => {
      if (!await ask("Delete this job?", "Its frames, films and logs go with it.", "Delete the job")) return;
      await beGoing(true);
      try { await remove(`/v1/jobs/${job.id}`); } catch (error) { beGoing(false); throw error; }
      leaveTo("/jobs");
    }),
  ].filter(Boolean));
}

function priority(job, holder, changed) {
  const field = h("input", { type: "number", min: "0", max: "100", value: job.priority, onchange: async () => {
    if (!field.reportValidity()) return;
    try {
      await patch(`/v1/jobs/${job.id}`, { priority: field.valueAsNumber }, holder.dataset.version);
      toast(`Priority ${field.value}`);
    } catch (error) { toast(error.message, true); }
    changed();
  } });
  return h("label", { class: "priority" }, "Priority", field);
}
