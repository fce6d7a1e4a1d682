// The timeline of blocks: a lane is a core, a segment is a block; the strip at its bottom shows its code versions.
// Arrow keys go from block to block; what the focused one is stands below as text, and is read out.

import { describe, showTip } from "/admin/blocks.js";
import { byId } from "/admin/text.js";
import { colour, css, inkOn, onTheme } from "/admin/theme.js";

const KEPT_MS = 10_000;
const LAG_MS = 250; // blocks are known when their query ends: the newest 250 ms would look idle
const AXIS = 20, GUTTER = 34;

export class Timeline {
  constructor(domains, tenants) {
    this.cores = domains.flat();
    this.lane = new Map(this.cores.map((core, i) => [core, i]));
    this.tenants = tenants;
    this.tenants = new Map(tenants.map((tenant) => [tenant.name, tenant]));
    this.blocks = [];
    this.now = 0;
    this.end = null; // fixed while paused
    this.span = 250;
    this.hits = [];
    this.focused = null; // a block, and the lane that was gone to
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
    this.canvas.addEventListener("blur", () => this.focus(null));
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
    const spans = [...document.querySelectorAll("[data-span]")].map((button) => +button.dataset.span);
    const zoomed = { "+": -1, "=": -1, "-": 1 }[event.key], paged = { PageUp: -0.5, PageDown: 0.5 }[event.key];
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1], Home: [-Infinity, 0], End: [Infinity, 0] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === " ") this.pause(this.end == null);
    else if (event.key === "Escape") { this.focus(null); this.pause(false); }
    else if (zoomed) this.zoom(spans[Math.max(0, Math.min(spans.length - 1, spans.indexOf(this.span) + zoomed))]);
    else if (paged) { if (this.end == null) this.pause(true); this.end += paged * this.span; this.draw(); }
    else if (moves[event.key]) this.move(...moves[event.key]);
    else return;
    event.preventDefault();
  }

  /** To the next block in time on this lane, or to the one that is nearest in time on another. */
  move(later, down) {
    if (this.end == null) this.pause(true);
    const onLane = (lane) => this.blocks.filter((block) => this.lanesOf(block).includes(lane)).sort((a, b) => a.begin - b.begin);
    const { block, lane } = this.focused ?? {};
    if (!block) {
      const newest = this.blocks.filter(({ end }) => end <= this.end).sort((a, b) => a.end - b.end).at(-1);
      return this.focus(newest ?? null, newest && this.lanesOf(newest)[0]);
    }
    if (down) {
      for (let next = lane + down; next >= 0 && next < this.cores.length; next += down) {
        const near = onLane(next).sort((a, b) => Math.abs(a.begin - block.begin) - Math.abs(b.begin - block.begin))[0];
        if (near) return this.focus(near, next);
      }
      return;
    }
    const row = onLane(lane), at = Math.max(0, Math.min(row.length - 1, row.indexOf(block) + later));
    this.focus(row[at] ?? block, lane);
  }

  focus(block, lane = 0) {
    this.focused = block ? { block, lane } : null;
    const text = byId("timeline-focus");
    text.hidden = !block;
    if (block) {
      const start = this.end - this.span;
      if (block.end > this.end || block.begin < start) this.end = Math.min(block.begin + 0.8 * this.span, this.now);
      text.textContent = [`${block.tenant}, query ${block.query}`, ...describe(block, this.tenants.get(block.tenant))].join("; ");
    } else {
      text.textContent = "";
    }
    this.draw();
  }

  /** Where it ran at first, and later. */
  lanesOf(block) {
    return [block.cores, ...block.coreChanges.map(([, cores]) => cores)].flat().map((core) => this.lane.get(core)).filter((lane) => lane !== undefined);
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
    if (hit) showTip(tip, hit.block, this.tenants.get(hit.block.tenant), event);
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
    for (const { x: left, y, w, h, block } of this.hits) {
      if (block !== this.focused?.block) continue;
      ctx.lineWidth = 2;
      ctx.strokeStyle = css("--ink");
      ctx.strokeRect(left - 1, y - 0.5, w + 2, h + 1);
    }
    ctx.restore();
    const missing = this.dropped ? `, ${this.dropped} more not shown` : "";
    byId("timeline-hint").textContent = shown ? `${shown} ${shown === 1 ? "block" : "blocks"}, ${conflicts} in conflict${missing} · drag, or use the arrow keys, to look back` : "no blocks in this span";
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
    const hue = colour(this.tenants.get(block.tenant)), ink = inkOn(hue);
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
