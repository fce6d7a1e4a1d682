/* Until when queries of a tenant are refused without asking the engine: ipc/admission_gates.py, which writes them. */
#ifndef VELTAIR_GATES_H
#define VELTAIR_GATES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PRIORITY_LEVELS = 5 }; /* veltair/types.py; there is a gate for each, beginning with level 1 */

typedef struct {
  _Atomic int64_t shut_until_ns; /* CLOCK_MONOTONIC */
  _Atomic int64_t least_batch;   /* smaller ones pass */
} gate;

static inline bool gate_shut(const gate *gate, int32_t batch, int64_t now) {
  return now < atomic_load_explicit(&gate->shut_until_ns, memory_order_relaxed) &&
         batch >= atomic_load_explicit(&gate->least_batch, memory_order_relaxed);
}

#endif
