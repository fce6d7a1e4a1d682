// Receives events while the page is visible; a hidden tab closes its stream, and the daemon then does no work for it.

import { Charts } from "/admin/charts.js";
import { showCores } from "/admin/cores.js";
import { showStageKey, showStages } from "/admin/stages.js";
import { showTenants } from "/admin/tenants.js";
import { byId, count, percent } from "/admin/text.js";
import { onTheme, toggle } from "/admin/theme.js";
import { Timeline } from "/admin/timeline.js";

let hello = null, frame = null, charts = null, timeline = null, stream = null;

byId("theme").addEventListener("click", toggle);
onTheme(() => frame && show());
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
open();

function open() {
  if (stream || document.hidden) return;
  stream = new EventSource("/admin/events");
  stream.addEventListener("hello", (event) => start(JSON.parse(event.data)));
  stream.addEventListener("frame", (event) => {
    frame = JSON.parse(event.data);
    charts.add(frame.tenants);
    timeline.add(frame.now_ms, frame.blocks, frame.dropped);
    show();
  });
  stream.addEventListener("error", () => showConnection("lost", "no connection"));
}

function close() {
  stream?.close();
  stream = null;
}

/** A stream's first event. The page is reloaded if the daemon was restarted with another configuration. */
function start(first) {
  const same = hello && JSON.stringify(identity(hello)) === JSON.stringify(identity(first));
  if (hello && !same) return location.reload();
  hello = first;
  byId("about").textContent = `${hello.about.version} · policy ${hello.about.policy}`;
  showStageKey(hello.stages);
  charts ??= new Charts(hello.tenants);
  timeline ??= new Timeline(hello.domains, hello.tenants, hello.about.layers ?? {});
}

const identity = (first) => [first.about, first.domains, first.tenants.map(({ name, target_ms }) => [name, target_ms])];

function showConnection(state, text) {
  byId("connection").dataset.state = state;
  byId("connection").textContent = text;
}

function show() {
  const { engine, tenants } = frame;
  showConnection(engine ? "live" : "lost", !engine ? "the engine is restarting" : engine.draining ? "draining" : "live");
  showTiles(engine, tenants);
  showTenants(hello.tenants, tenants, frame.busy);
  showStages(hello.stages, hello.tenants, tenants);
  showCores(hello.domains, hello.tenants, frame.busy);
}

function showTiles(engine, tenants) {
  const sum = (value) => tenants.reduce((total, tenant) => total + value(tenant), 0);
  put("qps", count(sum((t) => t.second.qps)), "/s");
  note("qps", `${count(sum((t) => t.offered_qps))} /s offered, 10 s`);
  // The lowest relative to its own percentile.
  const rated = tenants.map((tenant, i) => ({ rate: tenant.qos_rate, ...hello.tenants[i] })).filter(({ rate }) => rate != null);
  const lowest = rated.sort((a, b) => a.rate - a.percentile - (b.rate - b.percentile))[0];
  put("lowest", percent(lowest?.rate).replace(" %", ""), lowest ? "%" : "", lowest && lowest.rate < lowest.percentile);
  note("lowest", lowest ? `${lowest.name}, of ${+(lowest.percentile * 100).toFixed(2)} %` : "no queries in 10 s");
  const all = hello.domains.flat().length;
  const busy = Object.values(frame.busy).flatMap((shares) => Object.values(shares)).reduce((a, b) => a + b, 0);
  put("cores", busy.toFixed(1), `of ${all}`);
  note("cores", `${Math.round((100 * busy) / all)} % busy, last second`);
  put("level", engine ? engine.level.toFixed(2) : "–", "×");
  note("level", engine ? `${{ observed: "observed slowdown", counters: "L3 counters", predicted: "predicted" }[engine.level_source] ?? engine.level_source}` : "");
  put("conflicts", count(engine?.conflicts_per_s), "/s");
  note("conflicts", engine?.blocks_per_s == null ? "" : `of ${count(engine.blocks_per_s)} blocks /s`);
  const failed = sum((t) => t.failed_qps);
  put("refused", count(sum((t) => t.refused_qps)), "/s");
  note("refused", failed ? `${count(failed)} failed /s` : "none failed", failed > 0);
}

function put(id, value, unit, breach = false) {
  const small = document.createElement("small");
  small.textContent = ` ${unit}`;
  byId(id).replaceChildren(value, small);
  byId(id).classList.toggle("breach", Boolean(breach));
}

function note(id, text, breach = false) {
  byId(`${id}-note`).textContent = text;
  byId(`${id}-note`).classList.toggle("breach", breach);
}
