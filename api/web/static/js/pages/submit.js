import { byId, h } from "../dom.js";
import { size } from "../format.js";
import { mark, offerProjects, say, send } from "../parts/form.js";
import { begin } from "../shell.js";

const SCENES = [".xml", ".glb", ".obj", ".ply"];
const form = byId("form");
const picker = byId("files");
const drop = byId("drop");
/** Job path to file. */
let chosen = new Map();

function take(entries) {
  chosen = new Map(entries.filter(([path]) => !path.split("/").some((part) => part.startsWith("."))));
  const scenes = [...chosen.keys()].filter((path) => SCENES.some((suffix) => path.toLowerCase().endsWith(suffix)))
    .sort((a, b) => rank(a) - rank(b) || a.split("/").length - b.split("/").length || a.localeCompare(b));
  byId("picked").replaceChildren(...[...chosen].map(([path, file]) => h("li", null, h("span", { class: "mono" }, path),
    h("span", { class: "faint" }, size(file.size)))));
  form.elements.scene.replaceChildren(...scenes.map((path) => h("option", { value: path }, path)));
  byId("scene-field").hidden = scenes.length < 2;
  if (!form.elements.name.value && scenes[0]) form.elements.name.value = scenes[0].split("/").at(-1).replace(/\.[^.]+$/, "");
  say(chosen.size && !scenes.length ? `None of these is a scene: ${SCENES.join(", ")}` : "");
}

const rank = (path) => SCENES.findIndex((suffix) => path.toLowerCase().endsWith(suffix));

/** Paths of a chosen folder without the folder's own name, which scenes do not know of. */
function inside(paths) {
  const tops = new Set(paths.map(([path]) => path.split("/")[0]));
  const nested = paths.every(([path]) => path.includes("/"));
  return tops.size === 1 && nested ? paths.map(([path, file]) => [path.slice(path.indexOf("/") + 1), file]) : paths;
}

byId("pick-files").addEventListener("click", () => { picker.webkitdirectory = false; picker.click(); });
byId("pick-folder").addEventListener("click", () => { picker.webkitdirectory = true; picker.click(); });
picker.addEventListener("change", () => take(inside([...picker.files].map((file) => [file.webkitRelativePath || file.name, file]))));
for (const name of ["dragenter", "dragover"]) drop.addEventListener(name, (event) => { event.preventDefault(); drop.classList.add("over"); });
for (const name of ["dragleave", "drop"]) drop.addEventListener(name, () => drop.classList.remove("over"));
drop.addEventListener("drop", async (event) => {
  event.preventDefault();
  const roots = [...event.dataTransfer.items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  take(inside((await Promise.all(roots.map((entry) => walk(entry, "")))).flat()));
});

async function walk(entry, prefix) {
  const path = prefix + entry.name;
  if (entry.isFile) return [[path, await new Promise((resolve, reject) => entry.file(resolve, reject))]];
  const reader = entry.createReader();
  const found = [];
  for (;;) {
    const batch = await new Promise((resolve, reject) => reader.readEntries(resolve, reject));
    if (!batch.length) return found;
    found.push(...(await Promise.all(batch.map((inner) => walk(inner, `${path}/`)))).flat());
  }
}

function body(assets) {
  const value = (name) => form.elements[name].value.trim();
  const spec = { scene: value("scene"), frames: value("frames"), resolution: value("resolution") };
  if (value("samples")) spec.samples = Number(value("samples"));
  if (value("camera")) spec.camera = { type: value("camera") };
  spec.outputs = value("output") === "exr" ? ["png", "exr"] : [value("output")];
  if (value("film")) spec.film = { formats: [value("film")], fps: value("fps") };
  return { kind: "render", name: value("name"), project: value("project") || undefined, priority: Number(value("priority")), spec, assets };
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  if (!form.elements.scene.value) { mark(form, []); say("Choose a scene first."); byId("pick-files").focus(); return; }
  send(form, [...chosen], body);
});

byId("live").hidden = true;
await begin();
await offerProjects(form.elements.project);
