// The timeline of blocks: a lane is a core, a segment is a block; the strip at its bottom shows its code versions.

import { byId, dot, make, ms } from "/admin/text.js";
import { colour, css, inkOn, onTheme } from "/admin/theme.js";

const KEPT_MS = 10_000;
const LAG_MS = 250; // blocks are known when their query ends: the newest 250 ms would look idle
const AXIS = 20, GUTTER = 34;

export class Timeline {
  constructor(domains, tenants, layers) {
    this.cores = domains.flat();
    this.lane = new Map(this.cores.map((core, i) => [core, i]));
    this.tenants = tenants;
    this.index = new Map(tenants.map((tenant, i) => [tenant.name, i]));
    this.layers = layers;
    this.blocks = [];
    this.now = 0;
    this.end = null; // fixed while paused
    this.span = 250;
    this.hits = [];
    this.canvas = byId("timeline");
    this.laneHeight = Math.max(9, Math.min(44, 352 / this.cores.length));
    this.canvas.style.height = `${this.laneHeight * this.cores.length + AXIS}px`;
    document.querySelectorAll("[data-span]").forEach((button) => button.addEventListener("click", () => this.zoom(+button.dataset.span)));
    byId("pause").addEventListener("click", () => this.pause(this.end == null));
    this.canvas.addEventListener("pointermove", (event) => this.moved(event));
    this.canvas.addEventListener("pointerdown", (event) => this.grabbed(event));
    this.canvas.addEventListener("pointerup", () => { this.grab = null; });
    this.canvas.addEventListener("pointerleave", () => { byId("tip").hidden = true; });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    onTheme(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    this.zoom(this.span);
  }

  add(now, rows, dropped) {
    this.now = now;
    for (const [tenant, query, start, stop, begin, end, cores, conflict, level, versions, coreChanges, queries] of rows)
      this.blocks.push({ tenant, query, start, stop, begin, end, cores, conflict, level, versions, coreChanges, queries });
    const oldest = (this.end ?? now) - KEPT_MS;
    this.blocks = this.blocks.filter((block) => block.end > oldest);
    this.dropped = dropped;
    if (this.end == null) this.draw();
  }

  zoom(span) {
    if (this.end != null) this.end += (span - this.span) / 2;
    this.span = span;
    document.querySelectorAll("[data-span]").forEach((button) => button.setAttribute("aria-pressed", +button.dataset.span === span));
    this.draw();
  }

  pause(on) {
    this.end = on ? this.now - LAG_MS : null;
    byId("pause").setAttribute("aria-pressed", on);
    byId("pause").textContent = on ? "Resume" : "Pause";
    this.draw();
  }

  key(event) {
    const step = { ArrowLeft: -0.25, ArrowRight: 0.25 }[event.key];
    if (event.key === " ") this.pause(this.end == null);
    else if (step) { if (this.end == null) this.pause(true); this.end += step * this.span; this.draw(); }
    else return;
    event.preventDefault();
  }

  grabbed(event) {
    this.grab = { x: event.offsetX, end: this.end ?? this.now - LAG_MS };
    if (event.pointerType === "mouse") this.canvas.setPointerCapture(event.pointerId);
    this.moved(event);
  }

  moved(event) {
    if (this.grab && event.buttons && Math.abs(event.offsetX - this.grab.x) > 3) {
      if (this.end == null) this.pause(true);
      this.end = this.grab.end - ((event.offsetX - this.grab.x) / (this.canvas.clientWidth - GUTTER)) * this.span;
      this.draw();
    }
    const hit = this.hits.findLast(({ x, y, w, h }) => event.offsetX >= x - 1 && event.offsetX <= x + w + 1 && event.offsetY >= y && event.offsetY <= y + h);
    const tip = byId("tip");
    tip.hidden = !hit;
    if (hit) describe(tip, hit.block, this, event);
  }

  draw() {
    const { canvas } = this, scale = devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (!width) return;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const ctx = canvas.getContext("2d");
    ctx.scale(scale, scale);
    ctx.font = "11px system-ui, sans-serif";
    const end = this.end ?? this.now - LAG_MS, start = end - this.span;
    const x = (time) => GUTTER + ((time - start) / this.span) * (width - GUTTER);
    this.lanes(ctx, width, x, start, end);
    ctx.save();
    ctx.beginPath();
    ctx.rect(GUTTER, 0, width - GUTTER, height - AXIS);
    ctx.clip();
    this.hits = [];
    let shown = 0, conflicts = 0;
    for (const block of this.blocks) {
      if (block.end < start || block.begin > end) continue;
      shown += 1;
      conflicts += block.conflict;
      let from = block.begin, cores = block.cores;
      for (const [time, more] of [...block.coreChanges, [block.end, null]]) {
        for (const [first, last] of this.groups(cores)) this.segment(ctx, block, x(from), x(time), first, last);
        from = time;
        cores = more;
      }
    }
    ctx.restore();
    const missing = this.dropped ? `, ${this.dropped} more not shown` : "";
    byId("timeline-hint").textContent = shown ? `${shown} blocks, ${conflicts} in conflict${missing} · drag to look back` : "no blocks in this span";
  }

  lanes(ctx, width, x, start, end) {
    const h = this.laneHeight;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    this.cores.forEach((core, i) => {
      ctx.fillStyle = css("--track");
      ctx.globalAlpha = 0.55;
      ctx.fillRect(GUTTER, i * h + 1, width - GUTTER, h - 2);
      ctx.globalAlpha = 1;
      if (h >= 12 || i % 4 === 0) { ctx.fillStyle = css("--dim"); ctx.fillText(core, GUTTER - 8, (i + 0.5) * h); }
    });
    const step = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000].find((s) => this.span / s <= Math.max(3, (width - GUTTER) / 90)) ?? 1000;
    ctx.textAlign = "center";
    for (let back = 0; back <= this.span; back += step) {
      const at = x(end - back);
      ctx.fillStyle = css("--line");
      ctx.fillRect(Math.round(at), 0, 1, this.cores.length * h);
      if (at < GUTTER + 20 || at > width - 24) continue;
      ctx.fillStyle = css("--dim");
      ctx.fillText(`−${back} ms`, at, this.cores.length * h + AXIS / 2 + 2);
    }
  }

