// What a preflight found in a scene file: findings by weight, scenes, cameras, versions, memory.

import { get } from "../api.js";
import { fill, h, stateMark } from "../dom.js";
import { plural, size } from "../format.js";

const WEIGHT = { error: 0, warning: 1, note: 2 };
const MARK = { error: "failed", warning: "waiting", note: "done" };

/** Show the preflight of the job's `steps` in `holder`; nothing where there is none. Asks once it has ended. */
export async function showPreflight(holder, steps) {
  const step = steps.find((one) => one.name === "preflight");
  if (!step || !["done", "failed"].includes(step.state) || holder.dataset.shown === `${step.id} ${step.state}`) return;
  const tasks = (await get(`/v1/steps/${step.id}/tasks`, { limit: 1 })).items;
  const report = tasks[0]?.result?.preflight;
  if (!report) return;
  holder.dataset.shown = `${step.id} ${step.state}`;
  const findings = [...report.findings].sort((a, b) => WEIGHT[a.severity] - WEIGHT[b.severity]);
  fill(holder, h("details", { class: "preflight", open: findings.some((one) => one.severity === "error") },
    h("summary", null, h("b", null, "Preflight"), h("span", { class: "muted" }, summary(report, findings))),
    findings.length > 0 && h("ul", { class: "findings" }, findings.map((one) =>
      h("li", { class: one.severity }, stateMark(MARK[one.severity], one.severity), h("span", null, one.message)))),
    h("dl", { class: "facts" }, facts(report).map(([key, value]) => [h("dt", null, key), h("dd", null, value)]))));
}

function summary(report, findings) {
  const counted = ["error", "warning", "note"].map((severity) => [findings.filter((one) => one.severity === severity).length, severity])
    .filter(([number]) => number > 0).map(([number, severity]) => plural(number, severity));
  return `Blender ${report.blender}, ${counted.join(", ") || "nothing amiss"}`;
}

function facts(report) {
  const scenes = report.scenes.map((one) => [`Scene ${one.name}`,
    `${report.file_engines[one.name] || one.engine}, frames ${one.frame_start} to ${one.frame_end}${one.frame_step > 1 ? ` by ${one.frame_step}` : ""}, `
    + `${one.resolution[0]}×${one.resolution[1]} at ${one.resolution_percentage} %, `
    + (one.cameras.length ? `cameras ${one.cameras.map((name) => (name === one.camera ? `${name} (active)` : name)).join(", ")}` : "no camera")]);
  const rendered = report.facts && [["Rendered with", `${report.facts.engine} on ${report.facts.devices.join(", ")}, camera ${report.facts.camera}, `
    + `${report.facts.width}×${report.facts.height}${report.facts.samples ? `, ${plural(report.facts.samples, "sample")}` : ""}`]];
  return [["Saved by Blender", report.file_version], ["Memory, estimated", size(report.estimated_memory)], ...scenes, ...(rendered ?? [])];
}
