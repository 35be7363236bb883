// What the forms for new jobs share: faults beside their fields, a word below, and the list of projects.

import { get, post, upload } from "../api.js";
import { bar, byId, h, setBar } from "../dom.js";

/** Say what is wrong with the whole, or nothing. */
export function say(text) {
  byId("problem").textContent = text;
  byId("problem").hidden = !text;
}

/** Put each fault beside its field. */
export function mark(form, faults) {
  form.querySelectorAll(".wrong").forEach((node) => node.remove());
  form.querySelectorAll("[aria-invalid]").forEach((node) => node.removeAttribute("aria-invalid"));
  let first = null;
  for (const fault of faults) {
    const field = [...form.querySelectorAll("[data-pointer]")].find((node) => fault.pointer === node.dataset.pointer
      || fault.pointer.startsWith(`${node.dataset.pointer}/`));
    if (!field) continue;
    field.setAttribute("aria-invalid", "true");
    field.closest(".field").append(h("small", { class: "wrong" }, fault.message));
    first ??= field;
  }
  first?.focus();
}

/** Offer the projects that the key sees. */
export async function offerProjects(select) {
  const projects = (await get("/v1/projects", { limit: 200 })).items;
  select.append(...projects.map((project) => h("option", { value: project.name, selected: project.name === "default" }, project.name)));
}

/** Upload `files` (path and file), submit what `body(assets)` makes of their hashes, and go to the job. */
export async function send(form, files, body) {
  mark(form, []);
  say("");
  byId("send").disabled = true;
  const meter = bar(0, { label: "Upload" });
  byId("upload").hidden = files.length === 0;
  byId("upload").replaceChildren(meter);
  try {
    const sent = files.length ? (await upload(files, (fraction) => setBar(meter, fraction))).assets : [];
    const job = await post("/v1/jobs", body(Object.fromEntries(sent.map((asset) => [asset.name, asset.sha256]))));
    location.assign(`/jobs/${job.id}`);
  } catch (error) {
    mark(form, error.faults ?? []);
    say(error.message);
    byId("send").disabled = false;
    byId("upload").hidden = true;
  }
}
