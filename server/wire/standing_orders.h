/* Standing orders: what an I/O thread may order of a worker in the engine's place, while the engine has nothing to
 * decide. ipc/standing_orders.py is the engine's and the worker's end, and says how the three go together.
 *
 * Memory: the state, how the last claim ended, a ring of claims for each I/O thread and one for the engine, the number of
 * orders, and the orders, which change only while the state is closed.
 */
#ifndef VELTAIR_STANDING_ORDERS_H
#define VELTAIR_STANDING_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "done_queries.h"

enum { MOST_STANDING = 16, STANDING_VERSIONS = 219, MOST_RINGS = 65 };

/* CLAIMS: places of a ring. At most MOST_CLAIMS_WAITING may wait, so that the place of a claim which has ended is not filled while
 * anybody may still look at it. */
enum { CLAIMS = 256, MOST_CLAIMS_WAITING = 192 };

enum { DEFAULT_PRIORITY_LEVEL = 3 }; /* veltair/types.py; queries of other levels wait for the engine's decision */

/* What the lowest two bits of the state say. In a claimed or withdrawn one the position of the claim that runs stands
 * above them: ring * CLAIMS + place. In an open one it is the number of times that the worker has opened it, so that
 * nobody takes one opening for another. The rest is the term, the number of times that there were orders. */
enum { STANDING_CLOSED, STANDING_OPEN, STANDING_CLAIMED, STANDING_WITHDRAWN /* it closes when that claim has ended */ };

/* What is asked for. */
typedef struct {
  caller caller;
  uint32_t order, slot;
  int64_t arrival_ns, deadline_ns; /* as in a lane_query */
  int32_t priority_level;
  uint32_t unused[3];
} standing_claim; /* 64 bytes */

typedef struct {
  int32_t tenant, samples;
  uint32_t layers;
  uint32_t wait_ns;                     /* what its tenant's claims together may take; 0: it runs at once or not at all */
  uint32_t late_us;                     /* one that others wait for is refused where it would begin later after its arrival; 0: none is */
  uint8_t cores[128];                   /* as in a worker's cell */
  uint32_t versions[STANDING_VERSIONS]; /* of each layer */
} standing_order; /* 1,024 bytes */

uint64_t standing_orders_bytes(uint32_t lanes);

/* What becomes of a query. */
enum claimed { ENGINE_DECIDES, CLAIM_RUNS, CLAIM_WAITS, CLAIM_REFUSED /* too many wait: it would begin late */ };

/* The I/O thread, by its own ring: a worker runs this query, of so many samples of a tenant, without a decision, if it
 * may. `wanted` has no order yet. */
enum claimed standing_orders_claim(uint8_t *memory, uint32_t lanes, uint32_t from, const standing_claim *wanted,
                                   int32_t tenant, int32_t samples);

/* For how long the line of these queries, which is full, is not worth another look: it cannot run empty meanwhile. */
int64_t standing_orders_pause(uint8_t *memory, uint32_t lanes, int32_t tenant, int32_t samples);

/* What became of the last claim. */
typedef struct {
  uint32_t stop, reported, refused /* it would have begun late */, unused;
  int64_t begin_ns, end_ns, told_ns;
} claim_end;

/* The worker's end; standing_orders.c describes each. */
enum { NO_CLAIM = -1, TERM_OVER = -2 };
const standing_claim *claim_at(uint8_t *memory, uint32_t lanes, uint32_t position);
int64_t next_claim(uint8_t *memory, uint32_t term, int64_t patience_ns);
bool begins_late(uint8_t *memory, uint32_t lanes, const standing_claim *claim, int64_t begin_ns); /* and is to be refused */
void pause_pace(uint8_t *memory); /* what comes before the next claim does not count for it */
typedef struct claim_lines claim_lines;
void begin_claims(uint8_t *memory, uint32_t lanes, claim_lines *lines);
int end_claim(uint8_t *memory, uint32_t term, uint32_t position, claim_lines *lines, const done_queries *done,
              const int32_t *wakes, const claim_end *how);

#endif
