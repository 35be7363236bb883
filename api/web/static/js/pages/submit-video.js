import { get } from "../api.js";
import { byId, emptyNote, h } from "../dom.js";
import { offerProjects, send } from "../parts/form.js";
import { begin } from "../shell.js";

const form = byId("form");
const field = (name) => form.elements[name];
const value = (name) => field(name).value.trim();
const SUFFIX = /\.(png|jpe?g|webp|tiff?|mp4|mov|mkv|webm)$/i;
let models = [];

/** What the chosen model takes: its size, counts and inputs stand in the fields as hints. */
function showModel() {
  const model = models.find((one) => one.name === value("model"));
  if (!model) return;
  const { size, frames, steps, guidance } = model.defaults;
  const rule = Object.values(model.tasks)[0];
  field("size").placeholder = size.join("x");
  field("frames").placeholder = String(frames);
  field("steps").placeholder = String(steps);
  field("guidance").placeholder = String(guidance);
  byId("frames-hint").textContent = `${rule.frames} frames`;
  byId("size-hint").textContent = model.fixed_size ? `${model.fixed_size.join("x")} only` : `Multiples of ${model.size_divisor}`;
  byId("model-hint").textContent = `${model.title}; ${Object.keys(model.tasks).join(", ")}`;
  for (const [name, task] of [["image", "i2v"], ["last_image", "flf2v"], ["video", "v2v"]]) byId(`${name}-field`).hidden = !(task in model.tasks);
}

function body(assets, inputs) {
  const spec = { model: value("model"), prompt: field("prompt").value, preset: value("preset"), device: value("device"), fit: value("fit"), ...inputs };
  for (const name of ["negative_prompt", "size"]) if (value(name)) spec[name] = value(name);
  for (const name of ["frames", "steps", "guidance"]) if (value(name)) spec[name] = Number(value(name));
  spec.seeds = value("seeds").split(/[\s,]+/).filter(Boolean).map(Number);
  spec.film = value("film") ? { formats: value("film").split("+") } : null;
  const name = value("name") || value("prompt").replace(/\s+/g, " ").slice(0, 60) || "video";
  return { kind: "video", name, project: value("project") || undefined, priority: Number(value("priority")), spec, assets };
}

form.addEventListener("submit", (event) => {
  event.preventDefault();
  const files = ["image", "last_image", "video"].filter((name) => !byId(`${name}-field`).hidden && field(name).files[0])
    .map((name) => [name, `inputs/${name}${(field(name).files[0].name.match(SUFFIX)?.[0] ?? "").toLowerCase()}`, field(name).files[0]]);
  const inputs = Object.fromEntries(files.map(([name, path]) => [name, path]));
  send(form, files.map(([, path, file]) => [path, file]), (assets) => body(assets, inputs));
});

byId("live").hidden = true;
await begin();
models = (await get("/v1/models", { limit: 200 })).items;
if (models.length === 0) {
  form.replaceChildren(h("div", { class: "panel" }, emptyNote("file", "No model yet", "An administrator adds a diffusers pipeline folder:", "farm models add NAME FOLDER")));
} else {
  field("model").append(...models.map((model) => h("option", { value: model.name }, model.name)));
  field("model").addEventListener("change", showModel);
  showModel();
  await offerProjects(field("project"));
}
form.hidden = false;
