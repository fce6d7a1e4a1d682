/* The words of a worker's cell that one process waits for: `worker_cell.py` writes the rest before and reads it after.
 *
 * Plain C without headers of Python or TVM: the engine loads it, and loads no TVM. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SECOND INT64_C(1000000000)

/* The engine: all that it wrote into the cell is the worker's from here on. The two processes share the futex, so it
 * is not a private one. */
EXPORT void publish_order(_Atomic uint32_t *ordered, uint32_t number) {
  atomic_store_explicit(ordered, number, memory_order_release);
  syscall(SYS_futex, ordered, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* The worker: returns the number of the last order, which is still `known` after `patience_ns` or a signal. */
EXPORT uint32_t wait_for_order(_Atomic uint32_t *ordered, uint32_t known, int64_t patience_ns) {
  const uint32_t number = atomic_load_explicit(ordered, memory_order_acquire);
  if (number != known) return number;
  const struct timespec patience = {patience_ns / SECOND, patience_ns % SECOND};
  syscall(SYS_futex, ordered, FUTEX_WAIT, known, &patience, NULL, 0);
  return atomic_load_explicit(ordered, memory_order_acquire);
}

/* The worker: what it wrote into the cell is the engine's from here on. `bell` is an eventfd. */
EXPORT void publish_end(_Atomic uint32_t *done, uint32_t number, int bell) {
  const uint64_t once = 1;
  atomic_store_explicit(done, number, memory_order_release);
  while (write(bell, &once, sizeof once) < 0 && errno == EINTR) continue;
}

/* The engine: the number of the last order that has ended; all that the worker wrote before it is seen. */
EXPORT uint32_t ended(_Atomic uint32_t *done) { return atomic_load_explicit(done, memory_order_acquire); }
