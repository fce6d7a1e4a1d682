// Requests that were refused or failed in the last 10 s, by tenant and reason.

import { byId, count, dot, make } from "/admin/text.js";
import { colour } from "/admin/theme.js";

export function showRefusals(order, tenants, rows, early) {
  const found = order.flatMap((at) => {
    const { refused, failed, offered_qps: offered } = rows[at];
    return Object.keys({ ...refused, ...failed }).length ? [row(make("div", "tenant", dot(colour(tenants[at])), make("span", "", tenants[at].name)), refused, failed, offered)] : [];
  });
  if (Object.keys(early).length) found.push(row(make("div", "tenant none", "before the tenant was known"), early, {}, null));
  byId("refusals").replaceChildren(...(found.length ? found : [make("p", "empty", "None.")]));
}

function row(name, refused, failed, offered) {
  const reasons = Object.entries(refused).sort(([, a], [, b]) => b - a).map(([reason, rate]) => chip("chip", reason, rate));
  const failures = Object.entries(failed).map(([reason, rate]) => chip("chip breach", reason, rate));
  const all = [...Object.values(refused), ...Object.values(failed)].reduce((sum, rate) => sum + rate, 0);
  const share = offered ? make("span", "unit", `${Math.min(100, Math.round((100 * all) / offered))} % of offered`) : "";
  return make("div", "reason-row", name, make("div", "chips", ...failures, ...reasons), share);
}

const chip = (kind, reason, rate) => make("span", kind, reason.replaceAll("_", " "), make("b", "", ` ${count(rate)}/s`));
