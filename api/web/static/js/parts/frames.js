// The frame grid. A step may have a million frames: rows are fetched in blocks as they come near the window,
// and only cells near the window are elements.

import { get } from "../api.js";
import { h } from "../dom.js";
import { count, duration } from "../format.js";
import { calmly } from "../live.js";
import { viewFrame } from "./viewer.js";

const BLOCK = 200;
const OVERSCAN = 2;
const SHOWS = [["", "All frames"], ["published", "Finished"], ["pending", "Missing"]];

class FrameGrid extends HTMLElement {
  constructor() {
    super();
    this.refresh = calmly(() => this.#reload(), 1200);
    this.cells = new Map();
    this.show = "";
  }

  /** Show the frames of a job's steps that make frames. */
  set(jobId, steps) {
    const making = steps.filter((step) => step.frames_total > 0 || step.outputs.length > 0);
    const shape = making.map((step) => `${step.id}:${step.frames_total}:${step.take}`).join();
    this.jobId = jobId;
    this.steps = making;
    if (shape === this.shape) return;
    this.shape = shape;
    this.#build();
  }

  disconnectedCallback() { this.stop?.abort(); }

  #build() {
    this.stop?.abort();
    this.stop = new AbortController();
    const options = { passive: true, signal: this.stop.signal };
    addEventListener("scroll", () => this.#draw(), options);
    addEventListener("resize", () => this.#draw(), options);
    this.step = this.steps.find((step) => step.id === this.step?.id) ?? this.steps[0];
    this.stage = h("div", { class: "stage", role: "list", "aria-label": "Frames" });
    this.note = h("span", { class: "faint", role: "status" });
    const choose = (name, label, choices, value, changed) => h("label", null, h("span", { class: "sr" }, label),
      h("select", { name, onchange: (event) => changed(event.target.value) }, choices.map(([id, text]) =>
        h("option", { value: id, selected: id === value }, text))));
    const jump = h("input", { type: "number", inputmode: "numeric", "aria-label": "Go to frame number" });
    this.replaceChildren(h("form", { class: "frame-bar", onsubmit: (event) => { event.preventDefault(); this.#goTo(jump.valueAsNumber); } },
      this.steps.length > 1 && choose("step", "Step", this.steps.map((step) => [step.id, step.name]), this.step.id, (id) => {
        this.step = this.steps.find((step) => step.id === id);
        this.#restart();
      }),
      choose("show", "Which frames", SHOWS, this.show, (value) => { this.show = value; this.#restart(); }),
      this.note, h("span", { class: "goto" }, "Frame", jump)), this.stage);
    this.#restart();
  }

  #restart() {
    this.blocks = [];
    this.cursorAfter = null;
    this.more = true;
    this.tasks = [];
    this.cells.forEach((cell) => cell.remove());
    this.cells.clear();
    this.aspect = this.#aspect();
    this.#draw();
    this.refresh();
  }

  #aspect() {
    const shown = this.step?.outputs[0];
    return shown ? Math.min(2.4, Math.max(0.7, shown.width / shown.height)) : 16 / 9;
  }

  get frames() { return this.blocks.flat(); }

  get total() {
    const loaded = this.blocks.reduce((sum, block) => sum + block.length, 0);
    if (!this.more) return loaded;
    return this.show ? loaded + 1 : Math.max(loaded, this.step.frames_total);
  }

  /** Where cell `index` stands, in pixels. */
  #layout() {
    const style = getComputedStyle(this);
    const wanted = parseFloat(style.getPropertyValue("--cell")) || 168;
    const gap = parseFloat(style.getPropertyValue("--gap")) || 10;
    const width = this.stage.clientWidth;
    const columns = Math.max(1, Math.floor((width + gap) / (wanted + gap)));
    const cellWidth = Math.floor((width - gap * (columns - 1)) / columns);
    // a pixel of border all around, and the caption
    const cellHeight = Math.round((cellWidth - 2) / this.aspect) + 26;
    return { columns, cellWidth, cellHeight, gap };
  }

  #draw() {
    if (!this.isConnected || !this.step || this.offsetParent === null) return;
    const { columns, cellWidth, cellHeight, gap } = this.#layout();
    const pitch = cellHeight + gap;
    this.stage.style.height = `${Math.max(1, Math.ceil(this.total / columns)) * pitch - gap}px`;
    const top = -this.stage.getBoundingClientRect().top;
    const firstRow = Math.max(0, Math.floor(top / pitch) - OVERSCAN);
    const lastRow = Math.floor((top + innerHeight) / pitch) + OVERSCAN;
    const first = firstRow * columns;
    const last = Math.min(this.total, (lastRow + 1) * columns);
    this.window = [first, last];
    const frames = this.frames;
    const needed = new Set();
    for (let index = first; index < last; index += 1) {
      needed.add(index);
      let cell = this.cells.get(index);
      if (!cell) {
        cell = this.#cell(index);
        this.cells.set(index, cell);
        this.stage.append(cell);
      }
      cell.style.width = `${cellWidth}px`;
      cell.style.height = `${cellHeight}px`;
      cell.style.transform = `translate(${(index % columns) * (cellWidth + gap)}px, ${Math.floor(index / columns) * pitch}px)`;
      this.#show(cell, frames[index]);
    }
    for (const [index, cell] of this.cells) {
      if (!needed.has(index)) { cell.remove(); this.cells.delete(index); }
    }
    if (this.more && last > frames.length - columns) this.#fetchMore(last + columns * 2);
  }

  #cell(index) {
    return h("button", { class: "cell", type: "button", onclick: () => this.#open(index) },
      h("span", { class: "pic" }), h("span", { class: "cap" }, h("b"), h("span")));
  }

  #show(cell, frame) {
    const [picture, caption] = cell.children;
    if (!frame) {
      cell.dataset.state = "missing";
      cell.disabled = true;
      caption.firstElementChild.textContent = "";
      return;
    }
    const state = frame.state === "published" ? "published" : this.#working(frame.number);
    const mark = `${frame.number} ${frame.take} ${state} ${frame.attempt_id}`;
    if (cell.dataset.mark === mark) return;
    cell.dataset.mark = mark;
    cell.dataset.state = state;
    cell.disabled = frame.state !== "published";
    cell.setAttribute("aria-label", `Frame ${frame.number}, ${state === "published" ? "finished" : state}`);
    caption.firstElementChild.textContent = frame.number;
    caption.lastElementChild.textContent = frame.state === "published" && frame.duration_s !== null ? duration(frame.duration_s)
      : state === "running" ? "rendering" : "";
    picture.replaceChildren();
    if (frame.thumbnail_url) {
      const image = h("img", { alt: "", loading: "lazy", decoding: "async", src: `${frame.thumbnail_url}?size=320&format=jpeg` });
      image.addEventListener("load", () => image.classList.add("here"));
      image.addEventListener("error", () => { cell.title = "no thumbnail can be made of this file"; });
      picture.append(image);
    }
  }

  /** State of a frame that is not there yet, from the tasks that are at it. */
  #working(number) {
    const task = this.tasks.find((one) => one.has(number));
    return task ? task.state : "pending";
  }

