// Elements without markup strings: text is always text, so nothing a job is named can become markup.

const SVG = "http://www.w3.org/2000/svg";

/** Make an element. `props`: attributes, `class`, `on…` handlers, `data`; false and null are left out. */
export function h(tag, props, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(node.dataset, value);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An icon of the sprite in the page. */
export function icon(name) {
  const svg = document.createElementNS(SVG, "svg");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `#i-${name}`);
  svg.setAttribute("aria-hidden", "true");
  svg.append(use);
  return svg;
}

export const byId = (id) => document.getElementById(id);

/** Replace the children only when something changed, so that focus and selection stay. */
export function fill(parent, ...children) {
  const next = h("div", null, ...children);
  if (parent.childNodes.length !== next.childNodes.length || parent.innerHTML !== next.innerHTML) {
    parent.replaceChildren(...next.childNodes);
  }
}

/** Keep the children of `parent` in step with `items`: one element a key, moved and updated in place. */
export function keyed(parent, items, key, make, update) {
  const old = new Map([...parent.children].map((node) => [node.dataset.key, node]));
  let place = parent.firstElementChild;
  for (const item of items) {
    const id = String(key(item));
    let node = old.get(id);
    if (node) old.delete(id);
    else {
      node = make(item);
      node.dataset.key = id;
    }
    update(node, item);
    if (node === place) place = place.nextElementSibling;
    else parent.insertBefore(node, place);
  }
  for (const node of old.values()) node.remove();
}

/** A state as a dot and its name. */
export function stateMark(name, label) {
  return h("span", { class: "state", "data-state": name }, label ?? name);
}

/** A progress bar; `fraction` and `bad` from 0 to 1. */
export function bar(fraction, { state, label, bad = 0 } = {}) {
  const node = h("div", { class: "bar", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100" }, h("i"));
  setBar(node, fraction, { state, label, bad });
  return node;
}

/** Move a bar made by {@link bar}. */
export function setBar(node, fraction, { state, label, bad = 0 } = {}) {
  const percent = Math.max(0, Math.min(100, fraction * 100));
  node.firstElementChild.style.width = `${percent}%`;
  node.setAttribute("aria-valuenow", String(Math.floor(percent)));
  if (label) node.setAttribute("aria-label", label);
  if (state) node.dataset.state = state;
  let red = node.querySelector(".bad");
  if (bad > 0) {
    red ??= node.appendChild(h("i", { class: "bad" }));
    red.style.left = `${percent}%`;
    red.style.width = `${Math.min(100 - percent, bad * 100)}%`;
  } else red?.remove();
}

/** What a list shows when it has nothing. */
export function emptyNote(iconName, title, text, command) {
  return h("div", { class: "empty" }, icon(iconName), h("strong", null, title), h("span", null, text),
    command && h("code", null, command));
}

/** A short message in the corner; errors stay longer. */
export function toast(text, bad = false) {
  const node = h("div", { class: bad ? "toast bad" : "toast" }, text);
  byId("toasts").append(node);
  setTimeout(() => node.remove(), bad ? 9000 : 3500);
}

/** Ask before what cannot be undone; resolves to whether the person agreed. */
export function ask(title, text, verb) {
  return new Promise((answer) => {
    const dialog = h("dialog", { class: "ask", "aria-labelledby": "ask-title" },
      h("h2", { id: "ask-title" }, title), h("p", null, text),
      h("div", null, h("button", { type: "button", onclick: () => dialog.close() }, "Keep it"),
        h("button", { type: "button", class: "primary", onclick: () => dialog.close("yes") }, verb)));
    dialog.addEventListener("close", () => { dialog.remove(); answer(dialog.returnValue === "yes"); });
    document.body.append(dialog);
    dialog.showModal();
  });
}
