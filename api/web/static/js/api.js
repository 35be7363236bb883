// Calls to /v1 with the session cookie; the CSRF token is kept in memory alone.

let session = null;

export class Problem extends Error {
  constructor(status, body) {
    super(body.detail || body.title || `the farm answered ${status}`);
    this.status = status;
    this.faults = body.errors ?? [];
  }
}

/** Who is signed in; goes to the sign-in page when nobody is. */
export async function whoAmI() {
  session ??= await get("/v1/session");
  return session;
}

export const get = (path, query) => call("GET", path, { query });
export const post = (path, body) => call("POST", path, { body: body ?? {} });
export const patch = (path, body, version) => call("PATCH", path, { body, version });
export const remove = (path) => call("DELETE", path, {});

/** Upload files as a form; `progress` gets a fraction. Resolves to the farm's answer. */
export async function upload(files, progress) {
  const { csrf } = await whoAmI();
  const form = new FormData();
  for (const [name, file] of files) form.append("file", file, name);
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", "/v1/assets");
    request.setRequestHeader("X-CSRF-Token", csrf);
    request.setRequestHeader("Idempotency-Key", newKey());
    request.responseType = "json";
    request.upload.onprogress = (event) => event.lengthComputable && progress(event.loaded / event.total);
    request.onerror = () => reject(new Problem(0, { detail: "the farm cannot be reached" }));
    request.onload = () => {
      if (request.status < 400) resolve(request.response);
      else reject(new Problem(request.status, request.response ?? {}));
    };
    request.send(form);
  });
}

/** Text of a path, with the answer's headers. */
export async function text(path, query) {
  const response = await raw("GET", path, { query });
  return { text: await response.text(), headers: response.headers };
}

async function call(method, path, options) {
  const response = await raw(method, path, options);
  return response.status === 204 ? null : response.json();
}

async function raw(method, path, { query, body, version }) {
  const url = new URL(path, location.origin);
  for (const [name, value] of Object.entries(query ?? {})) {
    for (const one of [value].flat()) {
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, one);
    }
  }
  const headers = {};
  if (method !== "GET") {
    if (path !== "/v1/session" || method === "DELETE") headers["X-CSRF-Token"] = (await whoAmI()).csrf ?? "";
    if (method === "POST" && path !== "/v1/session") headers["Idempotency-Key"] = newKey();
    if (body !== undefined) headers["Content-Type"] = "application/json";
    if (version !== undefined) headers["If-Match"] = `"${version}"`;
  }
  let response;
  try {
    response = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem(0, { detail: "the farm cannot be reached; is it running?" });
  }
  if (response.ok) return response;
  const problem = new Problem(response.status, await response.json().catch(() => ({})));
  if (response.status === 401 && document.body.dataset.page !== "signin") {
    location.assign(`/signin?next=${encodeURIComponent(location.pathname + location.search)}`);
    // the page is being left: nobody needs an answer any more
    return new Promise(() => {});
  }
  throw problem;
}

/** randomUUID exists on secure origins only; a farm reached by plain http elsewhere has getRandomValues. */
function newKey() {
  if (crypto.randomUUID) return crypto.randomUUID();
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
