// Numbers and times as people read them.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function size(bytes) {
  if (bytes === null || bytes === undefined) return "–";
  let value = bytes;
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toFixed(1)} ${UNITS[unit]}`;
}

export function duration(seconds) {
  if (seconds === null || seconds === undefined || Number.isNaN(seconds)) return "–";
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole} s`;
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60];
  const two = (n) => String(n).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

/** Seconds left as a rough figure that does not twitch: "40 s", "3 min", "2 h 10 min". */
export function left(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 10) return "a moment";
  if (seconds < 90) return `${Math.ceil(seconds / 5) * 5} s`;
  const minutes = Math.ceil(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 60 * 48) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

export function ago(text, now = Date.now()) {
  if (!text) return "–";
  const seconds = (now - Date.parse(text)) / 1000;
  if (seconds < 5) return "just now";
  if (seconds < 60) return `${Math.floor(seconds)} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  return new Date(text).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" });
}

export const moment = (text) => (text ? new Date(text).toLocaleString() : "–");
export const count = (number) => number.toLocaleString("en").replaceAll(",", " ");
export const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;
export const percent = (fraction) => `${fraction >= 1 ? 100 : Math.min(99, Math.floor(fraction * 100))} %`;

/** A share in tenths of a percent, for what takes long: never 100 before the end. */
export const tenths = (fraction) => `${fraction >= 1 ? "100" : (Math.floor(fraction * 1000 + 1e-6) / 10).toFixed(1)} %`;

/** A frame range in words: one frame by its number is `frame 15`. */
export const framesText = (range) => /^-?\d+$/.test(range) ? `frame ${range}` : `frames ${range}`;
