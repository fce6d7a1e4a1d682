// Where the time of answered queries goes: a bar for each tenant, cut into the stages of a query's way.

import { byId, dot, make, ms, percent } from "/admin/text.js";
import { colour } from "/admin/theme.js";

/** The names, in the order of the bars. */
export function showStageKey(stages) {
  byId("stage-key").replaceChildren(...stages.map(({ name, begins, ends }) => {
    const swatch = make("span", `swatch stage-${name}`);
    const entry = make("li", "key", swatch, name);
    entry.title = described(begins, ends);
    return entry;
  }));
}

export function showStages(order, stages, tenants, rows) {
  const shown = order.map((at) => row(stages, tenants[at], rows[at].stages_ms, colour(tenants[at])));
  byId("stages").replaceChildren(...(shown.length ? shown : [make("p", "empty", "None.")]));
}

const described = (begins, ends) => `from when ${begins} until ${ends}`;

function row(stages, tenant, means, hue) {
  const name = make("div", "tenant", dot(hue), make("span", "", tenant.name));
  name.title = tenant.name;
  const total = means?.reduce((sum, value) => sum + value, 0);
  const shown = stages.map((stage, at) => [stage, means?.[at]]).filter(([, taken]) => taken > 0);
  const bar = make("div", "stages", ...shown.map(([stage, taken]) => part(stage, taken, total)));
  bar.setAttribute("role", "img");
  const parts = stages.map((stage, at) => `${stage.name} ${ms(means?.[at])}`).join(", ");
  bar.setAttribute("aria-label", means ? `${tenant.name}: ${parts}` : `${tenant.name}: no queries in 10 s`);
  return make("div", "stage-row", name, bar, make("div", "n", ms(total)));
}

function part({ name, begins, ends }, taken, total) {
  const share = taken / total;
  const element = make("span", `stage-${name}`, make("b", "", `${name} ${ms(taken)}`));
  element.style.flexGrow = share;
  element.title = `${name} ${ms(taken)}, ${percent(share)}: ${described(begins, ends)}`;
  return element;
}
