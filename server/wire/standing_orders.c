#define _GNU_SOURCE
#include "standing_orders.h"

#include <errno.h>
#include <linux/futex.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "claim_lines.h"

#define EXPORT __attribute__((visibility("default")))
#define SECOND INT64_C(1000000000)
enum { LINE = 128, COUNT_BYTES = 64, TERM = 17 /* bits below it */, POSITION = 2, WHAT = (1 << POSITION) - 1 };

/* `pushed` counts those that were ever put in; a mark says in which term its place waits or runs. */
typedef struct {
  _Alignas(LINE) _Atomic uint32_t pushed;
  _Alignas(LINE) _Atomic uint32_t mark[CLAIMS];
  standing_claim claim[CLAIMS];
} ring;

static _Atomic uint32_t *state_of(uint8_t *memory) { return (_Atomic uint32_t *)(void *)memory; }

static claim_end *end_of(uint8_t *memory) { return (claim_end *)(void *)(memory + LINE); }

/* What the worker keeps of the claims that have ended. */
typedef struct {
  _Atomic uint32_t each_ns; /* from one to the next while others wait, with what kept the worker off its core: a mean; 0: none has */
  uint32_t openings;        /* of the state */
  int64_t last_ns;          /* when the last one ended, if another waited; else 0 */
  int64_t sum_ns;           /* of what the last `counted` took, */
  uint32_t counted;         /* SMOOTHED at most */
} pace;

/* FIRST_CLAIMS of a tenant may wait before any has run. */
enum { SMOOTHED = 128, MOST_EACH_NS = 20000000, FIRST_CLAIMS = 8 };

static pace *pace_of(uint8_t *memory) { return (pace *)(void *)(memory + LINE + LINE / 2); }

/* How many claims of a tenant wait or run, by its first order. */
static _Atomic int32_t *held_of(uint8_t *memory) { return (_Atomic int32_t *)(void *)(memory + 2 * LINE); }

static ring *ring_of(uint8_t *memory, uint32_t number) { return (ring *)(void *)(memory + 3 * LINE) + number; }

/* The I/O threads', and the engine's behind them. */
static uint32_t rings(uint32_t lanes) { return lanes + 1; }

static uint64_t orders_at(uint32_t lanes) { return 3 * LINE + (uint64_t)rings(lanes) * sizeof(ring); }

static const standing_order *orders_of(uint8_t *memory, uint32_t lanes) {
  return (const standing_order *)(const void *)(memory + orders_at(lanes) + COUNT_BYTES);
}

static uint32_t what(uint32_t state) { return state & WHAT; }

static uint32_t position_of(uint32_t state) { return (state & ((1u << TERM) - 1)) >> POSITION; }

static uint32_t state_with(uint32_t term, uint32_t what, uint32_t position) { return term << TERM | position << POSITION | what; }

/* Of a place that waits or runs in this term. */
static uint32_t marked(uint32_t term) { return term << 1 | 1; }

static void wake(_Atomic uint32_t *word) { syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0); }

EXPORT uint64_t standing_orders_bytes(uint32_t lanes) {
  return orders_at(lanes) + COUNT_BYTES + MOST_STANDING * sizeof(standing_order);
}

EXPORT uint64_t standing_orders_at(uint32_t lanes) { return orders_at(lanes); }

/* Whether the memory has such a claim. Workers write the state, too, and may write anything. */
static bool is_place(uint32_t lanes, uint32_t position) { return position / CLAIMS < rings(lanes); }

EXPORT const standing_claim *claim_at(uint8_t *memory, uint32_t lanes, uint32_t position) {
  return is_place(lanes, position) ? &ring_of(memory, position / CLAIMS)->claim[position % CLAIMS] : NULL;
}

/* The number of the order for this many samples of a tenant; none: that of all orders. */
static uint32_t order_for(const standing_order *orders, uint32_t count, int32_t tenant, int32_t samples) {
  for (uint32_t i = 0; i < count; i++)
    if (orders[i].tenant == tenant && orders[i].samples == samples) return i;
  return count;
}

static uint32_t first_order(const standing_order *orders, uint32_t order) {
  for (uint32_t i = 0; i < order; i++)
    if (orders[i].tenant == orders[order].tenant) return i;
  return order;
}

/* Whether the tenant may have one more claim, of so long each. None fills the line for others: it may take its own part,
 * and what is left of the first half of all. */
