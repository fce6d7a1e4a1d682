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
  _Atomic int64_t least_batch;   /* smaller ones pass */
  _Atomic int64_t work;          /* of the I/O threads: a request counts for 1, refused or not, WORK_BYTES that it brings for 1 */
} gate;

static inline bool gate_shut(const gate *gate, int32_t batch, int64_t now) {
  return now < atomic_load_explicit(&gate->shut_until_ns, memory_order_relaxed) &&
         batch >= atomic_load_explicit(&gate->least_batch, memory_order_relaxed);
}

static inline void gate_count(gate *gate, uint64_t bytes) {
  atomic_fetch_add_explicit(&gate->work, (int64_t)(1 + bytes / WORK_BYTES), memory_order_relaxed);
}

#endif
