// A viewer for 3D Gaussians (the usual .ply layout) in WebGL2: drag to turn, wheel to go nearer.

import { h } from "../dom.js";
import { count } from "../format.js";

const VERTEX = `#version 300 es
precision highp float; precision highp int;
uniform highp sampler2D places; uniform mat4 view; uniform vec2 focal, size; uniform int wide;
in vec2 corner; in uint which; out vec4 colour; out vec2 at;
vec4 read(int column) { int row = int(which) * 4 + column; return texelFetch(places, ivec2(row % wide, row / wide), 0); }
void main() {
  vec4 place = read(0), shape1 = read(1), shape2 = read(2), tint = read(3);
  vec3 c = (view * vec4(place.xyz, 1.0)).xyz; float z = -c.z;
  if (z < 0.05) { gl_Position = vec4(2.0); return; }
  mat3 spread = mat3(shape1.x, shape1.y, shape1.z, shape1.y, shape1.w, shape2.x, shape1.z, shape2.x, shape2.y);
  vec2 lim = 1.3 * size / (2.0 * focal); vec2 t = clamp(c.xy / z, -lim, lim) * z;
  mat3 j = mat3(focal.x / z, 0.0, 0.0, 0.0, focal.y / z, 0.0, focal.x * t.x / (z * z), focal.y * t.y / (z * z), 0.0);
  mat3 m = j * mat3(view); mat3 s = m * spread * transpose(m);
  float a = s[0][0] + 0.3, b = s[0][1], d = s[1][1] + 0.3;
  float mid = 0.5 * (a + d), off = sqrt(max(0.01, 0.25 * (a - d) * (a - d) + b * b));
  float l1 = mid + off, l2 = max(mid - off, 0.1);
  vec2 axis = abs(b) < 1e-6 ? (a >= d ? vec2(1, 0) : vec2(0, 1)) : normalize(vec2(b, l1 - a));
  vec2 reach = corner.x * 3.0 * sqrt(l1) * axis + corner.y * 3.0 * sqrt(l2) * vec2(-axis.y, axis.x);
  gl_Position = vec4((focal * c.xy / z + reach) / size * 2.0, 0.0, 1.0);
  colour = vec4(tint.rgb, place.w); at = corner * 3.0;
}`;
const FRAGMENT = `#version 300 es
precision highp float; in vec4 colour; in vec2 at; out vec4 pixel;
void main() { float a = min(0.99, colour.a * exp(-0.5 * dot(at, at))); if (a < 1.0 / 255.0) discard; pixel = vec4(colour.rgb * a, a); }`;
const SH0 = 0.28209479177387814;
const MOST = 4_000_000;

/** A figure with a viewer of the artifact `one` (splats.ply); it loads when its button is pressed. */
export function splatViewer(one) {
  const button = h("button", { type: "button", onclick: open }, "Show in 3D");
  const note = h("span", { class: "muted", role: "status" });
  const figure = h("figure", { class: "panel film splats" }, h("figcaption", null, h("b", null, one.name), note, button));
  async function open() {
    button.disabled = true;
    note.textContent = "loading";
    try {
      const answer = await fetch(one.url, { credentials: "same-origin" });
      if (!answer.ok) throw new Error(`the file could not be fetched (${answer.status})`);
      const cloud = readPly(await answer.arrayBuffer());
      const canvas = h("canvas", { width: 960, height: 600, tabindex: "0", "aria-label": `${one.name}, seen from around: drag to turn, wheel to go nearer` });
      figure.prepend(canvas);
      button.remove();
      note.textContent = `${count(cloud.number)} Gaussians · drag to turn, wheel to go nearer`;
      watch(canvas, cloud);
    } catch (error) {
      note.textContent = error.message;
      button.disabled = false;
    }
  }
  return figure;
}

