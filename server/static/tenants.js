// The table: rates, quantiles against the target, burn, queue, cores, code versions.

import { byId, bytes, count, dot, link, make, modelPage, ms, percent, times } from "/admin/text.js";
import { colour, inkOn } from "/admin/theme.js";

const END = 1.25; // of the track, in targets; a longer bar is cut, and the cut is shown

export function showTenants(order, tenants, rows) {
  const shown = order.map((at) => row(tenants[at], rows[at], colour(tenants[at])));
  byId("tenants").replaceChildren(...(shown.length ? shown : [none(tenants.length)]));
}

function none(known) {
  const element = make("td", "empty", known ? "No tenant's name or model contains that." : "No model is served yet.");
  element.colSpan = 15;
  return make("tr", "", element);
}

function row(tenant, now, hue) {
  const breached = now.qos_rate != null && now.qos_rate < tenant.percentile;
  const late = (value) => (value != null && value > tenant.target_ms ? "n breach" : "n");
  const model = tenant.model === tenant.name ? "" : tenant.model;
  const name = make("div", "tenant", dot(hue), link(modelPage(tenant.name), tenant.name), make("span", "model", model));
  name.title = `${tenant.name}${model && ` (${model})`}, priority ${tenant.priority ?? "–"}`;
  // A quantile up to the tenant's percentile must be within the target; a p99 above it does not miss a p95 target.
  const judged = (share, value) => (share <= tenant.percentile ? late(value) : "n");
  const gone = now.refused_qps + now.failed_qps;
  const burning = (span) => (now.burn[span] > 1 ? "n breach" : "n");
  return make("tr", "",
    cell("name", "Tenant", name),
    cell("n", "Offered", count(now.offered_qps)),
    cell("n", "Served", count(now.qps)),
    cell(now.failed_qps ? "n breach" : "n", "Refused", gone ? count(gone) : "0"),
    cell(breached ? "n breach" : "n", "QoS", percent(now.qos_rate)),
    cell(burning("5m"), "Burn 5 min", times(now.burn["5m"])),
    cell(burning("1h"), "Burn 1 h", times(now.burn["1h"])),
    cell(judged(0.5, now.p50_ms), "p50", ms(now.p50_ms)),
    cell(judged(0.95, now.p95_ms), "p95", ms(now.p95_ms)),
    cell(judged(0.99, now.p99_ms), "p99", ms(now.p99_ms)),
    cell("range-cell", "Against target", range(tenant, now, hue)),
    cell("n from-engine", "Queue", now.waiting ?? "–"),
    cell("n from-engine", "Cores", now.busy.toFixed(2)),
    cell("n from-engine", "Memory", now.memory == null ? "–" : bytes(now.memory)),
    cell("mix-cell from-engine", "Code versions", mix(now.versions, hue)),
  );
}

function cell(className, label, ...content) {
  const element = make("td", className, ...content.map((part) => part instanceof Node ? part : String(part)));
  element.dataset.label = label;
  return element;
}

/** A bar from p50 to p99; the target is a mark at the same position in every row. */
function range(tenant, now, hue) {
  const end = tenant.target_ms * END;
  const track = make("div", "range", make("i", "rail"));
  if (now.p50_ms != null) {
    const from = Math.min(now.p50_ms, end * 0.97), to = Math.min(now.p99_ms, end);
    const span = make("i", now.p99_ms > end ? "span cut" : "span");
    span.style.left = `${(100 * from) / end}%`;
    span.style.width = `${(100 * (to - from)) / end}%`;
    span.style.background = hue;
    track.append(span);
  }
  const mark = make("i", "mark");
  mark.style.left = `${100 / END}%`;
  track.append(mark);
  const element = make("div", "against", track, make("span", "unit", ms(tenant.target_ms).replace(/\.0+ /, " ")));
  element.title = `p50 ${ms(now.p50_ms)}, p99 ${ms(now.p99_ms)}; target ${ms(tenant.target_ms)} for ${+(tenant.percentile * 100).toFixed(2)} %`;
  return element;
}

/** Shares of the layers run in each code version; the page about the model says what these are. */
export function mix(versions, hue) {
  const total = Object.values(versions).reduce((sum, layers) => sum + layers, 0);
  const element = make("div", "mix");
  const shares = [];
  for (const [version, layers] of Object.entries(versions)) {
    const part = make("span", "", layers / total > 0.12 ? `v${version}` : "");
    part.style.flexGrow = layers / total;
    part.style.flexBasis = 0;
    part.style.background = hue;
    part.style.color = inkOn(hue);
    part.style.backgroundImage = `linear-gradient(rgb(var(--panel-rgb) / ${0.14 * Math.min(version, 4)}) 0 100%)`;
    part.title = `version ${version}: ${percent(layers / total)} of the layers run`;
    shares.push(part.title);
    element.append(part);
  }
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", shares.join(", ") || "none run yet");
  return element;
}
