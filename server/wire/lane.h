/* A lane: two rings in memory that one I/O thread of the front and the engine share. ipc/lane.py is the engine's end,
 * and the reference of the layout.
 *
 * Each ring has one writer and one reader, and records of fixed size. A ring never overruns: a slot has one query at a
 * time, a query five records at most, and a thread orders nothing by itself while it is half full.
 */
#ifndef VELTAIR_LANE_H
#define VELTAIR_LANE_H

#include <stdbool.h>
#include <stdint.h>

enum {
  LANE_INFER,
  LANE_ABORT,
  LANE_RAN,  /* by a standing order; it has ended */
  LANE_HELD, /* after a recall: the thread waits for its end */
  LANE_ALL   /* these were all */
};

typedef struct {
  uint64_t query;
  int32_t kind, tenant, slot, batch;
  int64_t arrival_ns, deadline_ns; /* CLOCK_MONOTONIC; a deadline of 0: none */
  int32_t priority_level, traced;
  int32_t left, refused; /* nobody waited any more for what ran; it did not, since it would have begun late */
  int64_t begin_ns, end_ns, ended_ns; /* of what ran: stages.EngineStamps */
} lane_query; /* 80 bytes: front to engine */

enum { LANE_REASON = 192 };
typedef struct {
  uint64_t query;
  int32_t tenant, slot;
  uint16_t outcome; /* lane.OUTCOMES */
  uint16_t refusal; /* of a rejected one: RefusalReason.number */
  uint32_t reason_bytes;
  int64_t execute_ns;
  int64_t taken_ns, begin_ns, end_ns, ended_ns; /* stages.EngineStamps */
  char reason[LANE_REASON];
} lane_end; /* 256 bytes: engine to front */

typedef struct {
  uint64_t *query_head, *query_tail, *end_head, *end_tail;
  uint64_t *recalls;  /* how often the engine has asked what the thread waits for */
  uint64_t recalled;  /* how often it was told */
  lane_query *query;
  lane_end *end;
  uint64_t records; /* of each ring, a power of two */
} lane;

/* The lane at `memory`; its size in bytes is lane_bytes(records). */
lane lane_at(void *memory, uint64_t records);
uint64_t lane_bytes(uint64_t records);

bool lane_push(lane *to, const lane_query *record); /* false: full */
uint64_t lane_unread(const lane *from);             /* records that the engine has not read */
uint64_t lane_ends(const lane *from);               /* how many were ever put in */
uint64_t lane_recalls(const lane *from);
bool lane_pop(lane *from, uint64_t ends, lane_end *record); /* false: that many were taken */

#endif
