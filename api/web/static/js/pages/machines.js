import { get, post } from "../api.js";
import { bar, byId, emptyNote, fill, h, keyed, setBar, stateMark, toast } from "../dom.js";
import { ago, count, framesText, plural, size } from "../format.js";
import { calmly, listen } from "../live.js";
import { guardPanel, updateGuard } from "../parts/guard.js";
import { acting, begin, may } from "../shell.js";

const NAMED = 64;
const me = await begin();
/** Tasks that slots hold, by id. */
let tasks = new Map();

async function load() {
  const [nodes, slots, pools] = await Promise.all([
    get("/v1/nodes", { limit: 500 }), get("/v1/slots", { limit: 1000 }), get("/v1/pools")]);
  await nameTasks(slots.items.flatMap((slot) => slot.task_ids.slice(0, 1)));
  const serving = slots.items.filter((slot) => ["idle", "busy", "held"].includes(slot.state));
  const figure = (label, value) => h("div", null, h("dt", null, label), h("dd", null, value));
  fill(byId("pulse"), figure("nodes up", String(nodes.items.filter((node) => node.state === "up").length)),
    figure("slots busy", `${serving.filter((slot) => slot.state === "busy").length}`), figure("slots", `${serving.length}`));
  keyed(byId("pools"), pools.items, (pool) => pool.name, makePool, updatePool);
  const holder = byId("nodes");
  holder.setAttribute("aria-busy", "false");
  if (nodes.items.length === 0) {
    fill(holder, h("div", { class: "panel" }, emptyNote("machines", "No machine has joined", "Start a node agent on one:", "farm node")));
    return;
  }
  holder.querySelector(":scope > :not([data-key])")?.remove();
  keyed(holder, nodes.items, (node) => node.id, makeNode, (panel, node) =>
    updateNode(panel, node, slots.items.filter((slot) => slot.node_id === node.id)));
}

/** Look up what slots are at; of very many, the first ones. */
async function nameTasks(ids) {
  const next = new Map();
  await Promise.all(ids.slice(0, NAMED).map(async (id) => {
    try { next.set(id, tasks.get(id) ?? await get(`/v1/tasks/${id}`)); } catch (error) { if (error.status !== 404) throw error; }
  }));
  tasks = next;
}

function makePool(pool) {
  return h("div", { class: "panel pool" }, h("p", null, h("b", null, pool.name), h("span", { class: "faint" })), bar(0),
    h("small", null, h("span"), h("span")));
}

function updatePool(node, pool) {
  const share = pool.slots ? pool.busy / pool.slots : 0;
  node.querySelector("p span").textContent = pool.paused ? "paused" : pool.max_slots === null ? "" : `cap ${pool.max_slots}`;
  setBar(node.querySelector(".bar"), share, { label: `${pool.name}: ${pool.busy} of ${pool.slots} slots busy`, state: pool.paused ? "paused" : "running" });
  const [busy, ready] = node.querySelectorAll("small span");
  busy.textContent = `${pool.busy} of ${pool.slots} busy`;
  ready.textContent = pool.ready ? `${count(pool.ready)} waiting` : "nothing waits";
}

function makeNode(node) {
  const verbs = may(me, "operate") ? [
    acting(h("button", { type: "button", "data-verb": "drain" }, "Drain"), () => act(node.id, "drain", "what runs there parks, and it takes no more")),
    acting(h("button", { type: "button", "data-verb": "resume" }, "Resume"), () => act(node.id, "resume", "it takes work again")),
  ] : [];
  return h("article", { class: "panel node" },
    h("header", null, h("h2", null, node.name), h("span", { class: "mark-state" }), h("span", { class: "muted about" }),
      h("span", { class: "end" }, h("span", { class: "faint seen" }), verbs)),
    guardPanel(), h("div", { class: "left-alone-list" }),
    h("div", { class: "scroll" }, h("table", { class: "rows" },
      h("thead", null, h("tr", null, ["Slot", "State", "Device", "Pools", "Task", "Restarts"].map((name) =>
        h("th", { scope: "col", class: name === "Restarts" ? "num" : null }, name)))), h("tbody"))));
}

