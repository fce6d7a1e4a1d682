// Listens while the page is looked at; a hidden tab closes its stream, and the daemon then does no work for it.

import { Charts } from "/admin/charts.js";
import { showCores } from "/admin/cores.js";
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
  stream.addEventListener("hello", (event) => greet(JSON.parse(event.data)));
  stream.addEventListener("frame", (event) => {
    frame = JSON.parse(event.data);
    charts.add(frame.tenants);
    timeline.add(frame.now_ms, frame.blocks, frame.dropped);
    show();
  });
  stream.addEventListener("error", () => link("lost", "no connection"));
}

function close() {
  stream?.close();
  stream = null;
}

/** A stream's first event. A page that comes back, or whose daemon was started anew, begins afresh. */
function greet(told) {
  const same = hello && JSON.stringify(shape(hello)) === JSON.stringify(shape(told));
  if (hello && !same) return location.reload();
  hello = told;
  byId("about").textContent = `${hello.about.version} · policy ${hello.about.policy}`;
  charts ??= new Charts(hello.tenants);
  timeline ??= new Timeline(hello.domains, hello.tenants, hello.about.layers ?? {});
}

const shape = (told) => [told.about, told.domains, told.tenants.map(({ name, target_ms }) => [name, target_ms])];

function link(state, text) {
  byId("link").dataset.state = state;
  byId("link").textContent = text;
}

function show() {
  const { engine, tenants } = frame;
  link(engine ? "live" : "lost", !engine ? "the engine is starting anew" : engine.draining ? "draining" : "live");
  strip(engine, tenants);
  showTenants(hello.tenants, tenants, frame.busy);
  showCores(hello.domains, hello.tenants, frame.busy);
}

function strip(engine, tenants) {
  const sum = (of) => tenants.reduce((total, tenant) => total + of(tenant), 0);
  put("qps", count(sum((t) => t.second.qps)), "/s");
  note("qps", `${count(sum((t) => t.offered_qps))} /s offered, 10 s`);
  // The lowest by its distance to what its own percentile asks for.
  const judged = tenants.map((tenant, i) => ({ rate: tenant.qos_rate, ...hello.tenants[i] })).filter(({ rate }) => rate != null);
  const worst = judged.sort((a, b) => a.rate - a.percentile - (b.rate - b.percentile))[0];
  put("worst", percent(worst?.rate).replace(" %", ""), worst ? "%" : "", worst && worst.rate < worst.percentile);
  note("worst", worst ? `${worst.name}, of ${+(worst.percentile * 100).toFixed(2)} %` : "no queries in 10 s");
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
