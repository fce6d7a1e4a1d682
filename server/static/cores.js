// The map of cores: each is filled by the tenants that ran on it in the last second. Cores that share an L3 are grouped.

import { byId, make } from "/admin/text.js";
import { colour } from "/admin/theme.js";

export function showCores(domains, tenants, busy) {
  const map = byId("core-map");
  const all = domains.flat().length;
  map.className = all > 32 ? "many" : all > 8 ? "" : "few";
  map.replaceChildren(...domains.map((domain) => make("div", "domain", ...domain.map((core) => tile(core, tenants, busy[core] ?? {})))));
}

function tile(core, tenants, shares) {
  const total = Object.values(shares).reduce((sum, share) => sum + share, 0);
  const element = make("div", "core", make("b", "", String(core)), make("em", "", `${Math.round(100 * total)}%`));
  tenants.forEach((tenant) => {
    const share = shares[tenant.name];
    if (!share) return;
    const part = make("i", "");
    part.style.flexBasis = `${100 * share}%`;
    part.style.background = colour(tenant);
    element.append(part);
  });
  const listed = Object.entries(shares).map(([name, share]) => `${name} ${(100 * share).toFixed(1)} %`);
  element.title = `core ${core}: ${listed.join(", ") || "idle"}`;
  return element;
}