  /** Adjacent lanes together: [[first, last], …]. */
  groups(cores) {
    const lanes = cores.map((core) => this.lane.get(core)).filter((lane) => lane !== undefined).sort((a, b) => a - b);
    const runs = [];
    for (const lane of lanes) {
      if (runs.length && runs.at(-1)[1] === lane - 1) runs.at(-1)[1] = lane;
      else runs.push([lane, lane]);
    }
    return runs;
  }

  segment(ctx, block, from, to, first, last) {
    const hue = colour(this.index.get(block.tenant) ?? 0), ink = inkOn(hue);
    const gap = to - from > 5 ? 0.5 : 0;
    const px = from + gap, w = Math.max(1, to - from - 2 * gap);
    const y = first * this.laneHeight + 1.5, h = (last - first + 1) * this.laneHeight - 3;
    this.hits.push({ x: px, y, w, h, block });
    ctx.fillStyle = hue;
    ctx.beginPath();
    ctx.roundRect(px, y, w, h, Math.min(3, w / 2, h / 2));
    ctx.fill();
    if (block.conflict) {
      ctx.save();
      ctx.clip();
      ctx.strokeStyle = ink;
      ctx.globalAlpha = 0.4;
      ctx.lineWidth = 1.5;
      ctx.beginPath();
      for (let at = px - h - ((px - h) % 7); at < px + w; at += 7) { ctx.moveTo(at, y + h); ctx.lineTo(at + h, y); }
      ctx.stroke();
      ctx.restore();
    }
    const strip = Math.min(6, h / 4), total = block.stop - block.start;
    if (w > 14 && h > 11) {
      let at = px;
      ctx.fillStyle = ink;
      for (const [version, layers] of block.versions) {
        const part = (w * layers) / total;
        ctx.globalAlpha = 0.1 + 0.15 * Math.min(version, 4);
        ctx.fillRect(at, y + h - strip, part, strip);
        at += part;
      }
      ctx.globalAlpha = 1;
    }
    const label = total === 1 ? `${block.start}` : `${block.start}–${block.stop - 1}`;
    if (h > 16 && ctx.measureText(label).width + 8 < w) {
      if (block.conflict) {
        ctx.fillStyle = hue;
        ctx.fillRect(px + w / 2 - ctx.measureText(label).width / 2 - 3, y + (h - strip) / 2 - 7, ctx.measureText(label).width + 6, 14);
      }
      ctx.fillStyle = ink;
      ctx.textAlign = "center";
      ctx.fillText(label, px + w / 2, y + (h - strip) / 2 + 0.5);
    }
  }
}

/** 0, 1, 2, 5 as "0–2, 5". */
function ranges(cores) {
  const runs = [];
  for (const core of cores) {
    if (runs.length && runs.at(-1)[1] === core - 1) runs.at(-1)[1] = core;
    else runs.push([core, core]);
  }
  return runs.map(([first, last]) => (first === last ? `${first}` : `${first}–${last}`)).join(", ");
}

function describe(tip, block, { index, layers }, event) {
  const of = layers[block.tenant] ? ` of ${layers[block.tenant]}` : "";
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
  tip.replaceChildren(
    make("p", "tenant", dot(colour(index.get(block.tenant) ?? 0)), make("span", "", block.tenant), make("span", "model", `query ${block.query}`)),
    ...lines.map((line) => make("p", "", line)),
  );
  const box = tip.getBoundingClientRect();
  tip.style.left = `${Math.max(6, Math.min(event.clientX + 14, innerWidth - box.width - 8))}px`;
  tip.style.top = `${event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18}px`;
}
