// What happened to the daemon: kept by it for more than an hour, through restarts of its engine.

import { byId, clock, link, make, modelPage } from "/admin/text.js";

const SHOWN = 500;

export class Events {
  constructor() { this.events = new Map(); }

  add(events) {
    if (!events.length && this.events.size) return;
    for (const event of events) this.events.set(event.id, event);
    for (const id of [...this.events.keys()].slice(0, -SHOWN)) this.events.delete(id);
    const newest = [...this.events.values()].sort((a, b) => b.last_s - a.last_s || b.id - a.id);
    byId("events").replaceChildren(...(newest.length ? newest.map(entry) : [make("li", "empty", "Nothing has happened.")]));
  }

  get troubles() { return [...this.events.values()].filter(({ severity }) => severity === "error"); }
}

function entry(event) {
  const time = make("time", "", clock(event.last_s));
  time.dateTime = new Date(event.last_s * 1000).toISOString();
  time.title = event.count > 1 ? `${event.count} times since ${clock(event.first_s)}` : new Date(event.last_s * 1000).toLocaleString();
  const kind = make("b", `kind ${event.severity}`, event.kind.replaceAll("_", " "));
  const about = event.subject ? [link(modelPage(event.subject), event.subject), " "] : [];
  const often = event.count > 1 ? make("span", "chip", `×${event.count}`) : "";
  return make("li", "", time, kind, make("span", "what", ...about, event.text), often);
}
