/* Traced queries: by whose trace each is (W3C Trace Context), and what is known of them once they have ended.
 *
 * Off, which is the default, a request costs one load of a flag. On, the field `traceparent` is looked for in its head;
 * a query that is not sampled keeps a context of zeros and costs nothing more.
 */
#ifndef VELTAIR_TRACES_H
#define VELTAIR_TRACES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  uint8_t trace[16], parent[8]; /* zeros: the query begins a trace of its own */
  uint64_t query;               /* its number; 0: the engine has never had it */
  uint8_t sampled;              /* 0: it is not traced */
  uint8_t unused[3];
  uint32_t state; /* the number of its tracestate among those of its thread; 0: it has none */
} trace_context; /* 40 bytes, in native.ENDED_TRACE */

/* What a caller's system says to itself: the values of `tracestate`, with commas between them. Few requests have one, so
 * they are kept apart. */
enum { MOST_STATE = 512 /* bytes; a longer one is left out */, KEPT_STATES = 1024 /* of a thread; then the oldest goes */ };
typedef struct {
  uint32_t number, bytes;
  uint8_t text[MOST_STATE];
} trace_state;

struct io_thread;

/* The context that a head of HTTP/1.1 says. A traceparent that is not valid is none, and so are several; a query without
 * one is sampled by chance. */
trace_context trace_of_head(struct io_thread *thread, const uint8_t *head, size_t size);
/* Of fields as pack_fields has packed them. */
trace_context trace_of_fields(struct io_thread *thread, const uint8_t *fields, size_t size);

#endif
