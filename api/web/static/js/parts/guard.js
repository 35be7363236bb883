// The guard of a node: each neighbour's inter-token latency, its budget, and how far the farm is held back for it.
import { fill, h, keyed, stateMark } from "../dom.js";

const SVG = "http://www.w3.org/2000/svg";
const RUNGS = ["free", "no_new_work", "slow_host", "pause", "park", "kill"];
const SAID = { free: "free", no_new_work: "no new work", slow_host: "host work slowed", pause: "paused", park: "parked", kill: "ended" };
const WIDTH = 240, HEIGHT = 40, SECONDS = 60;

/** An empty panel; it shows itself once there is a neighbour. */
export function guardPanel() {
  return h("section", { class: "guard", hidden: true, "aria-label": "Neighbours and guard" }, h("ul"));
}

/** Show what the guard told last. */
export function updateGuard(panel, guard) {
  const section = panel.querySelector(".guard");
  section.hidden = guard.neighbours.length === 0;
  keyed(section.querySelector("ul"), guard.neighbours, (neighbour) => neighbour.name, make, update);
}

function make() {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
  svg.setAttribute("role", "img");
  for (const name of ["budget", "p99", "p50"]) {
    const line = document.createElementNS(SVG, "polyline");
    line.setAttribute("class", name);
    svg.append(line);
  }
  return h("li", null, h("p", null, h("b"), h("span", { class: "faint" }), h("span", { class: "rung" })),
    svg, h("p", { class: "figures" }), h("p", { class: "hint" }));
}

function update(item, neighbour) {
  const [name, condition, rung] = item.querySelectorAll("p:first-child > *");
  name.textContent = neighbour.name;
  condition.textContent = neighbour.role === "decode" ? neighbour.condition : `${neighbour.role}, ${neighbour.condition}`;
  const held = neighbour.frozen || RUNGS.indexOf(neighbour.rung) > 0;
  fill(rung, stateMark(held ? "held" : "idle", neighbour.frozen ? "frozen" : SAID[neighbour.rung] ?? neighbour.rung));
  item.querySelector(".figures").textContent = figures(neighbour);
  item.querySelector(".hint").textContent = neighbour.trouble ?? (held ? neighbour.reason : "");
  draw(item.querySelector("svg"), neighbour);
}

function figures(neighbour) {
  const ms = (value) => value === null || value === undefined ? "–" : `${value < 10 ? value.toFixed(2) : value.toFixed(1)} ms`;
  const parts = [`ITL p50 ${ms(neighbour.itl_p50_ms)}`, `p99 ${ms(neighbour.itl_p99_ms)}`,
    neighbour.budget_ms === null ? "budget not learnt" : `budget ${ms(neighbour.budget_ms)}`];
  if (neighbour.running !== null) parts.push(`${neighbour.running} running`);
  if (neighbour.waiting) parts.push(`${neighbour.waiting} waiting`);
  if (neighbour.kv_usage !== null) parts.push(`KV ${Math.round(neighbour.kv_usage * 100)} %`);
  return parts.join(" · ");
}

/** The last minute; a gap where no token came. The scale holds budget and p99. */
function draw(svg, { name, curve }) {
  const seen = curve.filter((point) => point[2] !== null);
  const top = 1.1 * Math.max(1e-6, ...seen.map((point) => Math.max(point[2], point[3] ?? 0)));
  const place = (at, value) => `${(WIDTH * (1 + at / SECONDS)).toFixed(1)},${(HEIGHT * (1 - value / top)).toFixed(1)}`;
  const line = (index) => seen.filter((point) => point[index] !== null && point[0] >= -SECONDS).map((point) => place(point[0], point[index])).join(" ");
  for (const [shape, index] of [["p50", 1], ["p99", 2], ["budget", 3]]) svg.querySelector(`.${shape}`).setAttribute("points", line(index));
  const last = seen.at(-1);
  svg.setAttribute("aria-label", last ? `${name}: inter-token latency, last p99 ${last[2]} ms` : `${name}: no tokens yet`);
}
