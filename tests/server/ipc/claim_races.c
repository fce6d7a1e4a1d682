/* Threads claim, a worker runs, and an engine opens and withdraws, each as fast as it can: every claim is run or taken
 * back by the engine once, and what was refused is neither. Prints how often each happened; gives 1 where that fails. */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/wire/claim_lines.h"

enum { LANES = 3, TERMS = 1 << 15, COUNT_BYTES = 64 };

uint64_t standing_orders_at(uint32_t lanes);
int open_orders(uint8_t *memory, uint32_t before, uint32_t term);
uint32_t withdraw_orders(uint8_t *memory, uint32_t lanes, uint32_t term);
uint32_t orders_state(uint8_t *memory);
uint32_t take_waiting(uint8_t *memory, uint32_t lanes, uint32_t term, standing_claim *to);

static uint8_t *memory;
static uint64_t most; /* queries of a thread */
static _Atomic uint8_t *claimed, *seen; /* by query */
static _Atomic uint64_t done, attending;
static _Atomic int over;

static void *claim(void *argument) {
  const uint32_t lane = (uint32_t)(uintptr_t)argument;
  for (uint64_t i = 0; i < most; i++) {
    const uint64_t query = i * LANES + lane;
    const standing_claim wanted = {.caller = {.query = query, .lane = lane}, .priority_level = DEFAULT_PRIORITY_LEVEL};
    claimed[query] = standing_orders_claim(memory, LANES, lane, &wanted, 0, 1) != ENGINE_DECIDES;
    if (!claimed[query]) sched_yield();
  }
  atomic_fetch_add(&done, 1);
  return NULL;
}

static void *attend(void *unused) {
  const done_queries nobody = {.lanes = LANES};
  static claim_lines lines;
  for (uint64_t number = 1;; number++) {
    const uint32_t term = number % TERMS;
    begin_claims(memory, LANES, &lines);
    atomic_store(&attending, number);
    for (int64_t position; (position = next_claim(memory, term, 1000000)) != TERM_OVER;) {
      if (position == NO_CLAIM && over) return NULL;
      if (position == NO_CLAIM) continue;
      atomic_fetch_add(&seen[claim_at(memory, LANES, (uint32_t)position)->caller.query], 1);
      if (end_claim(memory, term, (uint32_t)position, &lines, &nobody, NULL, &(claim_end){.stop = 1})) break;
    }
  }
  return unused;
}

int main(int count, char **arguments) {
  most = count > 1 ? strtoull(arguments[1], NULL, 10) : 1000000;
  memory = aligned_alloc(128, (standing_orders_bytes(LANES) + 127) / 128 * 128);
  claimed = calloc(most * LANES, 1);
  seen = calloc(most * LANES, 1);
  standing_claim *const taken = calloc((LANES + 1) * CLAIMS, sizeof *taken);
  if (!memory || !claimed || !seen || !taken) return 2;
  memset(memory, 0, standing_orders_bytes(LANES));
  *(uint32_t *)(void *)(memory + standing_orders_at(LANES)) = 1;
  const standing_order order = {.samples = 1, .layers = 1, .wait_ns = 1000000};
  memcpy(memory + standing_orders_at(LANES) + COUNT_BYTES, &order, sizeof order);
  pthread_t worker, thread[LANES];
  pthread_create(&worker, NULL, attend, NULL);
  for (uintptr_t i = 0; i < LANES; i++) pthread_create(&thread[i], NULL, claim, (void *)i);
  uint64_t terms = 0, taken_back = 0, taken_over = 0;
  while (atomic_load(&done) < LANES) {
    const uint32_t term = ++terms % TERMS;
    while (atomic_load(&attending) < terms) sched_yield();
    if (!open_orders(memory, (terms - 1) % TERMS, term)) return 1;
    for (uint64_t turn = terms * 7919 % 64; turn; turn--) sched_yield();
    const uint32_t state = withdraw_orders(memory, LANES, term);
    const uint32_t waiting = take_waiting(memory, LANES, term, taken);
    for (uint32_t i = 0; i < waiting; i++) atomic_fetch_add(&seen[taken[i].caller.query], 1);
    taken_back += waiting;
    taken_over += (state & 3) == STANDING_WITHDRAWN;
    while ((orders_state(memory) & 3) != STANDING_CLOSED) sched_yield();
  }
  over = 1;
  for (int i = 0; i < LANES; i++) pthread_join(thread[i], NULL);
  pthread_join(worker, NULL);
  uint64_t ran = 0, wrong = 0;
  for (uint64_t query = 0; query < most * LANES; query++) {
    ran += claimed[query];
    wrong += claimed[query] != seen[query];
  }
  printf("%llu terms, %llu claims, %llu taken back, %llu taken over, %llu wrong\n", (unsigned long long)terms,
         (unsigned long long)ran, (unsigned long long)taken_back, (unsigned long long)taken_over, (unsigned long long)wrong);
  return wrong || !taken_back || !taken_over;
}