/** Places, covariances and colours out of a binary .ply; throws for another layout. */
export function readPly(buffer) {
  const bytes = new Uint8Array(buffer, 0, Math.min(buffer.byteLength, 65_536));
  const text = new TextDecoder("latin1").decode(bytes);
  const end = text.indexOf("end_header\n");
  if (!text.startsWith("ply\n") || end < 0 || !text.includes("format binary_little_endian 1.0")) throw new Error("this is no binary .ply");
  const head = text.slice(0, end).split("\n");
  const number = Number(head.find((line) => line.startsWith("element vertex "))?.split(" ")[2]);
  const names = head.filter((line) => line.startsWith("property ")).map((line) => line.split(" "));
  if (names.some(([, type]) => type !== "float") || !(number > 0) || number > MOST) throw new Error("this .ply holds no Gaussians that can be shown");
  const columns = new Map(names.map(([, , name], index) => [name, index]));
  const stride = names.length;
  if (buffer.byteLength < end + 11 + number * stride * 4) throw new Error("the .ply is cut short");
  const rows = new Float32Array(buffer.slice(end + 11, end + 11 + number * stride * 4));
  const wanted = ["x", "y", "z", "opacity", "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3", "f_dc_0", "f_dc_1", "f_dc_2"];
  if (!wanted.every((name) => columns.has(name))) throw new Error("this .ply holds points, not Gaussians");
  const at = wanted.map((name) => columns.get(name));
  const data = new Float32Array(number * 16);
  for (let i = 0; i < number; i++) {
    const [x, y, z, opacity, s0, s1, s2, w, qx, qy, qz, r, g, b] = at.map((column) => rows[i * stride + column]);
    const scale = [Math.exp(s0), Math.exp(s1), Math.exp(s2)];
    const turn = [1 - 2 * (qy * qy + qz * qz), 2 * (qx * qy - w * qz), 2 * (qx * qz + w * qy), 2 * (qx * qy + w * qz), 1 - 2 * (qx * qx + qz * qz),
      2 * (qy * qz - w * qx), 2 * (qx * qz - w * qy), 2 * (qy * qz + w * qx), 1 - 2 * (qx * qx + qy * qy)];
    const m = turn.map((value, k) => value * scale[k % 3]);
    const dot = (p, q) => m[p * 3] * m[q * 3] + m[p * 3 + 1] * m[q * 3 + 1] + m[p * 3 + 2] * m[q * 3 + 2];
    data.set([x, y, z, 1 / (1 + Math.exp(-opacity)), dot(0, 0), dot(0, 1), dot(0, 2), dot(1, 1), dot(1, 2), dot(2, 2), 0, 0,
      0.5 + SH0 * r, 0.5 + SH0 * g, 0.5 + SH0 * b, 1], i * 16);
  }
  return { number, data };
}

