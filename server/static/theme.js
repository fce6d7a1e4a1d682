// Light and dark, and one colour for each tenant. Colour-blind readers can tell the colours apart, and none is red.

const PALETTE = {
  light: ["#0b6fb8", "#d08a00", "#00876c", "#7b5cc4", "#4aa3d8", "#b3579b", "#7d7a1a", "#5d6b7a"],
  dark: ["#4da3e8", "#f0b13a", "#2fbf9b", "#a78bf5", "#8fd3f7", "#de8cc6", "#c2bd4e", "#9aa9b8"],
};
const wanted = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const listeners = [];

export const theme = () => root.dataset.theme;
export const onTheme = (listener) => listeners.push(listener);
export const colour = (index) => PALETTE[theme()][index % PALETTE.light.length];
export const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/** Black or white, whichever is easier to read on a "#rrggbb". */
export function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.58 ? "#10151b" : "#ffffff";
}

function stored() {
  try { return localStorage.getItem("theme"); } catch { return null; }
}

function apply() {
  root.dataset.theme = stored() ?? (wanted.matches ? "dark" : "light");
  listeners.forEach((listener) => listener());
}

export function toggle() {
  const next = theme() === "dark" ? "light" : "dark";
  try { localStorage.setItem("theme", next); } catch { /* without storage it lasts until the page is closed */ }
  root.dataset.theme = next;
  listeners.forEach((listener) => listener());
}

wanted.addEventListener("change", apply);
apply();
