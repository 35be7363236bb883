// An attempt's log: its end first, more on request, and its tail while it runs.

import { text } from "../api.js";
import { h } from "../dom.js";
import { size } from "../format.js";

const TAIL = 128 * 1024;
const KEPT = 2_000_000;

class LogViewer extends HTMLElement {
  connectedCallback() {
    if (this.pre) return;
    this.pick = h("select", { "aria-label": "Attempt", onchange: () => this.open(this.pick.value) });
    this.stick = h("input", { type: "checkbox", checked: true });
    this.earlier = h("button", { type: "button", class: "link", hidden: true, onclick: () => this.#earlier() }, "Show what came before");
    this.pre = h("pre", { class: "log", tabindex: "0", role: "log", "aria-label": "Log", "aria-live": "off" });
    this.append(h("div", { class: "panel" }, h("div", { class: "log-bar" }, this.pick, this.earlier,
      h("label", null, this.stick, "Follow the end")), this.pre));
  }

  disconnectedCallback() { this.source?.close(); }

  /** Offer these attempts (`[id, label]`), and open one if none is open. */
  offer(choices) {
    const mark = choices.flat().join();
    if (mark !== this.mark) {
      this.mark = mark;
      const value = this.attempt;
      this.pick.replaceChildren(...choices.map(([id, label]) => h("option", { value: id, selected: id === value }, label)));
    }
    if (!this.attempt && choices.length) this.open(choices[0][0]);
    if (!choices.length) this.pre.textContent = "No attempt has written a log yet.";
  }

  /** Show an attempt's log. */
  async open(id) {
    this.source?.close();
    this.attempt = id;
    this.pick.value = id;
    this.pre.textContent = "";
    this.start = 0;
    try {
      const answer = await text(`/v1/attempts/${id}/log`, { offset: -TAIL });
      if (this.attempt !== id) return;
      const total = Number(answer.headers.get("X-Log-Size"));
      this.start = Math.max(0, total - TAIL);
      this.pre.append(answer.text);
      this.#follow(id, Number(answer.headers.get("X-Log-Next")));
    } catch (error) {
      this.pre.textContent = error.message;
    }
    this.#offerEarlier();
    this.pre.scrollTop = this.pre.scrollHeight;
  }

  #follow(id, offset) {
    this.source = new EventSource(`/v1/attempts/${id}/log/live?offset=${offset}`);
    this.source.onmessage = (event) => {
      this.pre.append(JSON.parse(event.data).text);
      while (this.pre.textContent.length > KEPT && this.pre.childNodes.length > 1) this.pre.firstChild.remove();
      if (this.stick.checked) this.pre.scrollTop = this.pre.scrollHeight;
    };
    const source = this.source;
    source.addEventListener("end", () => source.close());
  }

  async #earlier() {
    const begin = Math.max(0, this.start - TAIL * 4);
    const answer = await text(`/v1/attempts/${this.attempt}/log`, { offset: begin, length: this.start - begin });
    const height = this.pre.scrollHeight;
    this.stick.checked = false;
    this.pre.prepend(answer.text);
    this.pre.scrollTop += this.pre.scrollHeight - height;
    this.start = begin;
    this.#offerEarlier();
  }

  #offerEarlier() {
    this.earlier.hidden = this.start === 0;
    this.earlier.textContent = `Show the ${size(this.start)} before`;
  }
}

customElements.define("sf-log", LogViewer);
