/* Queries that are done, as workers tell the I/O threads of the front, past the engine. ipc/done_queries.py is the
 * workers' end.
 *
 * Each I/O thread has a list, and each slot a record, since it has one query at a time. Any worker puts records at the
 * head of a list; the thread takes the whole list. A worker that is killed leaves either no trace or a record in full.
 * Memory: the heads of the lists, each in a cache line pair of its own, then the records.
 */
#ifndef VELTAIR_DONE_QUERIES_H
#define VELTAIR_DONE_QUERIES_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
  uint64_t query;
  int64_t execute_ns;
  int64_t taken_ns, begin_ns, end_ns, ended_ns; /* stages.EngineStamps */
  uint32_t next;                                /* the place of the next in the list, plus one; 0: none */
  uint32_t unasked;                             /* it ran without the engine (standing_orders.h) */
  uint32_t refused;                             /* it did not run, since it would have begun late */
  uint32_t unused;
} done_query; /* 64 bytes */

/* Who waits for a query, from the engine by way of its worker. */
typedef struct {
  uint64_t query;
  int64_t taken_ns;
  uint32_t lane;  /* the index of its I/O thread */
  uint32_t place; /* tenant * slots + slot */
} caller;

typedef struct {
  uint8_t *memory;
  uint32_t lanes, places;
} done_queries;

int64_t now_ns(void); /* CLOCK_MONOTONIC, as all times here */

uint64_t done_queries_bytes(uint32_t lanes, uint32_t places);

/* The times of queries whose blocks have ended, told of now. */
done_query done_now(int64_t begin_ns, int64_t execute_ns, int64_t end_ns);

/* Puts this query, which is done, into the list of its caller's thread. It takes all but the query from `times`. Returns
 * whether the list was empty: then the thread is to be woken; else whoever put the first one in does that. */
bool done_queries_put(const done_queries *to, const caller *of, const done_query *times);

/* Takes a thread's list. Returns the place of the oldest, plus one; 0: it was empty. */
uint32_t done_queries_take(const done_queries *from, uint32_t lane);

/* The record of a slot that was taken. `place` is less than `places`. */
done_query *done_queries_at(const done_queries *of, uint32_t place);

#endif