function updateNode(panel, node, slots) {
  fill(panel.querySelector(".mark-state"), stateMark(node.state));
  panel.querySelector(".about").textContent = about(node.info);
  const alone = JSON.stringify(node.info.gpus_in_use ?? []);
  const list = panel.querySelector(".left-alone-list");
  if (list.dataset.shown !== alone) {
    // only when it changes, so that what a person has opened stays open
    list.dataset.shown = alone;
    fill(list, leftAlone(node.info));
  }
  panel.querySelector(".seen").textContent = `seen ${ago(node.seen_at)}`;
  if (node.info.neighbours?.length) get(`/v1/nodes/${node.id}/guard`).then((guard) => updateGuard(panel, guard), () => {});
  const draining = node.state.startsWith("drain");
  for (const button of panel.querySelectorAll("[data-verb]")) {
    button.hidden = node.state === "down" || (button.dataset.verb === "drain") === draining;
  }
  keyed(panel.querySelector("tbody"), slots, (slot) => slot.id, () => h("tr", null, Array.from({ length: 6 }, (_, n) =>
    h("td", { class: n === 5 ? "num" : null }))), updateSlot);
}

function updateSlot(row, slot) {
  const [name, state, device, pools, task, restarts] = row.children;
  name.textContent = slot.name;
  fill(state, stateMark(slot.state), slot.hold_reason && h("div", { class: "hint" }, slot.hold_reason));
  fill(device, h("span", { title: slot.device.uuid ?? null }, deviceText(slot.device)), seat(slot.device));
  fill(pools, h("span", { class: "pool-list" }, slot.pools.map((pool) => h("span", { class: "chip" }, pool))));
  const held = slot.task_ids.map((id) => tasks.get(id)).find(Boolean);
  fill(task, held ? h("a", { class: "task", href: `/jobs/${held.job_id}` }, `${held.step}${held.frames ? `, ${framesText(held.frames)}` : ""}`)
    : slot.task_ids.length ? h("span", { class: "mono task" }, `…${slot.task_ids[0].slice(-8)}`) : h("span", { class: "faint" }, "–"));
  restarts.textContent = slot.restarts || "–";
}

function deviceText(device) {
  if (device.kind === "cpu") {
    return device.threads ? `CPU, ${plural(device.threads, "thread")}` : "CPU";
  }
  return device.name ?? device.kind ?? "–";
}

/** How a slot is seated: its guarantee class beside the neighbours, and what weakens its fence. */
function seat(device) {
  const reasons = device.label_reasons ?? [];
  return h("span", { class: "seat" },
    device.class_reason && h("span", { class: "chip", title: device.class_reason }, `class ${device.class}`),
    (device.labels ?? []).map((label, n) => h("span", { class: "chip warn", title: reasons[n] ?? null }, label)),
    device.cpus && h("span", { class: "hint" }, `cores ${device.cpus}${device.fence?.cpu_weight ? `, weight ${device.fence.cpu_weight}` : ""}`),
    (device.audit ?? []).map((row) => h("span", { class: "chip warn", title: `wanted ${row.wanted}` }, `${row.subject}: ${row.found}`)));
}

/** GPUs that the farm leaves alone, and the lines of farm.toml that would declare their user. */
function leftAlone(info) {
  return (info.gpus_in_use ?? []).map((gpu) => h("details", { class: "left-alone" },
    h("summary", null, `GPU ${gpu.pci} is left alone: ${gpu.reason}`), h("pre", null, gpu.toml)));
}

function about(info) {
  return [info.cores && plural(info.cores, "core"), info.memory && size(info.memory), info.hypervisor && `virtual (${info.hypervisor})`]
    .filter(Boolean).join(" · ");
}

async function act(id, verb, told) {
  await post(`/v1/nodes/${id}/${verb}`);
  toast(told);
  refresh();
}

const refresh = calmly(load, 700);
await load();
listen({ seen: (type) => { if (/^(slot|node|attempt|task|job|guard)/.test(type)) refresh(); }, again: refresh });
setInterval(refresh, 5000);