function watch(canvas, cloud) {
  const gl = canvas.getContext("webgl2", { antialias: false, premultipliedAlpha: true });
  if (!gl) throw new Error("this browser has no WebGL2");
  const program = link(gl);
  gl.useProgram(program);
  const wide = Math.min(gl.getParameter(gl.MAX_TEXTURE_SIZE), 4096);
  const tall = Math.ceil((cloud.number * 4) / wide);
  const padded = new Float32Array(wide * tall * 4);
  padded.set(cloud.data);
  gl.bindTexture(gl.TEXTURE_2D, gl.createTexture());
  gl.texImage2D(gl.TEXTURE_2D, 0, gl.RGBA32F, wide, tall, 0, gl.RGBA, gl.FLOAT, padded);
  for (const name of [gl.TEXTURE_MIN_FILTER, gl.TEXTURE_MAG_FILTER]) gl.texParameteri(gl.TEXTURE_2D, name, gl.NEAREST);
  const corners = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, corners);
  gl.bufferData(gl.ARRAY_BUFFER, new Float32Array([-1, -1, 1, -1, -1, 1, 1, 1]), gl.STATIC_DRAW);
  const corner = gl.getAttribLocation(program, "corner");
  gl.enableVertexAttribArray(corner);
  gl.vertexAttribPointer(corner, 2, gl.FLOAT, false, 0, 0);
  const order = gl.createBuffer();
  gl.bindBuffer(gl.ARRAY_BUFFER, order);
  const which = gl.getAttribLocation(program, "which");
  gl.enableVertexAttribArray(which);
  gl.vertexAttribIPointer(which, 1, gl.UNSIGNED_INT, 0, 0);
  gl.vertexAttribDivisor(which, 1);
  gl.enable(gl.BLEND);
  gl.blendFunc(gl.ONE, gl.ONE_MINUS_SRC_ALPHA);
  const uniform = (name) => gl.getUniformLocation(program, name);
  gl.uniform1i(uniform("wide"), wide);
  const eye = { turn: 0.6, lift: 0.4, away: 3.2 };
  let asked = false;

  function draw() {
    asked = false;
    const { width, height } = canvas;
    const view = viewOf(eye);
    gl.bufferData(gl.ARRAY_BUFFER, backToFront(cloud, view), gl.DYNAMIC_DRAW);
    gl.viewport(0, 0, width, height);
    gl.clearColor(0, 0, 0, 0);
    gl.clear(gl.COLOR_BUFFER_BIT);
    gl.uniformMatrix4fv(uniform("view"), false, view);
    gl.uniform2f(uniform("focal"), height * 0.9, height * 0.9);
    gl.uniform2f(uniform("size"), width, height);
    gl.drawArraysInstanced(gl.TRIANGLE_STRIP, 0, 4, cloud.number);
    canvas.dataset.drawn = String(Number(canvas.dataset.drawn ?? 0) + 1);
  }
  const ask = () => { if (!asked) { asked = true; requestAnimationFrame(draw); } };
  canvas.addEventListener("pointerdown", (event) => canvas.setPointerCapture(event.pointerId));
  canvas.addEventListener("pointermove", (event) => {
    if (!(event.buttons & 1)) return;
    turn(-event.movementX * 0.008, event.movementY * 0.008);
  });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); nearer(Math.exp(event.deltaY * 0.001)); }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [-0.1, 0], ArrowRight: [0.1, 0], ArrowUp: [0, 0.1], ArrowDown: [0, -0.1] }[event.key];
    if (steps) { event.preventDefault(); turn(...steps); }
    if (event.key === "+" || event.key === "-") nearer(event.key === "+" ? 0.9 : 1.1);
  });
  function turn(around, up) {
    eye.turn += around;
    eye.lift = Math.max(-1.5, Math.min(1.5, eye.lift + up));
    ask();
  }
  function nearer(factor) {
    eye.away = Math.max(0.2, Math.min(50, eye.away * factor));
    ask();
  }
  draw();
}

/** World to camera (x right, y up, looking along -z), z up, columns first. */
function viewOf({ turn, lift, away }) {
  const [s, c, u, f] = [Math.sin(turn), Math.cos(turn), Math.sin(lift), Math.cos(lift)];
  return new Float32Array([c, -s * u, s * f, 0, s, c * u, -c * f, 0, 0, f, u, 0, 0, 0, -away, 1]);
}

/** Numbers of the Gaussians from far to near, by counting sort on 16 bits of depth. */
function backToFront({ number, data }, view) {
  const depths = new Float32Array(number);
  let low = Infinity, high = -Infinity;
  for (let i = 0; i < number; i++) {
    const depth = view[2] * data[i * 16] + view[6] * data[i * 16 + 1] + view[10] * data[i * 16 + 2];
    depths[i] = depth;
    if (depth < low) low = depth;
    if (depth > high) high = depth;
  }
  const scale = 65_535 / Math.max(high - low, 1e-9);
  const starts = new Uint32Array(65_537);
  for (let i = 0; i < number; i++) starts[((depths[i] - low) * scale | 0) + 1]++;
  for (let i = 0; i < 65_536; i++) starts[i + 1] += starts[i];
  const order = new Uint32Array(number);
  for (let i = 0; i < number; i++) order[starts[(depths[i] - low) * scale | 0]++] = i;
  return order;
}

function link(gl) {
  const program = gl.createProgram();
  for (const [type, source] of [[gl.VERTEX_SHADER, VERTEX], [gl.FRAGMENT_SHADER, FRAGMENT]]) {
    const shader = gl.createShader(type);
    gl.shaderSource(shader, source);
    gl.compileShader(shader);
    if (!gl.getShaderParameter(shader, gl.COMPILE_STATUS)) throw new Error(`the viewer's shader failed: ${gl.getShaderInfoLog(shader)}`);
    gl.attachShader(program, shader);
  }
  gl.linkProgram(program);
  if (!gl.getProgramParameter(program, gl.LINK_STATUS)) throw new Error(`the viewer failed: ${gl.getProgramInfoLog(program)}`);
  return program;
}
