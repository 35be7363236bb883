import { get } from "../api.js";
import { bar, byId, emptyNote, fill, h, keyed, setBar, stateMark } from "../dom.js";
import { ago, count, duration, framesText, left, moment, percent, plural } from "../format.js";
import { calmly, listen, silence } from "../live.js";
import { begin, leaveTo } from "../shell.js";
import { badShare, badTasks, hasEnded, progress, secondsLeft, shownState } from "../work.js";
import { showActions } from "../parts/actions.js";
import { showAttempts } from "../parts/attempts.js";
import { showFilms } from "../parts/films.js";
import { showPreflight } from "../parts/preflight.js";
import { showCurve, watchTraining } from "../parts/curve.js";
import { showVideo, watchPreviews } from "../parts/video.js";
import { watchRunning } from "../parts/running.js";
import "../parts/frames.js";
import "../parts/log.js";

const id = location.pathname.split("/").at(-1);
const TABS = [["frames", "Frames"], ["film", "Film"], ["attempts", "Attempts"], ["log", "Log"], ["spec", "Spec"]];
const state = { job: null, steps: [], attempts: [], artifacts: [], tasks: new Map(), tab: null };
const me = await begin();

let loading = Promise.resolve();

/** Read the job anew, unless it is just being deleted: what is gone is not asked for. */
function load() {
  if (!state.going) loading = read();
  return loading;
}

async function beGoing(going) {
  state.going = going;
  if (going) await loading.catch(() => {});
}

async function read() {
  const [job, artifacts] = await Promise.all([get(`/v1/jobs/${id}`), get(`/v1/jobs/${id}/artifacts`, { limit: 200 })]);
  Object.assign(state, { job, steps: job.steps, artifacts: artifacts.items });
  if (!hasEnded(job) || job.state === "failed") state.why = (await get(`/v1/jobs/${id}/why`)).items;
  else state.why = [];
  draw();
  await showPreflight(byId("preflight"), state.steps);
  await showCurve(byId("curve"), job, state.steps);
  await loadTab();
}

function draw() {
  const { job, steps } = state;
  byId("job").setAttribute("aria-busy", "false");
  document.title = `${job.name} · Stillframe`;
  byId("name").textContent = job.name;
  fill(byId("facts"), h("span", null, `${job.kind} for ${job.project.name}`), h("span", null, `by ${job.user.name}`),
    h("span", { title: moment(job.created_at) }, ago(job.created_at)),
    Object.entries(job.labels).map(([key, value]) => h("span", { class: "chip" }, `${key} ${value}`)));
  showActions(byId("actions"), job, me, refresh, beGoing);
  drawOverall(job);
  showVideo(byId("video"), job, steps);
  keyed(byId("steps"), steps, (step) => step.id, makeStep, updateStep);
  drawReasons(job);
  drawTabs();
}

function drawOverall(job) {
  const holder = byId("overall");
  if (!holder.firstElementChild) holder.append(h("div", { class: "overall" }, h("p"), bar(0)));
  const done = progress(job);
  const seconds = secondsLeft(job);
  const spent = job.started_at && ((job.finished_at ? Date.parse(job.finished_at) : Date.now()) - Date.parse(job.started_at)) / 1000;
  fill(holder.querySelector("p"), stateMark(shownState(job)),
    h("span", { class: "muted" }, job.frames_total ? `${count(job.frames_done)} of ${plural(job.frames_total, "frame")}` : `${count(job.tasks.done)} tasks done`),
    badTasks(job) > 0 && h("span", { class: "problem" }, `${plural(badTasks(job), "task")} failed`),
    h("span", { class: "right" }, h("b", null, percent(done)), spent && ` after ${duration(spent)}`, seconds !== null && `, about ${left(seconds)} left`));
  setBar(holder.querySelector(".bar"), done, { state: shownState(job), label: `${percent(done)} done`, bad: badShare(job) });
}

function makeStep() {
  return h("li", { class: "step" }, h("p", null, h("b"), h("span")), bar(0), h("small", null, h("span"), h("span")));
}

function updateStep(node, step) {
  node.querySelector("b").textContent = step.name;
  fill(node.querySelector("p span"), stateMark(state.job.paused && step.state !== "done" && !hasEnded(step) ? "paused" : step.state));
  const done = progress(step);
  setBar(node.querySelector(".bar"), done, { state: step.state, label: `${step.name}: ${percent(done)} done`, bad: badShare(step) });
  const [amount, rest] = node.querySelectorAll("small span");
  amount.textContent = step.frames_total ? `${count(step.frames_done)} of ${plural(step.frames_total, "frame")}`
    : step.deferred ? "planned when the step before is done" : percent(done);
  const seconds = secondsLeft({ ...step, paused: state.job.paused });
  rest.textContent = seconds !== null && step.state === "running" ? `${left(seconds)} left`
    : step.mean_task_s ? `${duration(step.mean_task_s)} a task` : step.pool;
}

function drawReasons(job) {
  const holder = byId("why");
  const active = job.tasks.running + job.tasks.dispatched;
  const show = state.why.length > 0 && (job.state === "failed" || active === 0);
  const waits = show ? state.why.map((reason) => reason.text).filter((text) => text !== job.error) : job.warnings;
  fill(holder, (job.error || waits.length > 0) && h("div", { class: job.state === "failed" ? "reasons bad" : "reasons" },
    h("b", null, job.state === "failed" ? "Why it failed" : "What it waits for"), job.error && h("p", null, job.error),
    waits.slice(0, 6).map((text) => h("p", null, text))));
}

