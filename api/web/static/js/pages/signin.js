import { post } from "../api.js";
import { byId } from "../dom.js";

const form = byId("signin");
const field = byId("key");
const problem = byId("problem");

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const button = form.querySelector("button");
  button.disabled = true;
  problem.hidden = true;
  try {
    await post("/v1/session", { key: field.value.trim() });
    field.value = "";
    location.replace(target());
  } catch (error) {
    problem.textContent = error.status === 401 ? "This farm does not know that key, or it was revoked." : error.message;
    problem.hidden = false;
    field.setAttribute("aria-invalid", "true");
    field.select();
    button.disabled = false;
  }
});

/** Where the person wanted to go: only a path of this origin. */
function target() {
  const next = new URLSearchParams(location.search).get("next") ?? "/jobs";
  const url = new URL(next, location.origin);
  return next.startsWith("/") && url.origin === location.origin ? url.pathname + url.search : "/jobs";
}
