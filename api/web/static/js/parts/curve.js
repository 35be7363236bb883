// A training's curve: PSNR of training rays and of held-out pictures against time, with its figures.

import { get } from "../api.js";
import { fill, h } from "../dom.js";
import { duration } from "../format.js";

const SVG = "http://www.w3.org/2000/svg";
const EVERY_MS = 2000;
const WIDE = 640, TALL = 180, LEFT = 44, BELOW = 24;

/** Show the curve of the job's step `train` in `holder`; asks once, when the step has ended. */
export async function showCurve(holder, job, steps) {
  if (job.kind !== "nerf") return;
  const [train, pose] = ["train", "pose"].map((name) => steps.find((one) => one.name === name && one.state === "done"));
  const mark = [train, pose].map((one) => one?.id ?? "").join(" ");
  if (!mark.trim() || holder.dataset.shown === mark) return;
  const [learnt, posed] = await Promise.all([train, pose].map(resultOf));
  holder.dataset.shown = mark;
  fill(holder, h("details", { class: "preflight", open: Boolean(learnt) },
    h("summary", null, h("b", null, "Training"), h("span", { class: "muted" }, summary(learnt, posed))),
    learnt?.curve?.length > 1 && chart(learnt.curve),
    posed?.notes?.length > 0 && h("ul", { class: "findings" }, posed.notes.map((note) => h("li", null, note)))));
}

/** Keep `holder` up to date with the preview (a view and its curve) of a training that runs. */
export function watchTraining(holder, job) {
  let asking = false, etag = null;
  const look = async () => {
    if (asking || document.hidden || job()?.kind !== "nerf") return;
    if (!job().tasks.running) { fill(holder); return; }
    asking = true;
    try {
      const task = (await get(`/v1/jobs/${job().id}/tasks`, { state: "running", limit: 5 })).items.find((one) => one.step === "train");
      if (!task) { fill(holder); return; }
      const answer = await fetch(`/v1/tasks/${task.id}/preview`, { cache: "no-store", headers: etag ? { "If-None-Match": etag } : {} });
      if (answer.status !== 200) return;
      etag = answer.headers.get("etag");
      const image = holder.querySelector("img") ?? h("img", { class: "training", alt: "A view of the field in training, and its PSNR so far" });
      const old = image.src;
      image.src = URL.createObjectURL(await answer.blob());
      if (old) URL.revokeObjectURL(old);
      if (!image.isConnected) holder.replaceChildren(image);
    } catch {
      // the page's own refresh says what is wrong
    } finally {
      asking = false;
    }
  };
  setInterval(look, EVERY_MS);
  look();
}

async function resultOf(step) {
  if (!step) return null;
  return (await get(`/v1/steps/${step.id}/tasks`, { limit: 1 })).items[0]?.result ?? null;
}

function summary(learnt, posed) {
  const parts = [];
  if (posed) parts.push(`${posed.registered ?? posed.views} of ${posed.given ?? posed.views} pictures placed`,
    posed.reprojection_error !== undefined && `${posed.reprojection_error.toFixed(2)} px`,
    posed.dropped?.length > 0 && `without ${posed.dropped.slice(0, 4).join(", ")}`);
  if (learnt) parts.push(`${learnt.form}, ${learnt.size}`, `${learnt.iterations} iterations in ${duration(learnt.seconds)}`,
    learnt.psnr !== null && `held out ${learnt.psnr.toFixed(2)} dB`);
  return parts.filter(Boolean).join(" · ");
}

function chart(curve) {
  const values = curve.flatMap(([, , trained, tested]) => [trained, tested].filter((value) => value > 0));
  const low = Math.floor(Math.min(...values)), high = Math.ceil(Math.max(...values)) || 1;
  const last = curve.at(-1)[1] || 1;
  const x = (seconds) => LEFT + (seconds / last) * (WIDE - LEFT - 8);
  const y = (value) => 8 + (1 - (value - low) / Math.max(high - low, 1)) * (TALL - BELOW - 8);
  const line = (column) => curve.filter((row) => row[column] > 0).map((row) => `${x(row[1]).toFixed(1)},${y(row[column]).toFixed(1)}`).join(" ");
  const svg = node("svg", { viewBox: `0 0 ${WIDE} ${TALL}`, class: "curve", role: "img", "aria-label": `PSNR in dB over ${duration(last)}: held out ${curve.at(-1)[3]} dB at the end` });
  for (const value of [low, (low + high) / 2, high]) {
    svg.append(node("line", { x1: LEFT, x2: WIDE - 8, y1: y(value), y2: y(value), class: "rule" }), label(LEFT - 6, y(value) + 4, `${value}`, "end"));
  }
  svg.append(node("polyline", { points: line(2), class: "trained" }), node("polyline", { points: line(3), class: "tested" }),
    label(WIDE - 8, TALL - 6, duration(last), "end"), label(LEFT, TALL - 6, "dB: rays (thin), held-out pictures (thick)", "start"));
  return svg;
}

function label(x, y, text, anchor) {
  const made = node("text", { x, y, "text-anchor": anchor });
  made.textContent = text;
  return made;
}

function node(tag, attributes) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}
