// Two charts: queries per second, and tail latency in % of the target (logarithmic, so that one bad second does not
// flatten all others). They show the last two minutes by the second, or the last hour in steps of ten. Where nobody
// knew anything there is a gap. A breach is a triangle.

import { byId, clock, count, dot, make, ms } from "/admin/text.js";
import { colour, css, onTheme } from "/admin/theme.js";

const KEPT = { minutes: 120, hour: 361 }; // points
const IN_READOUT = 6; // tenants

export class Charts {
  constructor(tenants, events) {
    this.tenants = tenants;
    this.events = events;
    this.shown = tenants.map((_, i) => i);
    this.span = "minutes";
    this.data = {};
    document.querySelectorAll("[data-chart-span]").forEach((button) => button.addEventListener("click", () => this.zoom(button.dataset.chartSpan)));
    onTheme(() => this.draw());
    new ResizeObserver(() => this.fit()).observe(byId("qps-chart"));
  }

  /** The first event of a stream, also after a break: what the daemon knows takes the place of what is drawn. */
  begin({ now_s, tenants, hour }) {
    const shift = Date.now() / 1000 - now_s; // its clock may be another
    const length = tenants[0]?.history.qps.length ?? 0;
    const now = Math.floor(Date.now() / 1000);
    this.data.minutes = {
      step: 1,
      time: Array.from({ length }, (_, i) => now - length + i),
      qps: tenants.map(({ history }) => history.qps),
      tail: tenants.map((tenant) => tenant.history.tail_ms.map((value) => share(value, tenant))),
    };
    const rows = (name, key) => hour?.tenants[name]?.[key] ?? [];
    this.data.hour = {
      step: hour?.step_s ?? 10,
      time: hour ? hour.at_s.map((at) => at + shift) : [],
      qps: tenants.map(({ name }) => rows(name, "qps")),
      tail: tenants.map((tenant) => rows(tenant.name, "tail_ms").map((value) => share(value, tenant))),
    };
    this.draw();
  }

  add(rows) {
    const now = Date.now() / 1000;
    this.push("minutes", now, rows.map((row) => row.second.qps), rows.map((row, i) => share(row.second.tail_ms, this.tenants[i])));
    const hour = this.data.hour;
    if (now - (hour.time.at(-1) ?? 0) >= hour.step) // the table's rates are those of the last ten seconds, too
      this.push("hour", now, rows.map((row) => row.qps), rows.map((row, i) => share(row.tail_ms, this.tenants[i])));
    this.refresh();
  }

  push(span, now, qps, tail) {
    const data = this.data[span], lists = [...data.qps, ...data.tail];
    data.time.push(now);
    qps.forEach((value, i) => data.qps[i].push(value));
    tail.forEach((value, i) => data.tail[i].push(value));
    while (data.time[0] < now - KEPT[span] * data.step) [data.time, ...lists].forEach((list) => list.shift());
  }

  zoom(span) {
    this.span = span;
    document.querySelectorAll("[data-chart-span]").forEach((button) => button.setAttribute("aria-pressed", button.dataset.chartSpan === span));
    this.draw();
  }

  show(order) {
    if (order.join() === this.shown.join()) return;
    const sameSet = [...order].sort().join() === [...this.shown].sort().join();
    this.shown = order;
    if (!sameSet) this.draw();
  }

  /** The points of one kind, with an empty one in every gap, and from the span's begin to now. */
  points(kind) {
    const { time, step, [kind]: lists } = this.data[this.span];
    const now = Date.now() / 1000, out = [[now - KEPT[this.span] * step], ...this.tenants.map(() => [null])];
    time.forEach((at, k) => {
      if (at - out[0].at(-1) > 2.5 * step) {
        out[0].push(out[0].at(-1) + step);
        for (let i = 1; i < out.length; i++) out[i].push(null);
      }
      out[0].push(at);
      lists.forEach((list, i) => out[i + 1].push(list[k] ?? null));
    });
    return out;
  }

  refresh() {
    this.left?.setData(this.points("qps"));
    this.right?.setData(this.points("tail"));
  }

