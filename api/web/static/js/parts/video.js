// A video job: its prompt, what it was asked, its seeds, and pictures of the samples that are being made.

import { get } from "../api.js";
import { fill, h, keyed, stateMark } from "../dom.js";
import { percent } from "../format.js";

const EVERY_MS = 600;
const MOST = 6;
/** Settings in the order in which people look for them; those left out take the preset's. */
const SETTINGS = ["model", "preset", "size", "frames", "seconds", "fps", "steps", "guidance", "guidance_2", "flow_shift", "scheduler",
  "strength", "dtype", "quantisation", "attention", "cache", "compile", "offload", "gpus", "gang", "device", "bits"];
const PLAIN = { preset: "standard", quantisation: "none", attention: "native", compile: "none", offload: "none", gpus: 1, gang: "auto", device: "cpu" };

/** Show what a video job was asked; nothing for jobs of other kinds. */
export function showVideo(holder, job, steps) {
  if (job.kind !== "video") return;
  if (!holder.firstElementChild) {
    holder.className = "video";
    holder.append(h("blockquote", { class: "prompt" }), h("p", { class: "chips" }), h("ul", { class: "seeds", "aria-label": "Samples" }));
  }
  const { spec } = job;
  const [prompt, chips, seeds] = holder.children;
  fill(prompt, h("p", null, spec.prompt), spec.negative_prompt && h("p", { class: "faint" }, `not: ${spec.negative_prompt}`));
  fill(chips, SETTINGS.filter((name) => spec[name] !== null && spec[name] !== undefined && spec[name] !== PLAIN[name])
    .map((name) => h("span", { class: "chip" }, `${name.replaceAll("_", " ")} ${words(spec[name])}`)),
  spec.loras.map((lora) => h("span", { class: "chip" }, `LoRA ${lora.path.split("/").at(-1)} × ${lora.weight}`)),
  ["image", "last_image", "video"].filter((name) => spec[name]).map((name) => h("span", { class: "chip" }, `${name.replaceAll("_", " ")} ${spec[name]}`)));
  const samples = steps.filter((step) => step.name.startsWith("seed-"));
  keyed(seeds, samples, (step) => step.id,
    () => h("li", null, h("div", { class: "still" }, h("img", { alt: "", hidden: true }), h("span", { class: "faint" })), h("p", null, h("b"), h("span"))),
    (node, step) => {
      node.dataset.step = step.id;
      node.querySelector("b").textContent = `seed ${step.name.slice(5)}`;
      fill(node.querySelector("p span"), stateMark(step.state));
      const note = node.querySelector(".still span");
      if (spec.size) node.querySelector(".still").style.aspectRatio = `${spec.size[0]} / ${spec.size[1]}`;
      if (step.state !== "running") note.textContent = { done: "", waiting: "waits for a slot" }[step.state] ?? step.state;
      if (step.state === "done" && node.dataset.shown !== "frame") showFrame(node, step);
    });
}

/** The middle frame of a sample that is done. */
function showFrame(node, step) {
  node.dataset.shown = "frame";
  const middle = Math.ceil(step.frames_total / 2);
  picture(node, `/v1/frames/${step.id}/1/${middle}/thumbnail?size=320&format=jpeg`, `Frame ${middle} of ${node.querySelector("b").textContent}`);
}

/** Keep the pictures of running samples fresh while the page is looked at. */
export function watchPreviews(holder, job) {
  const known = new Map();
  let asking = false;
  const look = async () => {
    if (asking || document.hidden || job()?.kind !== "video" || !job().tasks.running) return;
    asking = true;
    try {
      const tasks = (await get(`/v1/jobs/${job().id}/tasks`, { state: "running", limit: MOST })).items;
      await Promise.all(tasks.map((task) => one(holder, task, known)));
    } catch {
      // the page's own refresh says what is wrong
    } finally {
      asking = false;
    }
  };
  setInterval(look, EVERY_MS);
  return look;
}

async function one(holder, task, known) {
  const node = holder.querySelector(`[data-step="${CSS.escape(task.step_id)}"]`);
  if (!node) return;
  node.querySelector(".still span").textContent = task.progress === null ? "loading the model" : percent(task.progress);
  const etag = known.get(task.id);
  const response = await fetch(`/v1/tasks/${task.id}/preview`, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
  if (response.status !== 200) return;
  known.set(task.id, response.headers.get("ETag"));
  node.dataset.shown = "preview";
  picture(node, URL.createObjectURL(await response.blob()), `Preview of ${node.querySelector("b").textContent}`);
}

function picture(node, source, label) {
  const image = node.querySelector("img");
  const before = image.src;
  image.addEventListener("load", () => { if (before.startsWith("blob:")) URL.revokeObjectURL(before); }, { once: true });
  image.src = source;
  image.alt = label;
  image.hidden = false;
}

function words(value) {
  if (Array.isArray(value)) return value.join("×");
  if (value !== null && typeof value === "object") return Object.entries(value).filter(([, one]) => one !== null && one?.length !== 0).map(([, one]) => one).join(" ");
  return String(value);
}
