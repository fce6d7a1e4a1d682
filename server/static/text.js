// Formats numbers, and creates elements.

export const count = (value) => value == null ? "–" : value >= 1000 ? Math.round(value).toLocaleString("en") : value >= 100 ? value.toFixed(0) : value.toFixed(1);
export const ms = (value) => value == null ? "–" : value >= 1000 ? `${(value / 1000).toFixed(2)} s` : value >= 100 ? `${value.toFixed(0)} ms` : value >= 10 ? `${value.toFixed(1)} ms` : value >= 1 ? `${value.toFixed(2)} ms` : `${(value * 1000).toFixed(0)} µs`;
/** Never rounded up to 100 %: that would hide a miss. */
export const percent = (share) => share == null ? "–" : share === 1 ? "100 %" : `${(Math.floor(share * 1000) / 10).toFixed(1)} %`;
/** A factor such as a burn rate or a slowdown. */
export const times = (value) => value == null ? "–" : value >= 100 ? `${Math.round(value)}×` : value >= 10 ? `${value.toFixed(1)}×` : `${value.toFixed(2)}×`;
export const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);

export function bytes(value) {
  if (value == null) return "–";
  const units = ["B", "KB", "MB", "GB", "TB"];
  let at = 0;
  for (; value >= 1024 && at < units.length - 1; at++) value /= 1024;
  return `${value >= 100 || at === 0 ? Math.round(value) : value.toFixed(1)} ${units[at]}`;
}

export function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

export function dot(colour) {
  const element = make("span", "dot");
  element.style.background = colour;
  return element;
}

export function link(href, ...children) {
  const element = make("a", "", ...children);
  element.href = href;
  return element;
}

export const modelPage = (name) => `/admin/models/${encodeURIComponent(name)}`;
export const byId = (id) => document.getElementById(id);
