import { get, post, upload } from "../api.js";
import { bar, byId, emptyNote, h, setBar } from "../dom.js";
import { mark, offerProjects, say } from "../parts/form.js";
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

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  mark(form, []);
  say("");
  byId("send").disabled = true;
  const files = ["image", "last_image", "video"].filter((name) => !byId(`${name}-field`).hidden && field(name).files[0])
    .map((name) => [name, `inputs/${name}${(field(name).files[0].name.match(SUFFIX)?.[0] ?? "").toLowerCase()}`, field(name).files[0]]);
  const meter = bar(0, { label: "Upload" });
  byId("upload").hidden = files.length === 0;
  byId("upload").replaceChildren(meter);
  try {
    const sent = files.length ? await upload(files.map(([, path, file]) => [path, file]), (fraction) => setBar(meter, fraction)) : { assets: [] };
    const assets = Object.fromEntries(sent.assets.map((asset) => [asset.name, asset.sha256]));
    const job = await post("/v1/jobs", body(assets, Object.fromEntries(files.map(([name, path]) => [name, path]))));
    location.assign(`/jobs/${job.id}`);
  } catch (error) {
    mark(form, error.faults ?? []);
    say(error.message);
    byId("send").disabled = false;
    byId("upload").hidden = true;
  }
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
