// Two charts over the last two minutes: queries per second, and tail latency in % of the target (logarithmic, so that
// one bad second does not flatten all others).

import { byId, count, dot, make, ms } from "/admin/text.js";
import { colour, css, onTheme } from "/admin/theme.js";

const KEPT = 120; // seconds

export class Charts {
  constructor(tenants) {
    this.tenants = tenants;
    const now = Math.floor(Date.now() / 1000);
    const length = tenants[0].history.qps.length;
    this.time = Array.from({ length }, (_, i) => now - length + i);
    this.qps = tenants.map((tenant) => tenant.history.qps);
    this.tail = tenants.map((tenant) => tenant.history.tail_ms.map((value) => share(value, tenant)));
    onTheme(() => this.draw());
    new ResizeObserver(() => this.fit()).observe(byId("qps-chart"));
    this.draw();
  }

  add(rows) {
    this.time.push(Date.now() / 1000);
    rows.forEach((row, i) => {
      this.qps[i].push(row.second.qps);
      this.tail[i].push(share(row.second.tail_ms, this.tenants[i]));
    });
    for (const list of [this.time, ...this.qps, ...this.tail]) if (list.length > KEPT) list.shift();
    this.left.setData([this.time, ...this.qps]);
    this.right.setData([this.time, ...this.tail]);
  }

  /** Called again for another theme: uPlot reads its colours once. */
  draw() {
    this.left?.destroy();
    this.right?.destroy();
    this.left = this.chart("qps", this.qps, count, { range: (_, low, high) => [0, Math.max(10, (high ?? 0) * 1.12)] });
    this.right = this.chart("tail", this.tail, (value, i) => ms((value * this.tenants[i].target_ms) / 100), { distr: 3, range: (_, low, high) => [Math.min(10, (low || 100) / 1.3), Math.max(300, (high ?? 0) * 1.3)] }, 100);
  }

  fit() {
    for (const [plot, id] of [[this.left, "qps-chart"], [this.right, "tail-chart"]])
      plot.setSize({ width: byId(id).clientWidth, height: byId(id).clientHeight });
  }

  chart(id, lists, text, scale, line) {
    const box = byId(`${id}-chart`), readout = byId(`${id}-readout`);
    const grid = { stroke: css("--line"), width: 1 };
    const axis = { stroke: css("--dim"), font: "11px system-ui, sans-serif", grid, ticks: { show: false } };
    const showReadout = (plot) => {
      const at = plot.cursor.idx ?? plot.data[0].length - 1;
      readout.replaceChildren(...this.tenants.map((tenant, i) => {
        const value = plot.data[i + 1][at];
        return make("span", "", dot(colour(i)), value == null ? tenant.name : `${tenant.name} ${text(value, i)}`);
      }));
    };
    const drawTarget = (plot) => {
      if (line == null) return;
      const y = Math.round(plot.valToPos(line, "y", true));
      const { ctx, bbox } = plot;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = css("--ink");
      ctx.lineWidth = devicePixelRatio;
      ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
      ctx.beginPath();
      ctx.moveTo(bbox.left, y);
      ctx.lineTo(bbox.left + bbox.width, y);
      ctx.stroke();
      ctx.font = `${11 * devicePixelRatio}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.fillText("QoS target", bbox.left + 4 * devicePixelRatio, y - 4 * devicePixelRatio);
      ctx.restore();
    };
    return new uPlot({
      width: box.clientWidth,
      height: box.clientHeight,
      padding: [8, 24, 0, 0],
      legend: { show: false },
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      scales: { x: { time: true }, y: scale },
      axes: [
        { ...axis, space: 70, size: 26, values: (_, ticks) => ticks.map((t) => clock(t)) },
        { ...axis, size: 62, values: (_, ticks) => ticks.map((t) => (t == null ? "" : line == null ? t.toLocaleString("en") : `${t.toLocaleString("en")} %`)) },
      ],
      series: [{}, ...this.tenants.map((tenant, i) => ({
        label: tenant.name, stroke: colour(i), width: 2, points: { size: 4, fill: colour(i) },
      }))],
      hooks: { draw: [drawTarget], setCursor: [showReadout], setData: [showReadout], ready: [showReadout] },
    }, [this.time, ...lists], box);
  }
}

const share = (value, tenant) => (value == null ? null : (100 * value) / tenant.target_ms);
const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