  async #fetchMore(wanted) {
    if (this.fetching) return;
    this.fetching = true;
    const step = this.step;
    const show = this.show;
    try {
      while (this.more && this.frames.length < wanted) {
        const page = await this.#page({ limit: BLOCK, cursor: this.cursorAfter ?? undefined });
        if (step !== this.step || show !== this.show) return;
        this.blocks.push(page.items);
        this.cursorAfter = page.next;
        this.more = page.next !== null;
      }
    } catch (error) {
      this.note.textContent = error.message;
      return;
    } finally {
      this.fetching = false;
    }
    this.#count();
    this.#draw();
  }

  #page(query) {
    return get(`/v1/steps/${this.step.id}/frames`, { current: true, state: this.show, ...query });
  }

  /** Look again at the blocks in the window that are not finished, and at who works on what. */
  async #reload() {
    if (!this.step || this.offsetParent === null) return;
    const step = this.step;
    const states = await get(`/v1/steps/${step.id}/tasks`, { state: ["running", "dispatched", "failed", "cancelled"], limit: 500 });
    if (step !== this.step) return;
    this.tasks = states.items.filter((task) => task.frames).map((task) => ({
      state: task.state === "dispatched" ? "running" : task.state, has: inRange(task.frames) }));
    if (this.show) {
      // a filtered list changes its length: begin again where we are
      this.blocks = [];
      this.cursorAfter = null;
      this.more = true;
    } else {
      let start = 0;
      for (const [index, block] of this.blocks.entries()) {
        const inWindow = start < (this.window?.[1] ?? BLOCK) && start + block.length > (this.window?.[0] ?? 0);
        start += block.length;
        if (!inWindow || block.every((frame) => frame.state === "published")) continue;
        const page = await this.#page({ limit: 1000, first: block[0].number, last: block.at(-1).number });
        if (step !== this.step) return;
        this.blocks[index] = page.items;
      }
    }
    this.cells.forEach((cell) => { if (cell.dataset.state !== "published") delete cell.dataset.mark; });
    this.#count();
    this.#draw();
  }

  #count() {
    if (this.show === "") this.note.textContent = `${count(this.step.frames_done)} of ${count(this.step.frames_total)} finished`;
    else this.note.textContent = this.more ? "" : `${count(this.frames.length)} shown`;
  }

  async #goTo(number) {
    if (Number.isNaN(number)) return;
    while (this.more && (this.frames.at(-1)?.number ?? -Infinity) < number) {
      const before = this.frames.length;
      await this.#fetchMore(before + BLOCK * 5);
      if (this.frames.length === before) break;
    }
    const index = this.frames.findIndex((frame) => frame.number >= number);
    if (index < 0) { this.note.textContent = `there is no frame ${number}`; return; }
    const { columns, cellHeight, gap } = this.#layout();
    scrollTo({ top: scrollY + this.stage.getBoundingClientRect().top + Math.floor(index / columns) * (cellHeight + gap) - 120 });
    this.#draw();
    this.cells.get(index)?.focus();
  }

  #open(index) {
    const published = this.frames.filter((frame) => frame.state === "published");
    viewFrame(published, published.indexOf(this.frames[index]), this.step.name);
  }
}

/** A test of membership in a frame range such as `1-100:2,200`. */
export function inRange(text) {
  const pieces = text.split(",").map((piece) => {
    const [, first, last, step] = piece.match(/^(-?\d+)(?:-(-?\d+))?(?::(\d+))?$/) ?? [];
    return { first: Number(first), last: Number(last ?? first), step: Number(step ?? 1) };
  });
  return (number) => pieces.some((p) => number >= p.first && number <= p.last && (number - p.first) % p.step === 0);
}

customElements.define("sf-frames", FrameGrid);
