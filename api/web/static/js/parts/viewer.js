// One frame, large, with its files; arrow keys go to its neighbours.

import { h, icon } from "../dom.js";
import { duration, size } from "../format.js";

/** Open the viewer on `frames[index]`. */
export function viewFrame(frames, index, stepName) {
  let at = index;
  const image = h("img", { alt: "" });
  const where = h("span", { class: "where" });
  const facts = h("span", { class: "muted" });
  const files = h("span", { class: "actions" });
  const step = (by) => { at = Math.max(0, Math.min(frames.length - 1, at + by)); draw(); };
  const back = h("button", { class: "icon", type: "button", "aria-label": "Frame before", onclick: () => step(-1) }, icon("left"));
  const on = h("button", { class: "icon", type: "button", "aria-label": "Next frame", onclick: () => step(1) }, icon("right"));
  const dialog = h("dialog", { class: "viewer", "aria-label": "Frame" }, h("div", { class: "big" }, image),
    h("footer", null, back, on, where, facts, files,
      h("button", { class: "icon", type: "button", "aria-label": "Close", onclick: () => dialog.close() }, icon("stop"))));

  function draw() {
    const frame = frames[at];
    const shown = frame.files.find((file) => ["png", "jpeg"].includes(file.format));
    image.src = shown ? shown.url : `${frame.thumbnail_url}?size=1024`;
    image.alt = `Frame ${frame.number} of ${stepName}`;
    where.textContent = `Frame ${frame.number}`;
    const first = frame.files[0];
    facts.textContent = [`${first.width}×${first.height}`, frame.duration_s !== null && duration(frame.duration_s),
      frame.take > 1 && `take ${frame.take}`].filter(Boolean).join(" · ");
    files.replaceChildren(...frame.files.map((file) => h("a", { class: "button", href: `${file.url}?download=true`,
      title: `${file.output}, ${size(file.bytes)}, ${file.color_space}` }, icon("down"), file.output)));
    back.disabled = at === 0;
    on.disabled = at === frames.length - 1;
  }

  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    else if (event.key === "ArrowRight") step(1);
    else return;
    event.preventDefault();
  });
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
  dialog.addEventListener("close", () => dialog.remove());
  draw();
  document.body.append(dialog);
  dialog.showModal();
}
