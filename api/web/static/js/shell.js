// What every page but sign-in does: say who is signed in, and sign out.

import { remove, whoAmI } from "./api.js";
import { byId, h, icon, toast } from "./dom.js";

export async function begin() {
  const me = await whoAmI();
  byId("who").textContent = me.user;
  byId("signout").addEventListener("click", async () => {
    try { await remove("/v1/session"); } finally { location.assign("/signin"); }
  });
  return me;
}

/** Whether the signed-in key has a scope; `admin` has all. */
export const may = (me, ...scopes) => me.scopes.includes("admin") || scopes.some((scope) => me.scopes.includes(scope));

let leaving = false;

/** Go to another page, once: a second wish must not break off the first. */
export function leaveTo(path) {
  if (leaving) return;
  leaving = true;
  location.assign(path);
}

/** Run an action of a button: disabled meanwhile, errors as a toast. */
export function acting(button, work) {
  button.addEventListener("click", async () => {
    button.disabled = true;
    try { await work(); } catch (error) { toast(error.message, true); } finally { button.disabled = false; }
  });
  return button;
}

/** A row of choices of which one is on; calls `changed(value)`. */
export function segments(fieldset, name, choices, chosen, changed) {
  for (const [value, label] of choices) {
    fieldset.append(h("label", null, h("input", { type: "radio", name, value, checked: value === chosen,
      onchange: () => changed(value) }), h("span", null, label)));
  }
}

/** Older and newer pages of a cursor list. `go` loads the current page. */
export class Pager {
  constructor(node, go) {
    this.node = node;
    this.go = go;
    this.reset();
  }

  get cursor() { return this.trail.at(-1); }

  reset() { this.trail = [null]; }

  show(next) {
    this.node.hidden = this.trail.length === 1 && !next;
    const step = (label, name, able, act) => h("button", { type: "button", disabled: !able, onclick: () => {
      act();
      this.go();
      scrollTo({ top: 0 });
    } }, name === "left" && icon(name), label, name === "right" && icon(name));
    this.node.replaceChildren(
      step("Newer", "left", this.trail.length > 1, () => this.trail.pop()),
      h("span", null, `Page ${this.trail.length}`),
      step("Older", "right", Boolean(next), () => this.trail.push(next)),
    );
  }
}