  /** Called again for another theme: uPlot reads its colours once. */
  draw() {
    if (!this.data.minutes) return;
    this.left?.destroy();
    this.right?.destroy();
    this.left = this.chart("qps", count, { range: (_, low, high) => [0, Math.max(10, (high ?? 0) * 1.12)] });
    const tail = { distr: 3, range: (_, low, high) => [Math.min(10, 10 ** Math.floor(Math.log10(low || 100))), Math.max(300, (high ?? 0) * 1.3)] };
    this.right = this.chart("tail", (value, i) => ms((value * this.tenants[i].target_ms) / 100), tail, 100);
  }

  fit() {
    for (const [plot, id] of [[this.left, "qps-chart"], [this.right, "tail-chart"]])
      plot?.setSize({ width: byId(id).clientWidth, height: byId(id).clientHeight });
  }

  chart(id, text, scale, line) {
    const box = byId(`${id}-chart`), readout = byId(`${id}-readout`);
    const grid = { stroke: css("--line"), width: 1 };
    const axis = { stroke: css("--dim"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
    const inSet = new Set(this.shown);
    const showReadout = (plot) => {
      const at = plot.cursor.idx ?? plot.data[0].length - 1;
      const values = [...inSet].map((i) => [i, plot.data[i + 1]?.[at]]);
      if (values.length > IN_READOUT) values.sort(([, a], [, b]) => (b ?? -1) - (a ?? -1));
      const parts = values.slice(0, IN_READOUT).map(([i, value]) =>
        make("span", "", dot(colour(this.tenants[i])), make("span", "label", this.tenants[i].name), value == null ? "" : text(value, i)));
      if (values.length > IN_READOUT) parts.push(make("span", "", `${values.length - IN_READOUT} more`));
      readout.replaceChildren(...parts);
    };
    return new uPlot({
      width: box.clientWidth,
      height: box.clientHeight,
      padding: [8, 24, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: scale },
      axes: [
        { ...axis, space: 70, size: 26, values: (_, ticks) => ticks.map((t) => (this.span === "hour" ? clock(t).slice(0, 5) : clock(t))) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((t) => (t == null ? "" : line == null ? t.toLocaleString("en") : `${t.toLocaleString("en")} %`)) },
      ],
      series: [{}, ...this.tenants.map((tenant, i) => ({
        label: tenant.name, stroke: colour(tenant), width: this.tenants.length > 8 ? 1.5 : 2, show: inSet.has(i), spanGaps: false,
        points: { size: 4, fill: colour(tenant) },
      }))],
      hooks: {
        draw: [(plot) => this.marks(plot, line)],
        setCursor: [showReadout], setData: [showReadout], ready: [showReadout],
      },
    }, this.points(id), box);
  }

  /** The target, a triangle at every breach, and one at the bottom for every trouble of the daemon. */
  marks(plot, line) {
    const { ctx, bbox } = plot, scale = devicePixelRatio;
    const triangle = (x, y, size) => {
      ctx.beginPath();
      ctx.moveTo(x, y - size);
      ctx.lineTo(x + size, y + 0.8 * size);
      ctx.lineTo(x - size, y + 0.8 * size);
      ctx.closePath();
      ctx.fill();
    };
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left - 6 * scale, bbox.top, bbox.width + 12 * scale, bbox.height);
    ctx.clip();
    ctx.fillStyle = css("--breach");
    for (const { last_s } of this.events.troubles) {
      const x = plot.valToPos(last_s, "x", true);
      if (x >= bbox.left && x <= bbox.left + bbox.width) triangle(x, bbox.top + bbox.height - 6 * scale, 5 * scale);
    }
    if (line != null) {
      for (const i of this.shown) {
        plot.data[i + 1]?.forEach((value, k) => {
          if (value > line) triangle(plot.valToPos(plot.data[0][k], "x", true), plot.valToPos(value, "y", true), 4 * scale);
        });
      }
      const y = Math.round(plot.valToPos(line, "y", true));
      ctx.strokeStyle = ctx.fillStyle = css("--ink");
      ctx.lineWidth = scale;
      ctx.setLineDash([5 * scale, 4 * scale]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.font = `${11 * scale}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.fillText("QoS target", bbox.left + 4 * scale, y - 4 * scale);
    }
    ctx.restore();
  }
}

const share = (value, tenant) => (value == null ? null : (100 * value) / tenant.target_ms);
