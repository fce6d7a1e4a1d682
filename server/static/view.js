// Which tenants are shown, and in which order: filtered by name, sorted by a column of the table.

import { byId } from "/admin/text.js";

const MANY = 6; // from here on a field to filter them is shown

// By column: what is sorted by, of a tenant and its row; larger ones come first but for names.
export const COLUMNS = {
  tenant: (tenant) => tenant.name,
  offered: (_, row) => row.offered_qps,
  served: (_, row) => row.qps,
  refused: (_, row) => row.refused_qps + row.failed_qps,
  qos: (tenant, row) => (row.qos_rate == null ? null : tenant.percentile - row.qos_rate), // the worst first
  burn5m: (_, row) => row.burn["5m"],
  burn1h: (_, row) => row.burn["1h"],
  p50: (_, row) => row.p50_ms,
  p95: (_, row) => row.p95_ms,
  p99: (_, row) => row.p99_ms,
  range: (tenant, row) => (row.p99_ms == null ? null : row.p99_ms / tenant.target_ms),
  queue: (_, row) => row.waiting,
  cores: (_, row) => row.busy,
  memory: (_, row) => row.memory,
};

export class View {
  constructor(changed) {
    this.changed = changed;
    this.column = null; // null: as they are configured
    this.reversed = false;
    byId("filter").addEventListener("input", () => this.changed());
    document.querySelectorAll("[data-sort]").forEach((button) => button.addEventListener("click", () => this.sort(button.dataset.sort)));
    byId("sort").addEventListener("change", () => this.sort(byId("sort").value || null, false));
  }

  sort(column, turns = true) {
    if (turns && column === this.column) {
      if (this.reversed) [this.column, this.reversed] = [null, false];
      else this.reversed = true;
    } else {
      [this.column, this.reversed] = [column, false];
    }
    byId("sort").value = this.column ?? "";
    document.querySelectorAll("[data-sort]").forEach((button) => {
      const on = button.dataset.sort === this.column;
      const ascending = (button.dataset.sort === "tenant") !== this.reversed;
      button.closest("th").setAttribute("aria-sort", !on ? "none" : ascending ? "ascending" : "descending");
    });
    this.changed();
  }

  /** Indexes of the tenants that are shown, in their order. */
  order(tenants, rows) {
    byId("view").hidden = tenants.length < MANY;
    const wanted = byId("filter").value.trim().toLowerCase();
    const shown = tenants.flatMap((tenant, at) => (`${tenant.name} ${tenant.model}`.toLowerCase().includes(wanted) ? [at] : []));
    byId("shown").textContent = wanted ? `${shown.length} of ${tenants.length}` : `${tenants.length} tenants`;
    const by = COLUMNS[this.column];
    if (!by) return shown;
    const value = (at) => by(tenants[at], rows[at]);
    const sorted = shown.sort((a, b) => {
      const [x, y] = [value(a), value(b)];
      if (x == null || y == null) return (x == null) - (y == null);
      return (this.column === "tenant" ? x.localeCompare(y) : y - x) * (this.reversed ? -1 : 1);
    });
    return sorted;
  }
}
