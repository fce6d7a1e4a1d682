// Formats numbers, and creates elements.

export const count = (value) => value == null ? "–" : value >= 1000 ? Math.round(value).toLocaleString("en") : value >= 100 ? value.toFixed(0) : value.toFixed(1);
export const ms = (value) => value == null ? "–" : value >= 1000 ? `${(value / 1000).toFixed(2)} s` : value >= 100 ? `${value.toFixed(0)} ms` : value >= 10 ? `${value.toFixed(1)} ms` : value >= 1 ? `${value.toFixed(2)} ms` : `${(value * 1000).toFixed(0)} µs`;
/** Never rounded up to 100 %: that would hide a miss. */
export const percent = (share) => share == null ? "–" : share === 1 ? "100 %" : `${(Math.floor(share * 1000) / 10).toFixed(1)} %`;

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

export const byId = (id) => document.getElementById(id);
