// The page about one model, whose name is in the address. Use and drift are fetched again every five seconds.

import { mix } from "/admin/tenants.js";
import { byId, bytes, clock, dot, link, make, ms, percent, times } from "/admin/text.js";
import { colour, onTheme, toggle } from "/admin/theme.js";

const name = decodeURIComponent(location.pathname.split("/").pop());
const source = `/admin/api/models/${encodeURIComponent(name)}${location.search}`;
const DRIFTED = 1.5; // a profile that is this far off misleads the scheduler

let model = null, lastAt = 0;

byId("theme").addEventListener("click", toggle);
byId("json-link").href = source;
document.title = `veltair: ${name}`;
onTheme(() => model && show());
setInterval(() => document.hidden || load(), 5000);
load();

async function load() {
  try {
    const answer = await fetch(source);
    if (answer.ok) [model, lastAt] = [await answer.json(), Date.now()];
    say(answer.ok ? "live" : "lost", answer.ok ? "live" : (await answer.json()).error);
  } catch {
    say("lost", lastAt ? `no connection, last at ${clock(lastAt / 1000)}` : "no connection");
  }
  if (model) show();
}

function say(state, text) {
  document.body.dataset.state = state === "live" ? "live" : "stale";
  byId("connection").dataset.state = state;
  byId("connection").textContent = text;
}

function show() {
  const { memory, use } = model;
  byId("name").replaceChildren(dot(colour(model)), model.name);
  byId("about").textContent = `${model.model === model.name ? "" : `${model.model} · `}version ${model.version} · ${model.precision}`;
  tile("target", ms(model.target_ms), `for ${+(100 * model.percentile).toFixed(2)} % of the queries`);
  const versions = model.layers.reduce((sum, layer) => sum + layer.versions.length, 0);
  tile("layers", String(model.layers.length), `${versions} code versions`);
  const drifted = use?.drift != null && (use.drift > DRIFTED || use.drift < 1 / DRIFTED);
  tile("drift", times(use?.drift), use?.drift == null ? "no block has run" : "measured over predicted", drifted);
  tile("weights", bytes(memory.weights), "one copy for all workers");
  tile("activations", bytes(memory.activations), memory.workers == null ? "in each worker" : `in each of ${memory.workers} workers`);
  tile("tensors", bytes(memory.query), `inputs and outputs, batch ${model.max_batch}`);
  showFacts();
  byId("ports").replaceChildren(...model.inputs.map((port) => portRow("input", port)), ...model.outputs.map((port) => portRow("output", port)));
  showUse();
  byId("layer-rows").replaceChildren(...model.layers.map(layerRow));
}

function tile(id, value, about, breach = false) {
  byId(id).textContent = value;
  byId(id).classList.toggle("breach", breach);
  byId(`${id}-note`).textContent = about;
}

function showFacts() {
  const { share, memory, use, environment } = model;
  const others = model.versions.filter((version) => version !== model.version).map((version) => link(`?version=${version}`, `version ${version}`));
  const facts = [
    ["Versions served", [model.version, ...others.flatMap((other) => [", ", other])]],
    ["Priority", [`${model.priority}; queries are ${model.batching ? "" : "not "}batched`]],
    ["Share", [`weight ${share.weight}${share.slots < 65536 ? `, ${share.slots} slots` : ""}${share.rate ? `, ${share.rate} queries a second` : ""}`]],
    ["Batches that were timed", [model.batches.join(", ")]],
    ["Interference levels", [model.levels.map((level) => times(level)).join(", ")]],
    ["In memory", [inMemory(memory)]],
    ["Profile", [use?.drift == null ? "nothing measured yet" : `${ms(use.predicted_ms)} predicted, ${ms(use.measured_ms)} measured, of blocks that ran as planned`]],
    ["Built on", [environment.cpu || Object.values(environment).join(", ") || "unknown"]],
    ["Digest", [make("code", "", model.digest.slice(0, 16))]],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([term, text]) => [make("dt", "", term), make("dd", "", ...text)]));
}

function inMemory({ held, resident }) {
  if (!resident) return "not now: it was idle, and a query brings it back";
  if (!held) return "the engine does not answer";
  return `${bytes(held.total)}: weights ${bytes(held.weights)}, code ${bytes(held.code)}, in workers ${bytes(held.workers)}, slots ${bytes(held.slots)}`;
}

function portRow(kind, { name: port, datatype, shape, bounds }) {
  const values = bounds ? `${bounds[0] ?? "…"} to ${bounds[1] ?? "…"}` : "any";
  return make("tr", "", ...[kind, port, datatype, shape.join(" × "), kind === "input" ? values : ""].map((text) => make("td", "", text)));
}

function showUse() {
  const used = model.use?.versions ?? {};
  const total = Object.values(used).reduce((sum, layers) => sum + layers, 0);
  if (!total) return byId("use").replaceChildren(make("p", "empty", model.use ? "No query has been answered yet." : "The engine does not answer."));
  const lines = Object.entries(used).map(([version, layers]) => {
    const of = model.layers.flatMap((layer) => layer.versions[version] ?? []);
    const span = (key, text) => {
      const values = of.map((each) => each[key]).sort((a, b) => a - b);
      return values[0] === values.at(-1) ? text(values[0]) : `${text(values[0])} to ${text(values.at(-1))}`;
    };
    const meaning = of.length ? `${span("parallelism", (n) => n.toLocaleString("en"))} parallel tasks, working sets of ${span("block_bytes", bytes)}` : "";
    return make("li", "", make("b", "", `v${version}: ${percent(layers / total)}`), ` ${meaning}`);
  });
  byId("use").replaceChildren(mix(used, colour(model)), make("ul", "hint", ...lines));
}

function layerRow(layer, index) {
  const versions = layer.versions.map((version, at) => {
    const element = make("span", "version",
      make("b", "", `v${at} ${version.parallelism.toLocaleString("en")} × ${bytes(version.block_bytes)}`),
      make("span", "unit", version.alone_us.map((us) => ms(us / 1000)).slice(0, 4).join(" · ")));
    element.title = [version.origin, ...Object.entries(version.point).map(([key, value]) => `${key} ${value}`)].filter(Boolean).join(", ");
    return element;
  });
  const cell = (className, ...content) => make("td", className, ...content);
  return make("tr", "",
    cell("n unit", String(index)),
    cell("", layer.name, make("span", "unit", layer.op)),
    cell("", layer.shape.join(" × ")),
    cell("n", (layer.flops / 1e6).toLocaleString("en", { maximumSignificantDigits: 3 })),
    cell("n", bytes(layer.bytes)),
    cell("", ...versions));
}
