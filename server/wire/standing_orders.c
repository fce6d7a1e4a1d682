#define _GNU_SOURCE
#include "standing_orders.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
#define SECOND INT64_C(1000000000)
enum { LINE = 128, CLAIM_BYTES = 64, COUNT_BYTES = 64, TERM = 8 /* bits below it */ };

static _Atomic uint32_t *state_of(uint8_t *memory) { return (_Atomic uint32_t *)(void *)memory; }

static _Atomic uint32_t *withdrawal_of(uint8_t *memory) { return (_Atomic uint32_t *)(void *)(memory + LINE); }

static standing_claim *claim_of(uint8_t *memory, uint32_t lane) {
  return (standing_claim *)(void *)(memory + 2 * LINE + (uint64_t)lane * CLAIM_BYTES);
}

static uint64_t orders_at(uint32_t lanes) { return 2 * LINE + (uint64_t)lanes * CLAIM_BYTES; }

static uint32_t what(uint32_t state) { return state & ((1u << TERM) - 1); }

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

/* What became of the last claim. */
typedef struct {
  uint32_t stop, reported;
  int64_t begin_ns, end_ns, told_ns;
} claim_end;

static claim_end *end_of(uint8_t *memory) { return (claim_end *)(void *)(memory + LINE + LINE / 2); }

EXPORT uint64_t standing_orders_bytes(uint32_t lanes) {
  return orders_at(lanes) + COUNT_BYTES + MOST_STANDING * sizeof(standing_order);
}

bool standing_orders_claim(uint8_t *memory, uint32_t lanes, const caller *of, int32_t tenant, int32_t samples, uint32_t slot) {
  _Atomic uint32_t *const state = state_of(memory);
  uint32_t open = atomic_load(state);
  if (what(open) != STANDING_OPEN || atomic_load(withdrawal_of(memory))) return false;
  const uint8_t *const at = memory + orders_at(lanes);
  const standing_order *const orders = (const standing_order *)(const void *)(at + COUNT_BYTES);
  const uint32_t count = *(const uint32_t *)(const void *)at;
  for (uint32_t i = 0; i < count && i < MOST_STANDING; i++) {
    if (orders[i].tenant != tenant || orders[i].samples != samples) continue;
    *claim_of(memory, of->lane) = (standing_claim){.caller = *of, .order = i, .slot = slot};
    /* The term is part of what is compared: these are still the orders that were looked at. */
    if (!atomic_compare_exchange_strong(state, &open, open - STANDING_OPEN + STANDING_CLAIMED + of->lane)) return false;
    wake(state);
    return true;
  }
  return false;
}

/* For tests, which are the I/O thread. */
EXPORT int claim_order(uint8_t *memory, uint32_t lanes, const caller *of, int32_t tenant, int32_t samples, uint32_t slot) {
  return standing_orders_claim(memory, lanes, of, tenant, samples, slot);
}

/* The engine: the worker of this term attends, and queries may come. */
EXPORT void open_orders(uint8_t *memory, uint32_t term) {
  atomic_store(withdrawal_of(memory), 0);
  atomic_store(state_of(memory), term << TERM | STANDING_OPEN);
}

/* The engine: no more queries come. Returns whether none runs; the worker ends the term when it has run the one that
 * does, and rings. */
EXPORT int withdraw_orders(uint8_t *memory, uint32_t term) {
  _Atomic uint32_t *const state = state_of(memory);
  uint32_t open = term << TERM | STANDING_OPEN;
  atomic_store(withdrawal_of(memory), 1);
  if (!atomic_compare_exchange_strong(state, &open, term << TERM | STANDING_CLOSED)) return what(open) == STANDING_CLOSED;
  wake(state);
  return true;
}

/* The engine: the term has ended, whatever its worker does: it has not begun, or is dead. */
EXPORT void close_orders(uint8_t *memory, uint32_t term) {
  atomic_store(state_of(memory), term << TERM | STANDING_CLOSED);
  wake(state_of(memory));
}

EXPORT uint32_t orders_state(uint8_t *memory) { return atomic_load(state_of(memory)); }

/* Whether a term has begun after this one. */
static bool is_over(uint32_t state, uint32_t term) {
  const uint32_t ahead = ((state >> TERM) - term) << TERM >> TERM;
  return ahead && ahead < 1u << (31 - TERM);
}

/* The worker: returns the state once it is a claim, the end of the term or a later one, or after `patience_ns` or a
 * signal. */
EXPORT uint32_t wait_for_claim(uint8_t *memory, uint32_t term, int64_t patience_ns) {
  _Atomic uint32_t *const state = state_of(memory);
  const uint32_t found = atomic_load(state);
  if (is_over(found, term) || (found >> TERM == term && what(found) != STANDING_OPEN)) return found;
  const struct timespec patience = {patience_ns / SECOND, patience_ns % SECOND};
  syscall(SYS_futex, state, FUTEX_WAIT, found, &patience, NULL, 0);
  return atomic_load(state);
}

/* The worker: the claim of `lane` has ended, and another may come. `done`: whose thread is told, with `wakes` as in
 * report_done; NULL: that is the engine's to do. Returns whether the term has ended with it.
 *
 * The query is in the list first, so that it is told of even if this worker is killed; then the next one may be claimed,
 * since a client may send it as soon as it has its answer. */
EXPORT int end_claim(uint8_t *memory, uint32_t term, uint32_t lane, uint8_t *done, uint32_t lanes, uint32_t places,
                     const int32_t *wakes, uint32_t stop, int reported, int64_t begin_ns, int64_t end_ns) {
  _Atomic uint32_t *const state = state_of(memory);
  uint32_t open = term << TERM | STANDING_OPEN;
  int64_t told_ns = 0;
  if (done) {
    const done_queries to = {done, lanes, places};
    const caller of = claim_of(memory, lane)->caller;
    const done_query times = done_now(begin_ns, end_ns - begin_ns, end_ns);
    done_queries_put(&to, &of, &times);
    told_ns = times.ended_ns;
  }
  *end_of(memory) = (claim_end){stop, (uint32_t)reported, begin_ns, end_ns, told_ns};
  atomic_store(state, open);
  const uint64_t once = 1;
  while (done && lane < lanes && write(wakes[lane], &once, sizeof once) < 0 && errno == EINTR) continue;
  return atomic_load(withdrawal_of(memory)) && atomic_compare_exchange_strong(state, &open, term << TERM | STANDING_CLOSED);
}
