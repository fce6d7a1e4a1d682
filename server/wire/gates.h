/* Until when queries of a tenant are refused without asking the engine, which writes that, and what the requests
 * that came are to read: ipc/admission_gates.py. */
#ifndef VELTAIR_GATES_H
#define VELTAIR_GATES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { WORK_BYTES = 128 << 10 }; /* take as long to copy and check as all the rest of a request (bench/serving/fronts.py) */
enum { PRIORITY_LEVELS = 5 }; /* veltair/types.py; there is a gate for each, beginning with level 1 */

typedef struct {
  _Atomic int64_t shut_until_ns; /* CLOCK_MONOTONIC */
  _Atomic int64_t ajar_until_ns; /* then each query takes a pass */
  _Atomic int64_t least_batch;   /* smaller ones pass */
  _Atomic int64_t given, taken;  /* passes so far, by the engine and by the I/O threads */
  _Atomic int64_t work;          /* of the I/O threads: a request counts for 1, refused or not, WORK_BYTES that it brings for 1 */
  _Atomic int64_t full_until_ns, full_batch; /* the I/O threads: the line of queries of this size has no room (standing_orders.h) */
} gate;

static inline int64_t gate_read(const _Atomic int64_t *word) { return atomic_load_explicit(word, memory_order_relaxed); }

static inline bool gate_full(const gate *gate, int32_t batch, int64_t now) {
  return now < gate_read(&gate->full_until_ns) && batch == gate_read(&gate->full_batch);
}

/* There is no room for such queries, and will not be for so long. */
static inline void gate_fill(gate *gate, int32_t batch, int64_t until_ns) {
  atomic_store_explicit(&gate->full_batch, batch, memory_order_relaxed);
  atomic_store_explicit(&gate->full_until_ns, until_ns, memory_order_relaxed);
}

static inline bool gate_open(const gate *gate, int32_t batch, int64_t now) {
  return now >= gate_read(&gate->ajar_until_ns) || batch < gate_read(&gate->least_batch);
}

/* Whether such a query is refused now. */
static inline bool gate_refuses(const gate *gate, int32_t batch, int64_t now) {
  if (gate_full(gate, batch, now)) return true;
  if (gate_open(gate, batch, now)) return false;
  return now < gate_read(&gate->shut_until_ns) || gate_read(&gate->taken) >= gate_read(&gate->given);
}

/* Whether such a query goes to the engine; it takes a pass where it needs one. */
static inline bool gate_pass(gate *gate, int32_t batch, int64_t now) {
  if (gate_full(gate, batch, now)) return false;
  if (gate_open(gate, batch, now)) return true;
  if (now < gate_read(&gate->shut_until_ns)) return false;
  if (atomic_fetch_add(&gate->taken, 1) < gate_read(&gate->given)) return true;
  atomic_fetch_sub(&gate->taken, 1);
  return false;
}

static inline void gate_count(gate *gate, uint64_t bytes) {
  atomic_fetch_add_explicit(&gate->work, (int64_t)(1 + bytes / WORK_BYTES), memory_order_relaxed);
}

#endif
