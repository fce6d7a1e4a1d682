// Light and dark. The daemon gives each tenant a colour for either, which no other tenant has; none is red.

const wanted = matchMedia("(prefers-color-scheme: dark)");
const root = document.documentElement;
const listeners = [];

export const theme = () => root.dataset.theme;
export const onTheme = (listener) => listeners.push(listener);
export const colour = (tenant) => (tenant ? tenant.colour[theme() === "dark" ? 1 : 0] : css("--faint"));
export const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();

/** Black or white, whichever is easier to read on a "#rrggbb". */
export function inkOn(hex) {
  const [r, g, b] = [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16) / 255);
  return 0.299 * r + 0.587 * g + 0.114 * b > 0.5 ? "#10151b" : "#ffffff";
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
