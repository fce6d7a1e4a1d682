/* Runs what I/O threads order of a lent worker, one claim after the other, without Python in between: lent_worker.py
 * does all that is not done for each. Behind TVM's FFI, so that a kernel's error becomes Python's. */
#include <stddef.h>
#include <stdint.h>

#include "profiles/runtime/ffi.h"
#include "server/wire/standing_orders.h"

/* A query's block: lent_worker._PREPARED. No rows: it is not prepared. */
typedef struct {
  const void *steps;
  const int32_t *rows;
  int64_t layers;
  int64_t core_set, crowded_core_set; /* their numbers: where it runs, and where while claims come fast */
} prepared_claim;

typedef int runner(void *self, const ffi_any *arguments, int32_t count, ffi_any *result); /* block_runner.c: run */

/* lent_worker.ClaimLoop */
typedef struct {
  uint8_t *standing, *done;
  const int32_t *wakes;
  runner *run;
  void *sequence, *progress; /* words of the worker's cell */
  claim_lines *lines;
  const prepared_claim *prepared;
  int64_t patience_ns, core_set; /* number of that which the threads are on */
  uint64_t known;                /* sequence at which that was read */
  uint32_t lanes, places, slots, term;
  int64_t window_ns; /* when the first of those began that were counted */
  uint32_t counted, crowded;
  uint32_t unread; /* the orders of this term */
  /* The claim at which it stopped. */
  int64_t begin_ns, layer;
  uint32_t position;
} claim_loop;

enum { OVER, ENDED /* as well, with a claim: ring the bell */, WAITED, UNPREPARED, STOPPED /* before a layer */ };

/* Claims of a window, and how long it lasts at most while they come fast, and at least when they no longer do. A client
 * that asks one query after the other is between the two. */
enum { WINDOW = 64, CROWDED_NS = 20000000, ALONE_NS = 45000000 };

/* A claim that waits for longer than this while it could run is behind those who go before it on this core. */
enum { LATE_NS = 5000000 };

static void note_pace(claim_loop *loop, int64_t now) {
  if (++loop->counted < WINDOW) return;
  const int64_t elapsed = now - loop->window_ns;
  if (elapsed < CROWDED_NS) loop->crowded = 1;
  if (elapsed > ALONE_NS) loop->crowded = 0;
  loop->counted = 0;
  loop->window_ns = now;
}

static ffi_any number(int64_t value) { return (ffi_any){.type_index = 1, .integer = value}; }

static ffi_any address(const void *value) { return (ffi_any){.type_index = 1, .pointer = (void *)(uintptr_t)value}; }

/* Runs all layers of a claim. Returns the layer reached in `layer`, and what a kernel returned. */
static int run_claim(claim_loop *loop, const prepared_claim *block) {
  const ffi_any arguments[] = {address(block->steps), address(block->rows), number(0),
                               number(0),             number(block->layers), address(loop->sequence),
                               number((int64_t)loop->known), address(loop->progress)};
  ffi_any reached = {0};
  const int failed = loop->run(NULL, arguments, sizeof arguments / sizeof *arguments, &reached);
  loop->layer = reached.integer;
  return failed;
}

/* Its block is bound to the slot, and the threads are on the cores that it runs on now. */
static bool is_prepared(const claim_loop *loop, const prepared_claim *block) {
  if (loop->unread || !block || !block->rows) return false;
  return (loop->crowded ? block->crowded_core_set : block->core_set) == loop->core_set;
}

/* attend(loop) -> why it returned */
FFI_EXPORT(attend) {
  claim_loop *const loop = arguments[0].pointer;
  const done_queries done = {loop->done, loop->lanes, loop->places};
  *result = number(OVER);
  for (;;) {
    const int64_t position = next_claim(loop->standing, loop->term, loop->patience_ns);
    if (position < 0) {
      *result = number(position == NO_CLAIM ? WAITED : OVER);
      return 0;
    }
    loop->position = (uint32_t)position;
    loop->begin_ns = now_ns();
    const standing_claim *claim = claim_at(loop->standing, loop->lanes, loop->position);
    if (claim && loop->begin_ns - claim->caller.taken_ns > LATE_NS) loop->crowded = 1;
    claim_end end = {.begin_ns = loop->begin_ns, .end_ns = loop->begin_ns};
    end.refused = claim && begins_late(loop->standing, loop->lanes, claim, loop->begin_ns);
    const prepared_claim *block = NULL;
    if (claim && claim->order < MOST_STANDING && claim->slot < loop->slots)
      block = &loop->prepared[claim->order * loop->slots + claim->slot];
    if (!end.refused && !is_prepared(loop, block)) {
      pause_pace(loop->standing); /* Python prepares a block once for each slot: that tells nothing of the next claim */
      *result = number(UNPREPARED);
      return 0;
    }
    note_pace(loop, loop->begin_ns);
    if (!end.refused) {
      const int failed = run_claim(loop, block);
      if (failed) return failed;
      if (loop->layer < block->layers) {
        *result = number(STOPPED);
        return 0;
      }
      end.stop = (uint32_t)loop->layer;
      end.end_ns = now_ns();
    }
    if (end_claim(loop->standing, loop->term, loop->position, loop->lines, &done, loop->wakes, &end)) {
      *result = number(ENDED);
      return 0;
    }
  }
}