static bool has_room(uint8_t *memory, const standing_order *orders, uint32_t count, uint32_t order, uint32_t each_ns) {
  const uint32_t first = first_order(orders, order);
  int64_t all_ns = 0, all = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (!orders[i].wait_ns || first_order(orders, i) != i) continue;
    all_ns += orders[i].wait_ns;
    all += atomic_load_explicit(&held_of(memory)[i], memory_order_relaxed);
  }
  const int64_t own = atomic_load_explicit(&held_of(memory)[first], memory_order_relaxed);
  return own < orders[order].wait_ns / each_ns || all < all_ns / each_ns / 2;
}

/* What becomes of this query, as far as it can be foreseen. A claim may wait only behind one that is as short. */
static enum claimed foresee(uint8_t *memory, uint32_t lanes, uint32_t from, uint32_t found, const standing_order *orders,
                            uint32_t count, uint32_t order, int32_t priority_level) {
  const ring *const own = ring_of(memory, from);
  const uint32_t mark = marked(found >> TERM), pushed = own->pushed;
  if (what(found) == STANDING_OPEN) return own->mark[pushed % CLAIMS] == mark ? ENGINE_DECIDES : CLAIM_RUNS;
  const standing_claim *const runs = claim_at(memory, lanes, position_of(found));
  uint32_t each_ns = atomic_load_explicit(&pace_of(memory)->each_ns, memory_order_relaxed);
  if (!each_ns) each_ns = orders[order].wait_ns / FIRST_CLAIMS + 1;
  if (priority_level != DEFAULT_PRIORITY_LEVEL || !runs || runs->order >= count || !orders[runs->order].wait_ns ||
      orders[order].wait_ns <= each_ns)
    return ENGINE_DECIDES;
  if (!has_room(memory, orders, count, order, each_ns)) return orders[order].late_us ? CLAIM_REFUSED : ENGINE_DECIDES;
  return own->mark[(pushed - MOST_CLAIMS_WAITING) % CLAIMS] == mark ? ENGINE_DECIDES : CLAIM_WAITS;
}

static uint32_t count_of(uint8_t *memory, uint32_t lanes) {
  const uint32_t count = *(const uint32_t *)(const void *)(memory + orders_at(lanes));
  return count < MOST_STANDING ? count : MOST_STANDING;
}

int64_t standing_orders_pause(uint8_t *memory, uint32_t lanes, int32_t tenant, int32_t samples) {
  enum { PARTS = 4 };
  const standing_order *const orders = orders_of(memory, lanes);
  const uint32_t count = count_of(memory, lanes), order = order_for(orders, count, tenant, samples);
  return order < count ? orders[order].wait_ns / PARTS : 0;
}

enum claimed standing_orders_claim(uint8_t *memory, uint32_t lanes, uint32_t from, const standing_claim *wanted,
                                   int32_t tenant, int32_t samples) {
  _Atomic uint32_t *const state = state_of(memory);
  uint32_t found = atomic_load(state);
  const uint32_t term = found >> TERM;
  if (what(found) == STANDING_CLOSED || what(found) == STANDING_WITHDRAWN || from >= rings(lanes)) return ENGINE_DECIDES;
  const standing_order *const orders = orders_of(memory, lanes);
  const uint32_t count = count_of(memory, lanes), order = order_for(orders, count, tenant, samples);
  ring *const own = ring_of(memory, from);
  if (order == count) return ENGINE_DECIDES;
  const enum claimed foreseen = foresee(memory, lanes, from, found, orders, count, order, wanted->priority_level);
  if (foreseen == ENGINE_DECIDES || foreseen == CLAIM_REFUSED) return foreseen;
  _Atomic int32_t *const held = &held_of(memory)[first_order(orders, order)];
  const uint32_t place = own->pushed % CLAIMS, position = from * CLAIMS + place;
  own->claim[place] = *wanted;
  own->claim[place].order = order;
  atomic_fetch_add(held, 1);
  atomic_store(&own->mark[place], marked(term));
  atomic_store(&own->pushed, own->pushed + 1);
  /* Either the worker finds the claim when it has opened the state, or this thread finds it open. */
  for (found = atomic_load(state); found >> TERM == term;) {
    if (what(found) == STANDING_CLAIMED) return CLAIM_WAITS;
    if (what(found) != STANDING_OPEN) break;
    if (atomic_load(&own->mark[place]) != marked(term)) return CLAIM_WAITS; /* no more: it has run */
    if (!atomic_compare_exchange_strong(state, &found, state_with(term, STANDING_CLAIMED, position))) continue;
    wake(state);
    return CLAIM_RUNS;
  }
  if (found == state_with(term, STANDING_WITHDRAWN, position)) return CLAIM_RUNS;
  /* The term is over: the claim is this thread's again, or somebody has found it. Its place stays empty. */
  uint32_t mark = marked(term);
  if (!atomic_compare_exchange_strong(&own->mark[place], &mark, 0)) return CLAIM_WAITS;
  atomic_fetch_sub(held, 1);
  return ENGINE_DECIDES;
}

