#include "lane.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE = 128 /* bytes: a word that one side writes shares no cache lines with another */ };

uint64_t lane_bytes(uint64_t records) { return 4 * LINE + records * (sizeof(lane_query) + sizeof(lane_end)); }

lane lane_at(void *memory, uint64_t records) {
  uint8_t *at = memory;
  return (lane){
      .query_head = (uint64_t *)at,
      .query_tail = (uint64_t *)(at + LINE),
      .end_head = (uint64_t *)(at + 2 * LINE),
      .end_tail = (uint64_t *)(at + 3 * LINE),
      .recalls = (uint64_t *)(at + 3 * LINE) + 1,
      .query = (lane_query *)(at + 4 * LINE),
      .end = (lane_end *)(at + 4 * LINE + records * sizeof(lane_query)),
      .records = records,
  };
}

static uint64_t load(const uint64_t *word) { return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_acquire); }

static void store(uint64_t *word, uint64_t value) { atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_release); }

bool lane_push(lane *to, const lane_query *record) {
  const uint64_t tail = *to->query_tail;
  if (tail - load(to->query_head) >= to->records) return false;
  to->query[tail & (to->records - 1)] = *record;
  store(to->query_tail, tail + 1);
  return true;
}

uint64_t lane_unread(const lane *from) { return *from->query_tail - load(from->query_head); }

uint64_t lane_ends(const lane *from) { return load(from->end_tail); }

uint64_t lane_recalls(const lane *from) { return load(from->recalls); }

bool lane_pop(lane *from, uint64_t ends, lane_end *record) {
  const uint64_t head = *from->end_head;
  if (head == ends) return false;
  memcpy(record, &from->end[head & (from->records - 1)], sizeof *record);
  store(from->end_head, head + 1);
  return true;
}
