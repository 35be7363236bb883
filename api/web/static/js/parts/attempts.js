// Attempts of a job: how each ended, and where its time went.

import { emptyNote, fill, h, keyed, stateMark } from "../dom.js";
import { ago, duration, moment, size } from "../format.js";

const PARTS = ["fetch", "load", "work", "write", "held"];
const NUMBERS = [1, 3, 4, 6, 7, 8];

/** Show a page of attempts in `panel`; `openLog(id)` shows a log. */
export function showAttempts(panel, attempts, tasks, openLog) {
  if (!panel.firstElementChild) {
    panel.append(h("div", { class: "panel" },
      h("div", { class: "legend" }, PARTS.map((part) => h("span", null, h("i", { class: `part-${part}` }), part))),
      h("div", { class: "scroll" }, h("table", { class: "rows" }, h("thead", null, h("tr", null,
        ["Task", "Try", "State", "Waited", "Took", "", "Processor", "Memory", "Began", ""].map((name, n) =>
          h("th", { scope: "col", class: NUMBERS.includes(n) ? "num" : null }, name)))), h("tbody")))), h("div"));
  }
  const [table, empty] = panel.children;
  table.hidden = attempts.length === 0;
  empty.className = attempts.length ? "" : "panel";
  fill(empty, ...(attempts.length ? [] : [emptyNote("jobs", "Nothing has been tried yet", "Attempts show here as slots take up the work.")]));
  keyed(table.querySelector("tbody"), attempts, (one) => one.id, (one) => h("tr", null, Array.from({ length: 10 }, (_, n) =>
    h("td", { class: NUMBERS.includes(n) ? "num nowrap" : "nowrap" }, n === 9 &&
      h("button", { type: "button", class: "link", onclick: () => openLog(one.id) }, "Log")))), (row, one) => update(row, one, tasks));
}

function update(row, one, tasks) {
  const [task, number, state, waited, time, split, cpu, memory, began] = row.children;
  const known = tasks.get(one.task_id);
  task.textContent = known ? known : `…${one.task_id.slice(-8)}`;
  task.title = one.task_id;
  number.textContent = one.number;
  fill(state, stateMark(one.state), one.error && h("div", { class: "error-text", title: one.error }, one.error));
  waited.textContent = duration(one.queue_s);
  const ended = one.ended_at ? Date.parse(one.ended_at) : Date.now();
  time.textContent = duration((ended - Date.parse(one.started_at)) / 1000);
  const values = PARTS.map((part) => one[`${part}_s`] ?? 0);
  const sum = values.reduce((total, value) => total + value, 0);
  const told = PARTS.map((part, n) => `${part} ${duration(values[n])}`).join(", ");
  const mark = values.join();
  if (split.dataset.mark !== mark) {
    split.dataset.mark = mark;
    split.replaceChildren(h("div", { class: "split", role: "img", "aria-label": told, title: told }, PARTS.map((part, n) => {
      const piece = h("i", { class: `part-${part}` });
      piece.style.width = sum ? `${(values[n] / sum) * 100}%` : "0";
      return piece;
    })));
  }
  cpu.textContent = one.cpu_s === null ? "–" : duration(one.cpu_s);
  memory.textContent = one.peak_rss === null ? "–" : size(one.peak_rss);
  began.textContent = ago(one.started_at);
  began.title = moment(one.started_at);
}