/* The engine, by its ring, and tests, which are the I/O threads. */
EXPORT int claim_order(uint8_t *memory, uint32_t lanes, uint32_t from, const standing_claim *wanted, int32_t tenant,
                       int32_t samples) {
  const enum claimed claimed = standing_orders_claim(memory, lanes, from, wanted, tenant, samples);
  return claimed == CLAIM_RUNS || claimed == CLAIM_WAITS;
}

/* The engine: the worker of this term attends, and queries may come. Returns false where the one before has not ended. */
EXPORT int open_orders(uint8_t *memory, uint32_t before, uint32_t term) {
  uint32_t closed = state_with(before, STANDING_CLOSED, 0);
  for (uint32_t i = 0; i < MOST_STANDING; i++) atomic_store(&held_of(memory)[i], 0);
  return atomic_compare_exchange_strong(state_of(memory), &closed, state_with(term, STANDING_OPEN, 0));
}

/* The engine: no more claims are run. Returns the state: withdrawn where one runs, at whose end the worker ends the term
 * and rings; else closed. One of another term, or with a claim that is none, is left as it was found. */
EXPORT uint32_t withdraw_orders(uint8_t *memory, uint32_t lanes, uint32_t term) {
  _Atomic uint32_t *const state = state_of(memory);
  uint32_t found = atomic_load(state), to = found;
  do {
    if (found >> TERM != term || what(found) == STANDING_CLOSED || what(found) == STANDING_WITHDRAWN) return found;
    if (what(found) == STANDING_CLAIMED && !is_place(lanes, position_of(found))) return found;
    to = what(found) == STANDING_OPEN ? state_with(term, STANDING_CLOSED, 0)
                                      : state_with(term, STANDING_WITHDRAWN, position_of(found));
  } while (!atomic_compare_exchange_weak(state, &found, to));
  /* Its thread may not have looked at the state yet, and is not to take it back if its worker dies meanwhile. */
  const uint32_t position = position_of(to);
  if (what(to) == STANDING_WITHDRAWN) atomic_store(&ring_of(memory, position / CLAIMS)->mark[position % CLAIMS], 0);
  wake(state);
  return to;
}

/* The engine: the term has ended, whatever its worker does: it has not begun, or is dead. Returns the state before. */
EXPORT uint32_t close_orders(uint8_t *memory, uint32_t term) {
  const uint32_t before = atomic_exchange(state_of(memory), state_with(term, STANDING_CLOSED, 0));
  wake(state_of(memory));
  return before;
}

EXPORT uint32_t orders_state(uint8_t *memory) { return atomic_load(state_of(memory)); }

/* The engine: copies the claims that wait in this term, which has been withdrawn or closed, with those of a ring in
 * their order; they are the engine's from here on. Returns how many. `to` has room for all. */
EXPORT uint32_t take_waiting(uint8_t *memory, uint32_t lanes, uint32_t term, standing_claim *to) {
  const uint32_t state = atomic_load(state_of(memory));
  uint32_t count = 0;
  for (uint32_t number = 0; number < rings(lanes); number++) {
    ring *const from = ring_of(memory, number);
    const uint32_t end = atomic_load(&from->pushed);
    for (uint32_t at = end - CLAIMS; at != end; at++) {
      const uint32_t place = at % CLAIMS;
      uint32_t mark = marked(term);
      if (state == state_with(term, STANDING_WITHDRAWN, number * CLAIMS + place)) continue; /* it runs */
      if (atomic_compare_exchange_strong(&from->mark[place], &mark, 0)) to[count++] = from->claim[place];
    }
  }
  return count;
}

