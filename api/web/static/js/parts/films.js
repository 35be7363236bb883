// Films to play, and every other file that a job made.

import { emptyNote, h, icon, keyed } from "../dom.js";
import { duration, size } from "../format.js";
import { splatViewer } from "./splats.js";

/** Show artifacts in `panel`; a film that plays is left alone. */
export function showFilms(panel, artifacts, ended) {
  if (!panel.firstElementChild) panel.append(h("div", { class: "films" }), h("div", { class: "films" }), h("ul", { class: "panel files" }), h("div"));
  const [films, splats, files, empty] = panel.children;
  // a lossless master is a film that no browser plays
  const isFilm = (one) => ["video/mp4", "video/webm"].includes(one.media_type);
  keyed(films, artifacts.filter(isFilm), (one) => one.id, film, () => {});
  keyed(splats, artifacts.filter((one) => one.name === "splats.ply"), (one) => one.id, splatViewer, () => {});
  const rest = artifacts.filter((one) => !isFilm(one));
  keyed(files, rest, (one) => one.id, file, () => {});
  files.hidden = rest.length === 0;
  empty.className = artifacts.length ? "" : "panel";
  empty.replaceChildren(...(artifacts.length ? [] : [emptyNote("file", ended ? "This job made no film" : "No film yet",
    ended ? "Ask for one with its film setting when you submit." : "It is encoded when every frame is there.")]));
}

function film(one) {
  const meta = one.meta ?? {};
  const facts = [meta.width && `${meta.width}×${meta.height}`, meta.frames && `${meta.frames} frames`, meta.fps && `${meta.fps} fps`,
    meta.duration_s && duration(meta.duration_s), meta.codec, size(one.bytes)].filter(Boolean).join(" · ");
  const figure = h("figure", { class: "panel film" },
    h("video", { controls: true, loop: true, muted: true, playsinline: true, preload: "metadata", src: one.url, "aria-label": one.name }),
    h("figcaption", null, h("b", null, one.name), h("span", { class: "muted" }, facts), get(one)));
  // a small film is shown at twice its size at most
  if (meta.width) figure.style.width = `${Math.max(420, Math.min(1100, meta.width * 2))}px`;
  return figure;
}

function file(one) {
  return h("li", null, h("b", null, one.name), h("span", { class: "muted" }, `${one.media_type} · ${size(one.bytes)}`), get(one));
}

const get = (one) => h("a", { class: "button", href: `${one.url}?download=true` }, icon("down"), "Download");
