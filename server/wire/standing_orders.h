/* Standing orders: what an I/O thread may order of a worker in the engine's place, one query at a time, while nothing
 * else runs. ipc/standing_orders.py is the engine's and the worker's end, and says how the three go together.
 *
 * Memory: the state and the withdrawal, each in a cache line pair of its own, a claim for each I/O thread, the number of
 * orders, and the orders, which change only while the state is closed.
 */
#ifndef VELTAIR_STANDING_ORDERS_H
#define VELTAIR_STANDING_ORDERS_H

#include <stdbool.h>
#include <stdint.h>

#include "done_queries.h"

enum { MOST_STANDING = 16, STANDING_VERSIONS = 220 };

/* What of the state its lowest byte says; the rest is the term, the number of times that there were orders. */
enum { STANDING_CLOSED, STANDING_OPEN, STANDING_CLAIMED /* by the first I/O thread; above: by the others */ };

/* What a thread asks for; it touches it only while the state is open. */
typedef struct {
  caller caller;
  uint32_t order, slot;
} standing_claim;

typedef struct {
  int32_t tenant, samples;
  uint32_t layers, unused;
  uint8_t cores[128];                   /* as in a worker's cell */
  uint32_t versions[STANDING_VERSIONS]; /* of each layer */
} standing_order; /* 1,024 bytes */

uint64_t standing_orders_bytes(uint32_t lanes);

/* The I/O thread: the worker runs this query, of so many samples of a tenant, at once. False: the engine has to decide. */
bool standing_orders_claim(uint8_t *memory, uint32_t lanes, const caller *of, int32_t tenant, int32_t samples, uint32_t slot);

#endif
