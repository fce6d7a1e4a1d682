/* Runs the layers of a block in one call. */
#include <stdatomic.h>

#include "pinned_threads.h"
#include "ffi.h"

typedef struct {
  void *kernel;
  const ffi_any *arguments;
  int64_t count;
} step; /* block_runner.STEP */

/* run(steps, rows, start, from, to, sequence, known, progress) -> layer
 *
 * Runs layers from … to; layer i is steps[rows[i - start]]. Where `sequence` is given, it stops before a layer when
 * that word is not `known` any more, and writes into `progress` the layer that it is about to run. Returns the layer
 * it stopped before, `to` when it ran them all.
 */
FFI_EXPORT(run) {
  const step *steps = arguments[0].pointer;
  const int32_t *rows = arguments[1].pointer;
  const int64_t start = arguments[2].integer, to = arguments[4].integer;
  const _Atomic uint64_t *sequence = arguments[5].pointer;
  const uint64_t known = (uint64_t)arguments[6].integer;
  _Atomic uint64_t *progress = arguments[7].pointer;
  int64_t layer = arguments[3].integer;
  int failed = 0;
  pool_awake();
  for (; layer < to; layer++) {
    if (sequence) {
      if (atomic_load_explicit(sequence, memory_order_acquire) != known) break;
      atomic_store_explicit(progress, (uint64_t)layer, memory_order_relaxed);
    }
    const step *next = &steps[rows[layer - start]];
    ffi_any nothing = {0};
    if ((failed = TVMFFIFunctionCall(next->kernel, next->arguments, (int32_t)next->count, &nothing))) break;
  }
  pool_asleep();
  if (failed) return failed;
  *result = (ffi_any){.type_index = 1, .integer = layer};
  return 0;
}
