import { get } from "../api.js";
import { bar, byId, emptyNote, fill, h, keyed, setBar, stateMark } from "../dom.js";
import { ago, count, left, moment, percent } from "../format.js";
import { calmly, listen } from "../live.js";
import { begin, Pager, segments } from "../shell.js";
import { allTasks, badShare, badTasks, hasEnded, progress, secondsLeft, shownState } from "../work.js";

const SIZE = 50;
const STATES = [["", "All"], ["running", "Running"], ["waiting", "Waiting"], ["done", "Done"], ["failed", "Failed"],
  ["cancelled", "Cancelled"]];
const rows = byId("rows");
const form = byId("filters");
const chosen = new URLSearchParams(location.search);
const filters = { state: chosen.get("state") ?? "", q: chosen.get("q") ?? "", project: chosen.get("project") ?? "",
  kind: chosen.get("kind") ?? "" };
const pager = new Pager(byId("pager"), () => load());
let known = null;

for (let n = 0; n < 6; n += 1) {
  rows.append(h("tr", { class: "skeleton", "aria-hidden": "true" }, Array.from({ length: 7 }, () => h("td", null, h("span")))));
}

async function load() {
  const asked = JSON.stringify(filters);
  const page = await get("/v1/jobs", { ...filters, limit: SIZE, cursor: pager.cursor });
  if (asked !== JSON.stringify(filters)) return;
  rows.querySelectorAll(".skeleton").forEach((row) => row.remove());
  keyed(rows, page.items, (job) => job.id, makeRow, updateRow);
  known = new Set(page.items.map((job) => job.id));
  byId("list").setAttribute("aria-busy", "false");
  byId("list").querySelector("table").hidden = page.items.length === 0;
  byId("empty").hidden = page.items.length > 0;
  if (page.items.length === 0) {
    const filtered = Object.values(filters).some(Boolean);
    fill(byId("empty"), filtered
      ? emptyNote("search", "No job matches", "Loosen the filters to see more.")
      : emptyNote("jobs", "No jobs yet", "Send the first one from here, or from a terminal:",
        "farm submit render scene.xml --frames 1-48 --film mp4 --watch"));
  }
  pager.show(page.next);
}

function makeRow(job) {
  const cells = ["", "", "", "num nowrap", "num", "", "num nowrap"];
  const row = h("tr", { class: known ? "fresh" : null }, cells.map((name) => h("td", { class: name || null })));
  row.children[0].append(h("div", { class: "name" }, h("a", { href: `/jobs/${job.id}` }), h("small")));
  row.children[2].append(h("div", { class: "meter" }, h("p", null, h("span"), h("span")), bar(0)));
  return row;
}

function updateRow(row, job) {
  const [name, state, meter, eta, priority, project, when] = row.children;
  name.querySelector("a").textContent = job.name;
  const labels = Object.entries(job.labels).slice(0, 3).map(([key, value]) => h("span", { class: "chip" }, `${key} ${value}`));
  fill(name.querySelector("small"), h("span", null, job.kind), labels);
  const shown = shownState(job);
  fill(state, stateMark(shown));
  const done = progress(job);
  const [amount, figure] = meter.querySelectorAll("p span");
  amount.textContent = job.frames_total ? `${count(job.frames_done)} of ${count(job.frames_total)} frames`
    : `${count(job.tasks.done)} of ${count(allTasks(job))} tasks`;
  const bad = badTasks(job);
  fill(figure, bad ? h("span", { class: "bad" }, `${count(bad)} failed`) : percent(done));
  setBar(meter.querySelector(".bar"), done, { state: shown, label: `${job.name}: ${percent(done)} done`, bad: badShare(job) });
  eta.textContent = left(secondsLeft(job));
  priority.textContent = job.priority;
  project.textContent = job.project.name;
  when.textContent = ago(job.created_at);
  when.title = moment(job.created_at);
  row.classList.toggle("ended", hasEnded(job));
}

async function pulse() {
  const [pools, slots] = await Promise.all([get("/v1/pools"), get("/v1/slots", { limit: 1000 })]);
  const serving = slots.items.filter((slot) => ["idle", "busy", "held"].includes(slot.state));
  const busy = serving.filter((slot) => slot.state === "busy").length;
  const sum = (field) => pools.items.reduce((total, pool) => total + pool[field], 0);
  const figure = (label, value, of) => h("div", null, h("dt", null, label), h("dd", null, value, of && h("small", null, ` / ${of}`)));
  fill(byId("pulse"), figure("slots busy", String(busy), String(serving.length)), figure("tasks waiting", count(sum("ready"))));
}

function changed() {
  const query = new URLSearchParams(Object.entries(filters).filter(([, value]) => value));
  history.replaceState(null, "", query.size ? `/jobs?${query}` : "/jobs");
  pager.reset();
  known = null;
  refresh();
}

const refresh = calmly(load, 900);
const beat = calmly(pulse, 1500);

async function choices() {
  const [projects, kinds] = await Promise.all([get("/v1/projects", { limit: 200 }), get("/v1/kinds")]);
  for (const [name, items] of [["project", projects.items], ["kind", kinds.items]]) {
    const select = form.elements[name];
    select.append(...items.map((item) => h("option", { value: item.name }, item.name)));
    select.value = filters[name];
  }
}

segments(byId("states"), "state", STATES, filters.state, (value) => { filters.state = value; changed(); });
form.elements.q.value = filters.q;
form.addEventListener("submit", (event) => event.preventDefault());
for (const name of ["project", "kind"]) {
  form.elements[name].addEventListener("change", (event) => { filters[name] = event.target.value; changed(); });
}
let typing;
form.elements.q.addEventListener("input", (event) => {
  clearTimeout(typing);
  typing = setTimeout(() => { filters.q = event.target.value.trim(); changed(); }, 250);
});

await begin();
await Promise.all([load(), pulse(), choices()]);
listen({ seen: (type) => {
  if (type.startsWith("slot") || type.startsWith("node") || type.startsWith("attempt")) beat();
  if (!type.startsWith("slot") && !type.startsWith("node")) refresh();
}, again: () => { refresh(); beat(); } });
setInterval(() => { refresh(); beat(); }, 15000);