function drawTabs() {
  const { job, steps, artifacts } = state;
  const makesFrames = steps.some((step) => step.frames_total > 0 || step.outputs.length > 0);
  const counts = { frames: job.frames_total || "", film: artifacts.length || "" };
  const makesFilms = artifacts.length > 0 || steps.some((step) => step.engine === "encode");
  const tabs = TABS.filter(([name]) => (name !== "frames" || makesFrames) && (name !== "film" || makesFilms));
  const holder = byId("tabs");
  if (holder.childElementCount !== tabs.length) {
    holder.replaceChildren(...tabs.map(([name, label]) => h("button", { type: "button", role: "tab", id: `t-${name}`,
      "aria-controls": `tab-${name}`, onclick: () => choose(name) }, label, h("span", { class: "count" }))));
  }
  // a tab may come later, with the first artifact
  if (state.tab) choose(state.tab, true);
  for (const [name] of tabs) byId(`t-${name}`).lastElementChild.textContent = counts[name] ? count(counts[name]) : "";
  if (!state.tab) {
    const wanted = location.hash.slice(1);
    const first = job.state === "done" && artifacts.some((one) => one.media_type.startsWith("video/")) ? "film" : tabs[0][0];
    choose(tabs.some(([name]) => name === wanted) ? wanted : first, true);
  }
}

function choose(name, quiet = false) {
  state.tab = name;
  for (const button of byId("tabs").children) {
    const on = button.id === `t-${name}`;
    button.setAttribute("aria-selected", String(on));
    button.tabIndex = on ? 0 : -1;
  }
  for (const [other] of TABS) byId(`tab-${other}`).hidden = other !== name;
  if (!quiet) { history.replaceState(null, "", `#${name}`); loadTab().catch(() => {}); }
}

byId("tabs").addEventListener("keydown", (event) => {
  const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (!by) return;
  const buttons = [...event.currentTarget.children];
  const next = buttons[(buttons.indexOf(document.activeElement) + by + buttons.length) % buttons.length];
  next.focus();
  next.click();
});

async function loadTab() {
  const panel = byId(`tab-${state.tab}`);
  if (state.tab === "frames") {
    const grid = panel.firstElementChild ?? panel.appendChild(document.createElement("sf-frames"));
    grid.set(id, state.steps);
    grid.refresh();
  } else if (state.tab === "film") showFilms(panel, state.artifacts, hasEnded(state.job));
  else if (state.tab === "spec") showSpec(panel);
  else {
    state.attempts = (await get(`/v1/jobs/${id}/attempts`, { limit: 200 })).items;
    await nameTasks();
    if (state.tab === "attempts") showAttempts(panel, state.attempts, state.tasks, (attempt) => { choose("log"); openLog(attempt); });
    else openLog();
  }
}

/** Readable names of the tasks that attempts are about: step and frames. */
async function nameTasks() {
  const names = new Map(state.steps.map((step) => [step.id, step.name]));
  const wanted = [...new Set(state.attempts.map((one) => one.task_id))].filter((task) => !state.tasks.has(task));
  if (!wanted.length) return;
  const page = await get(`/v1/jobs/${id}/tasks`, { limit: 1000 });
  for (const task of page.items) state.tasks.set(task.id, `${names.get(task.step_id)}${task.frames ? `, ${framesText(task.frames)}` : ""}`);
}

function openLog(attempt) {
  const panel = byId("tab-log");
  const viewer = panel.firstElementChild ?? panel.appendChild(document.createElement("sf-log"));
  viewer.offer(state.attempts.map((one) => [one.id, `${state.tasks.get(one.task_id) ?? one.task_id}, try ${one.number}: ${one.state}`]));
  if (attempt) viewer.open(attempt);
}

function showSpec(panel) {
  if (panel.firstElementChild) return;
  const { job } = state;
  const facts = [["Job", job.id], ["Submitted", moment(job.created_at)], ["Began", moment(job.started_at)],
    ["After", job.after.join(", ") || "no other job"], ...Object.entries(job.assets).map(([path, sha]) => [path, `${sha.slice(0, 16)}…`])];
  panel.append(h("div", { class: "spec" },
    h("div", { class: "panel" }, h("h2", null, "Spec"), h("pre", { tabindex: "0" }, JSON.stringify(job.spec, null, 2))),
    h("div", { class: "panel" }, h("h2", null, "Facts and assets"), h("dl", { class: "facts" },
      facts.map(([key, value]) => [h("dt", null, key), h("dd", { class: "mono" }, value)])))));
}

const refresh = calmly(load, 800);
try {
  await load();
  watchRunning(byId("running"), () => state.job)();
  watchPreviews(byId("video"), () => state.job)();
  watchTraining(byId("training"), () => state.job);
  listen({ job: id, seen: (type) => {
    if (type === "job.deleted") leaveTo("/jobs");
    else refresh();
  }, again: refresh });
  setInterval(() => { if (!hasEnded(state.job)) refresh(); }, 4000);
} catch (error) {
  if (error.status !== 401) {
    silence();
    byId("job").setAttribute("aria-busy", "false");
    byId("job").replaceChildren(h("div", { class: "panel" }, emptyNote("search", error.status === 404 ? "There is no such job" : "The job cannot be shown", error.message)));
  }
}
