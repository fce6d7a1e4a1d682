// What a block is, in words.

import { dot, make, ms } from "/admin/text.js";
import { colour } from "/admin/theme.js";

/** 0, 1, 2, 5 as "0–2, 5". */
function ranges(cores) {
  const runs = [];
  for (const core of cores) {
    if (runs.length && runs.at(-1)[1] === core - 1) runs.at(-1)[1] = core;
    else runs.push([core, core]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

/** Lines of text about a block; `tenant` is undefined for one that is gone. */
export function describe(block, tenant) {
  const of = tenant?.layers ? ` of ${tenant.layers}` : "";
  const versions = block.versions.map(([version, n]) => (n > 1 ? `v${version}×${n}` : `v${version}`));
  const shown = versions.length > 12 ? [...versions.slice(0, 12), "…"] : versions;
  const lines = [
    `layers ${block.start}–${block.stop - 1}${of} in ${ms(block.end - block.begin)}`,
    `core${block.cores.length > 1 ? "s" : ""} ${ranges(block.cores)}${block.coreChanges.map(([, cores]) => `, then ${ranges(cores)}`).join("")}`,
    `versions ${shown.join(" ")}`,
    `interference level ${block.level.toFixed(2)}`,
  ];
  if (block.queries > 1) lines.push(`a batch of ${block.queries} queries`);
  if (block.conflict) lines.push("conflict: it wanted more cores than were free");
  return lines;
}

export function showTip(tip, block, tenant, event) {
  tip.replaceChildren(
    make("p", "tenant", dot(colour(tenant)), make("span", "", block.tenant), make("span", "model", `query ${block.query}`)),
    ...describe(block, tenant).map((line) => make("p", "", line)),
  );
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}
