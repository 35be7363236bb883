// A run of the stillness bench as it happens: the neighbour's steps on one side, the farm's frames on the other.
import { get } from "../api.js";
import { byId, fill, h, keyed } from "../dom.js";
import { listen } from "../live.js";
import { begin } from "../shell.js";

const SVG = "http://www.w3.org/2000/svg";
const WIDTH = 600, HEIGHT = 240, SECONDS = 120, LEFT = 46;
const STALE_MS = 5000, EVERY_MS = 500, PICTURE_MS = 1000;
const VERDICTS = {
  still: "Still: the farm does not disturb decode on this machine.",
  disturbed: "Disturbed: the farm makes decode steps longer on this machine.",
  void: "Void: the run contradicts itself.",
  inconclusive: "Inconclusive: the machine was not quiet enough, or the run too short.",
};

await begin();
let pictured = 0;

async function look() {
  let run;
  try {
    run = await get("/v1/stillness");
  } catch (error) {
    if (error.status !== 404) throw error;
    byId("run").hidden = true;
    byId("none").hidden = false;
    byId("none").textContent = error.message;
    return;
  }
  byId("none").hidden = true;
  byId("run").hidden = false;
  show(run);
}

function show(run) {
  const lost = !run.over && Date.now() - Date.parse(run.at) > STALE_MS;
  const sign = byId("isolation");
  sign.dataset.on = run.over || lost || run.isolation === null ? "" : String(run.isolation);
  sign.textContent = run.over ? VERDICTS[run.over.verdict] ?? run.over.verdict
    : lost ? "the run has gone silent"
    : run.isolation === null ? "the farm stands still" : run.isolation ? "isolation on: the farm works in its fence" : "isolation OFF: the farm works everywhere";
  byId("decode").textContent = run.decode;
  fill(byId("loads"), run.loads.map((load) => h("li", null, load)));
  byId("note").textContent = run.over ? run.over.reasons.join("\n") : run.note;
  draw(byId("trace"), run.points);
  const now = Date.now();
  const fresh = now - pictured > PICTURE_MS;
  if (fresh) pictured = now;
  keyed(byId("pools"), Object.keys(run.units).sort(), (pool) => pool, makePool, (item, pool) => {
    const rate = run.over ? 0 : run.rates[pool] ?? 0;
    item.querySelector("p").textContent = `${pool}: ${run.units[pool]} units, ${rate.toFixed(1)} a second`;
    const image = item.querySelector("img");
    image.hidden = !run.pictures.includes(pool);
    if (!image.hidden && (fresh || !image.src)) renew(image, pool);
  });
}

/** Always fetched anew: a browser shows an address that it has shown before without asking. */
async function renew(image, pool) {
  const response = await fetch(`/v1/stillness/pictures/${pool}`);
  if (!response.ok) return;
  const old = image.src;
  image.src = URL.createObjectURL(await response.blob());
  if (old) URL.revokeObjectURL(old);
}

function makePool(pool) {
  return h("li", null, h("p"), h("img", { alt: `last picture of ${pool}`, hidden: true }));
}

/** Two minutes of steps, in logarithmic height; the ground is coloured where the farm worked, red without a fence. */
function draw(svg, points) {
  const last = points.at(-1)?.[0] ?? 0;
  const seen = points.filter((point) => point[2] !== null && point[0] >= last - SECONDS);
  const figures = byId("figures");
  if (seen.length === 0) {
    fill(svg);
    figures.textContent = "no steps yet";
    return;
  }
  const low = Math.min(...seen.map((point) => point[1])) * 0.9, high = Math.max(...seen.map((point) => point[2])) * 1.1;
  const x = (at) => LEFT + (WIDTH - LEFT) * (1 + (at - last) / SECONDS);
  const y = (ms) => (HEIGHT - 8) * (1 - Math.log(ms / low) / Math.log(high / low)) + 4;
  const shapes = [];
  points.forEach((point, n) => {
    if (!point[4] || point[0] < last - SECONDS) return;
    const from = n ? points[n - 1][0] : point[0];
    shapes.push(shape("rect", { class: point[3] === "control" ? "loose" : "fenced", x: x(from).toFixed(1), y: 0,
      width: Math.max(0, x(point[0]) - x(from)).toFixed(1), height: HEIGHT }));
  });
  for (const [name, index] of [["p50", 1], ["p99", 2]]) {
    shapes.push(shape("polyline", { class: name, points: seen.map((point) => `${x(point[0]).toFixed(1)},${y(point[index]).toFixed(1)}`).join(" ") }));
  }
  for (const ms of [low / 0.9, Math.sqrt(low * high), high / 1.1]) {
    const text = shape("text", { x: 2, y: (y(ms) + 4).toFixed(1) });
    text.textContent = `${ms.toPrecision(3)} ms`;
    shapes.push(text);
  }
  svg.replaceChildren(...shapes);
  const [, p50, p99] = seen.at(-1);
  figures.textContent = `step p50 ${p50.toFixed(2)} ms, p99 ${p99.toFixed(2)} ms`;
  svg.setAttribute("aria-label", `Decode steps, last p99 ${p99.toFixed(2)} ms`);
}

function shape(tag, attributes) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

await look();
listen({ seen: () => {}, again: () => {} });
setInterval(() => look().catch((error) => { byId("isolation").textContent = error.message; }), EVERY_MS);
