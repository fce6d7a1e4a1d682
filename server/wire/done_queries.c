#define _GNU_SOURCE
#include "done_queries.h"

#include <stdatomic.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { LINE = 128 };

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

EXPORT uint64_t done_queries_bytes(uint32_t lanes, uint32_t places) {
  return (uint64_t)lanes * LINE + (uint64_t)places * sizeof(done_query);
}

static _Atomic uint32_t *head_of(const done_queries *of, uint32_t lane) {
  return (_Atomic uint32_t *)(void *)(of->memory + (uint64_t)lane * LINE);
}

done_query *done_queries_at(const done_queries *of, uint32_t place) {
  return (done_query *)(void *)(of->memory + (uint64_t)of->lanes * LINE) + place;
}

done_query done_now(int64_t begin_ns, int64_t execute_ns, int64_t end_ns) {
  return (done_query){.execute_ns = execute_ns, .begin_ns = begin_ns, .end_ns = end_ns, .ended_ns = now_ns()};
}

bool done_queries_put(const done_queries *to, const caller *of, const done_query *times) {
  if (of->lane >= to->lanes || of->place >= to->places) return false;
  done_query *record = done_queries_at(to, of->place);
  *record = *times;
  record->query = of->query;
  record->taken_ns = of->taken_ns;
  _Atomic uint32_t *head = head_of(to, of->lane);
  uint32_t first = atomic_load_explicit(head, memory_order_relaxed);
  do record->next = first;
  while (!atomic_compare_exchange_weak_explicit(head, &first, of->place + 1, memory_order_release, memory_order_relaxed));
  return first == 0;
}

uint32_t done_queries_take(const done_queries *from, uint32_t lane) {
  if (!atomic_load_explicit(head_of(from, lane), memory_order_relaxed)) return 0; /* as mostly; then nothing is written */
  uint32_t newest = atomic_exchange_explicit(head_of(from, lane), 0, memory_order_acquire), oldest = 0;
  for (uint32_t left = from->places; left && newest && newest <= from->places; left--) { /* turns the list round */
    uint32_t *next = &done_queries_at(from, newest - 1)->next;
    const uint32_t before = *next;
    *next = oldest;
    oldest = newest;
    newest = before;
  }
  return oldest;
}

/* The worker: these queries are done. `wakes` are eventfds, one for each lane, of which there are
 * 64 at most. Returns when the front was told. */
EXPORT int64_t report_done(uint8_t *memory, uint32_t lanes, uint32_t places, const int32_t *wakes, const uint8_t *callers,
                           uint32_t count, int64_t begin_ns, int64_t execute_ns, int64_t end_ns) {
  const done_queries to = {memory, lanes, places};
  const done_query times = done_now(begin_ns, execute_ns, end_ns);
  uint64_t told = 0; /* a bit for each lane */
  for (uint32_t i = 0; i < count; i++) {
    caller each;
    memcpy(&each, callers + i * sizeof each, sizeof each); /* nothing aligns them */
    if (done_queries_put(&to, &each, &times)) told |= UINT64_C(1) << each.lane;
  }
  for (uint32_t lane = 0; lane < lanes; lane++) {
    const uint64_t once = 1;
    if (told >> lane & 1 && write(wakes[lane], &once, sizeof once) < 0) continue; /* it is full: the thread is awake */
  }
  return times.ended_ns;
}

/* For tests, which are the front's end: copies the oldest records of a thread's list, at most `most` of them. */
EXPORT uint32_t take_done(uint8_t *memory, uint32_t lanes, uint32_t places, uint32_t lane, done_query *to, uint32_t most) {
  const done_queries from = {memory, lanes, places};
  uint32_t count = 0;
  for (uint32_t at = done_queries_take(&from, lane); at && count < most; count++) {
    to[count] = *done_queries_at(&from, at - 1);
    at = to[count].next;
  }
  return count;
}