/* Whether a term has begun after this one. */
static bool is_over(uint32_t state, uint32_t term) {
  const uint32_t ahead = ((state >> TERM) - term) << TERM >> TERM;
  return ahead && ahead < 1u << (31 - TERM);
}

/* The position of a claim, NO_CLAIM or TERM_OVER. */
static int64_t read_state(uint32_t state, uint32_t term) {
  if (is_over(state, term)) return TERM_OVER;
  if (state >> TERM != term || what(state) == STANDING_OPEN) return NO_CLAIM;
  return what(state) == STANDING_CLOSED ? TERM_OVER : (int64_t)position_of(state);
}

/* The worker: returns the position of the claim to run, TERM_OVER at the end of the term or in a later one, and NO_CLAIM
 * after `patience_ns` or a signal. */
EXPORT int64_t next_claim(uint8_t *memory, uint32_t term, int64_t patience_ns) {
  _Atomic uint32_t *const state = state_of(memory);
  const uint32_t found = atomic_load(state);
  const int64_t claim = read_state(found, term);
  if (claim != NO_CLAIM) return claim;
  const struct timespec patience = {patience_ns / SECOND, patience_ns % SECOND};
  syscall(SYS_futex, state, FUTEX_WAIT, found, &patience, NULL, 0);
  return read_state(atomic_load(state), term);
}

EXPORT uint64_t claim_lines_bytes(void) { return sizeof(claim_lines); }

/* Before the first claim of a term. */
EXPORT void begin_claims(uint8_t *memory, uint32_t lanes, claim_lines *lines) {
  empty_lines(lines);
  for (uint32_t i = 0; i < rings(lanes); i++) lines->looked_at[i] = atomic_load(&ring_of(memory, i)->pushed) - CLAIMS;
  pace_of(memory)->last_ns = 0;
}

/* The tenant of an order, as lines know it. Others than the engine may have written the number. */
static uint32_t tenant_of(uint8_t *memory, uint32_t lanes, uint32_t order) {
  return order < MOST_STANDING ? first_order(orders_of(memory, lanes), order) : 0;
}

/* The claim that is to run next, or NO_CLAIM. */
static int64_t next_in_turn(uint8_t *memory, uint32_t lanes, uint32_t term, claim_lines *lines) {
  for (uint32_t number = 0; number < rings(lanes); number++) {
    ring *const from = ring_of(memory, number);
    const uint32_t end = atomic_load(&from->pushed);
    uint32_t *const at = &lines->looked_at[number];
    if (end - *at > CLAIMS) *at = end - CLAIMS;
    for (; *at != end; ++*at) {
      const uint32_t place = *at % CLAIMS;
      if (atomic_load(&from->mark[place]) == marked(term))
        join_line(lines, tenant_of(memory, lanes, from->claim[place].order), number * CLAIMS + place);
    }
  }
  for (claim_line *line; (line = next_line(lines)); leave_line(lines, line)) {
    const uint32_t position = line->first;
    if (atomic_load(&ring_of(memory, position / CLAIMS)->mark[position % CLAIMS]) == marked(term)) return position;
  }
  return NO_CLAIM;
}

/* Besides the claim that runs. */
static bool others_wait(uint8_t *memory) {
  int64_t held = 0;
  for (uint32_t i = 0; i < MOST_STANDING; i++) held += atomic_load_explicit(&held_of(memory)[i], memory_order_relaxed);
  return held > 1;
}

bool begins_late(uint8_t *memory, uint32_t lanes, const standing_claim *claim, int64_t begin_ns) {
  if (claim->order >= MOST_STANDING) return false;
  const int64_t late_ns = INT64_C(1000) * orders_of(memory, lanes)[claim->order].late_us;
  return late_ns && begin_ns - claim->arrival_ns > late_ns && others_wait(memory);
}

/* At most MOST_EACH_NS, whatever a worker has written. */
EXPORT uint32_t claim_pace_ns(uint8_t *memory) {
  const uint32_t each_ns = atomic_load_explicit(&pace_of(memory)->each_ns, memory_order_relaxed);
  return each_ns < MOST_EACH_NS ? each_ns : MOST_EACH_NS;
}

void pause_pace(uint8_t *memory) { pace_of(memory)->last_ns = 0; }

