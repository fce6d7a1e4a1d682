// Receives events while the page is visible; a hidden tab closes its stream, and the daemon then does no work for it.

import { Charts } from "/admin/charts.js";
import { showCores } from "/admin/cores.js";
import { Events } from "/admin/events.js";
import { showRefusals } from "/admin/refusals.js";
import { showStageKey, showStages } from "/admin/stages.js";
import { showTenants } from "/admin/tenants.js";
import { byId, clock, count, percent } from "/admin/text.js";
import { onTheme, toggle } from "/admin/theme.js";
import { Timeline } from "/admin/timeline.js";
import { View } from "/admin/view.js";

const SILENT_MS = 3500; // a frame comes every second
const SOURCES = { observed: "observed slowdown", counters: "L3 counters", predicted: "predicted" };

let hello = null, frame = null, charts = null, timeline = null, stream = null;
let engineFrame = null; // the last one in which the engine answered
let frameAt = 0, engineAt = 0; // when they came
const events = new Events(), view = new View(() => frame && show());

byId("theme").addEventListener("click", toggle);
onTheme(() => frame && show());
document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
setInterval(showConnection, 500);
open();

function open() {
  if (stream || document.hidden) return;
  stream = new EventSource("/admin/events");
  stream.addEventListener("hello", (event) => start(JSON.parse(event.data)));
  stream.addEventListener("frame", (event) => {
    frame = JSON.parse(event.data);
    frameAt = Date.now();
    if (frame.engine) [engineFrame, engineAt] = [frame, frameAt];
    events.add(frame.events);
    charts.add(frame.tenants);
    if (frame.engine) timeline.add(frame.now_ms, frame.blocks, frame.dropped); // else it stands still
    show();
  });
  stream.addEventListener("error", showConnection);
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
  byId("api-link").hidden = hello.about.apart;
  showStageKey(hello.stages);
  events.add(hello.events);
  charts ??= new Charts(hello.tenants, events);
  charts.begin(hello);
  timeline ??= new Timeline(hello.domains, hello.tenants);
}

const identity = ({ about, domains, tenants }) => [about, domains, tenants.map(({ name, target_ms, layers }) => [name, target_ms, layers])];

/** What is not of now is grey, and says of when it is. */
function showConnection() {
  const silent = Date.now() - frameAt > SILENT_MS && !document.hidden;
  const engine = frame?.engine;
  const say = (state, text) => {
    document.body.dataset.state = state;
    byId("connection").dataset.state = state === "live" ? "live" : "lost";
    if (byId("connection").textContent !== text) byId("connection").textContent = text;
  };
  if (!frame) say("live", "connecting");
  else if (silent) say("stale", `no connection, last at ${clock(frameAt / 1000)}`);
  else if (!engine) say("no-engine", engineAt ? `the engine does not answer, last at ${clock(engineAt / 1000)}` : "the engine does not answer");
  else say("live", engine.draining ? "draining" : "live");
}

function show() {
  const { tenants } = frame, latest = engineFrame ?? frame;
  tenants.forEach((row, i) => {
    const known = latest.tenants[i] ?? row;
    if (!frame.engine) Object.assign(row, { waiting: known.waiting, versions: known.versions });
    row.busy = Object.values(latest.busy).reduce((sum, shares) => sum + (shares[hello.tenants[i].name] ?? 0), 0);
  });
  const order = view.order(hello.tenants, tenants);
  showConnection();
  showTiles(latest, tenants);
  showTenants(order, hello.tenants, tenants);
  showStages(order, hello.stages, hello.tenants, tenants);
  showRefusals(order, hello.tenants, tenants, frame.early);
  showCores(hello.domains, hello.tenants, latest.busy);
  charts.show(order);
}

function showTiles({ engine, busy: shares }, tenants) {
  const sum = (value) => tenants.reduce((total, tenant) => total + value(tenant), 0);
  put("qps", count(sum((t) => t.second.qps)), "/s");
  note("qps", `${count(sum((t) => t.offered_qps))} /s offered, 10 s`);
  // The lowest relative to its own percentile.
  const rated = tenants.map((tenant, i) => ({ rate: tenant.qos_rate, ...hello.tenants[i] })).filter(({ rate }) => rate != null);
  const lowest = rated.sort((a, b) => a.rate - a.percentile - (b.rate - b.percentile))[0];
  put("lowest", percent(lowest?.rate).replace(" %", ""), lowest ? "%" : "", lowest && lowest.rate < lowest.percentile);
  note("lowest", lowest ? `${lowest.name}, of ${+(lowest.percentile * 100).toFixed(2)} %` : "no queries in 10 s");
  const all = hello.domains.flat().length;
  const busy = Object.values(shares).flatMap((of) => Object.values(of)).reduce((a, b) => a + b, 0);
  put("cores", busy.toFixed(1), `of ${all}`);
  note("cores", `${Math.round((100 * busy) / all)} % busy, last second`);
  const idle = engine?.level == null;
  put("level", idle ? "–" : engine.level.toFixed(2), idle ? "" : "×");
  note("level", !engine ? "" : idle ? "no block has ended lately" : SOURCES[engine.level_source] ?? engine.level_source);
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
