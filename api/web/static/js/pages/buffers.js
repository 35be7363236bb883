import { get } from "../api.js";
import { bar, byId, emptyNote, fill, h, keyed, setBar, stateMark } from "../dom.js";
import { ago, moment, percent, size } from "../format.js";
import { calmly, listen } from "../live.js";
import { begin, Pager, segments } from "../shell.js";

const SIZE = 100;
const MEDIA = { vram: "VRAM", pinned: "Pinned ring", shm: "Shared memory", spool: "Spool", store: "Store" };
const STATES = [["", "Live"], ["reserved", "Reserved"], ["filled", "Filled"], ["draining", "Draining"],
  ["orphaned", "Orphaned"], ["released", "Released"]];
const filters = { state: "", medium: "" };
const pager = new Pager(byId("pager"), () => load());
const rows = byId("rows");

async function load() {
  const state = filters.state || ["reserved", "filled", "draining", "orphaned"];
  const [budgets, nodes, page] = await Promise.all([get("/v1/budgets", { limit: 500 }), get("/v1/nodes", { limit: 500 }),
    get("/v1/buffers", { state, medium: filters.medium, limit: SIZE, cursor: pager.cursor })]);
  const names = new Map(nodes.items.map((node) => [node.id, node.name]));
  byId("budgets").setAttribute("aria-busy", "false");
  keyed(byId("budgets"), budgets.items, (one) => `${one.node_id}-${one.medium}`, makeBudget, (node, one) =>
    updateBudget(node, one, nodes.items.length > 1 ? names.get(one.node_id) : ""));
  byId("list").setAttribute("aria-busy", "false");
  keyed(rows, page.items, (one) => one.id, () => h("tr", null, Array.from({ length: 7 }, (_, n) =>
    h("td", { class: n === 3 || n === 6 ? "num nowrap" : null }))), (row, one) => updateRow(row, one, names));
  byId("list").querySelector("table").hidden = page.items.length === 0;
  byId("empty").hidden = page.items.length > 0;
  if (page.items.length === 0) {
    fill(byId("empty"), filters.state || filters.medium
      ? emptyNote("search", "No buffer matches", "Loosen the filters to see more.")
      : emptyNote("buffers", "Nothing is held", "Memory and storage that frames pass through show here while they are held."));
  }
  pager.show(page.next);
}

function makeBudget() {
  return h("div", { class: "panel budget" }, h("p", null, h("b"), h("span", { class: "faint" })), bar(0), h("small"));
}

function updateBudget(node, one, name) {
  const share = one.budget_bytes ? one.reserved_bytes / one.budget_bytes : 0;
  node.dataset.full = share >= 1 ? "full" : share > 0.85 ? "near" : "";
  node.querySelector("b").textContent = MEDIA[one.medium] ?? one.medium;
  node.querySelector("span").textContent = name || percent(share);
  setBar(node.querySelector(".bar"), share, { label: `${MEDIA[one.medium]}: ${percent(share)} of the budget is held` });
  node.querySelector("small").textContent = `${size(one.reserved_bytes)} of ${size(one.budget_bytes)}`;
}

function updateRow(row, one, names) {
  const [id, medium, state, bytes, purpose, holder, since] = row.children;
  fill(id, h("span", { class: "mono faint" }, `${one.id.slice(0, 4)}…${one.id.slice(-8)}`));
  id.title = one.id;
  medium.textContent = MEDIA[one.medium] ?? one.medium;
  fill(state, stateMark(one.state), one.note && h("div", { class: "hint" }, one.note));
  bytes.textContent = size(one.bytes);
  purpose.textContent = one.shape ? `${one.purpose}, ${one.shape.join("×")} ${one.dtype ?? ""}` : one.purpose;
  fill(holder, h("span", { class: "mono faint" }, one.task_id ? `task …${one.task_id.slice(-8)}` : names.get(one.node_id) ?? "–"));
  since.textContent = ago(one.changed_at);
  since.title = moment(one.changed_at);
}

function changed() { pager.reset(); refresh(); }

const refresh = calmly(load, 900);
segments(byId("states"), "state", STATES, "", (value) => { filters.state = value; changed(); });
byId("filters").elements.medium.addEventListener("change", (event) => { filters.medium = event.target.value; changed(); });
byId("filters").addEventListener("submit", (event) => event.preventDefault());

await begin();
await load();
listen({ seen: (type) => { if (/^(buffer|attempt|frame|artifact|node)/.test(type)) refresh(); }, again: refresh });
setInterval(refresh, 5000);