/* `waits`: whether another does now. */
static void note_pace(pace *of, const claim_end *end, bool waits) {
  int64_t elapsed_ns = end->end_ns - (of->last_ns ? of->last_ns : end->begin_ns);
  of->last_ns = waits ? end->end_ns : 0;
  if (end->refused) return;
  if (elapsed_ns < 0) elapsed_ns = 0;
  if (elapsed_ns > MOST_EACH_NS) elapsed_ns = MOST_EACH_NS;
  if (of->counted < SMOOTHED) of->counted++;
  else of->sum_ns -= of->sum_ns / SMOOTHED;
  of->sum_ns += elapsed_ns;
  const int64_t each_ns = of->sum_ns / of->counted;
  atomic_store_explicit(&of->each_ns, each_ns ? (uint32_t)each_ns : 1, memory_order_relaxed);
}

/* What its tenant is charged for a claim. */
static uint64_t service_ns(const claim_end *end) {
  const int64_t elapsed_ns = end->end_ns - end->begin_ns;
  return elapsed_ns < 0 ? 0 : elapsed_ns > MOST_EACH_NS ? MOST_EACH_NS : (uint64_t)elapsed_ns;
}

/* The worker: this claim has ended, and the next one that waits is to run, or another may come. `done`: whose thread is
 * told, and woken with `wakes` as in report_done; NULL: that is the engine's to do. Returns whether the term has ended
 * with it.
 *
 * The query is in the list first, so that it is told of even if this worker is killed; then the next one may be claimed,
 * since a client may send it as soon as it has its answer. */
int end_claim(uint8_t *memory, uint32_t term, uint32_t position, claim_lines *lines, const done_queries *done,
              const int32_t *wakes, const claim_end *how) {
  _Atomic uint32_t *const state = state_of(memory);
  const uint32_t lanes = done->lanes;
  const uint32_t open = state_with(term, STANDING_OPEN, ++pace_of(memory)->openings % (1u << (TERM - POSITION)));
  const standing_claim *const claim = claim_at(memory, lanes, position);
  const caller of = claim->caller;
  bool tells = wakes;
  uint32_t found = state_with(term, STANDING_CLAIMED, position);
  claim_end end = *how;
  if (tells) {
    done_query times = done_now(end.begin_ns, end.end_ns - end.begin_ns, end.end_ns);
    times.unasked = atomic_load(state) == found;
    times.refused = end.refused;
    tells = done_queries_put(done, &of, &times);
    end.told_ns = times.ended_ns;
  }
  *end_of(memory) = end;
  const uint32_t tenant = tenant_of(memory, lanes, claim->order);
  count_service(lines, tenant, service_ns(&end), orders_of(memory, lanes)[tenant].wait_ns);
  atomic_fetch_sub(&held_of(memory)[tenant], 1);
  atomic_store(&ring_of(memory, position / CLAIMS)->mark[position % CLAIMS], 0);
  int64_t next = next_in_turn(memory, lanes, term, lines);
  bool over = !atomic_compare_exchange_strong(
      state, &found, next == NO_CLAIM ? open : state_with(term, STANDING_CLAIMED, (uint32_t)next));
  if (!over && next == NO_CLAIM && (next = next_in_turn(memory, lanes, term, lines)) != NO_CLAIM) {
    found = open; /* one came meanwhile; if that fails, its thread has seen the state open, or the engine has closed it */
    atomic_compare_exchange_strong(state, &found, state_with(term, STANDING_CLAIMED, (uint32_t)next));
  }
  note_pace(pace_of(memory), &end, next != NO_CLAIM);
  const uint64_t once = 1;
  while (tells && write(wakes[of.lane], &once, sizeof once) < 0 && errno == EINTR) continue;
  if (over) {
    found = state_with(term, STANDING_WITHDRAWN, position);
    over = atomic_compare_exchange_strong(state, &found, state_with(term, STANDING_CLOSED, 0));
  }
  return over;
}

/* The same, for Python. */
EXPORT int end_claim_at(uint8_t *memory, uint32_t lanes, uint32_t term, uint32_t position, claim_lines *lines, uint8_t *done,
                        uint32_t places, const int32_t *wakes, const claim_end *how) {
  const done_queries to = {done, lanes, places};
  return end_claim(memory, term, position, lines, &to, wakes, how);
}
