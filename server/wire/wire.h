/* The native front: I/O threads that read requests from sockets, answer those with a plan, and pass all others on to
 * Python. What the parts share; wire.c is what Python calls.
 *
 *   io_thread.c    one loop of epoll: connections, the engine's lane, Python's commands, deadlines
 *   grpc.c         the calls of an HTTP/2 connection
 *   queries.c      requests with a plan: into a slot, to the engine, and back as a response
 *   python_calls.c calls that Python handles: events to it, commands from it
 *   plans.c, slots.c, lane.c
 */
#ifndef VELTAIR_WIRE_H
#define VELTAIR_WIRE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../../veltair/grpc/native/http2.h"
#include "lane.h"
#include "plans.h"
#include "slots.h"

enum { MOST_THREADS = 64 };

/* One engine process, as the front sees it. It is shared by all threads and freed when the last has let go of it. */
typedef struct {
  atomic_int references;
  uint8_t *pool; /* mapped by Python, which keeps it until no thread uses it */
  int32_t tenants, slots;
  const uint64_t *region_offset, *slot_bytes; /* by tenant; copies behind this struct */
  lane lanes[MOST_THREADS];
  int bell; /* wakes the engine */
  slot_table *free;
  struct query **held; /* by tenant * slots + slot; each is touched by its own thread alone */
} engine_link;

struct call;
struct connection;

/* A request with a plan, from its submission to the engine's answer. */
typedef struct query {
  struct query *next, *previous; /* those of its thread */
  struct call *call;             /* NULL once nobody waits any more */
  plan *plan;
  uint64_t id;
  int32_t slot;
  int64_t arrival_ns, deadline_ns; /* 0: none */
  int64_t submitted_ns;
  bool aborted;                    /* the engine has been told */
  uint32_t id_bytes;
  uint8_t request_id[]; /* the field, as it came */
} query;

enum { STAGE_READ, STAGE_HANDOFF, STAGE_WAIT, STAGE_EXECUTE, STAGE_GAP, STAGE_REPORT, STAGE_ANSWER, STAGES }; /* stages.STAGES */

/* How an ended query is counted: request_counts.ENDED_REQUEST, its tenant, and the socket of its answer. */
typedef struct {
  int64_t end_ns, duration_ns, stage_ns[STAGES];
  int32_t batch, outcome, tenant, socket; /* -1: nothing more is to be counted of it */
} ended_query;

enum { COUNTED_OK, COUNTED_INVALID, COUNTED_OVERLOADED, COUNTED_DEADLINE, COUNTED_CANCELLED, COUNTED_FAILED };
enum { DONE, REJECTED, CANCELLED, FAILED, WORKER_DIED, OUTCOMES }; /* of the engine: lane.OUTCOMES */

/* A status of gRPC with its text. */
typedef struct {
  int32_t code;
  const char *text;
} refusal;

enum call_state { RECEIVING, QUERY, PYTHON, OVER };

/* A call of gRPC. */
typedef struct call {
  h2_stream *stream;
  struct connection *connection;
  enum call_state state;
  bool answerable;    /* until its end it may become a query: it is ModelInfer without compression */
  bool ended;         /* the client sends no more */
  int64_t arrival_ns, deadline_ns;
  uint8_t *fields; /* python_calls.c: the head, as Python reads it */
  size_t fields_bytes;
  const uint8_t *tenant; /* in `fields` */
  size_t tenant_bytes;
  uint8_t *message;
  size_t message_bytes;
  query *query;
  uint64_t python; /* its number there; 0: Python does not know it */
  int taken;       /* messages that Python has and has not begun to handle */
  bool tell_flushed; /* Python waits until everything is sent */
} call;

typedef struct connection {
  struct connection *next, *previous; /* those of its thread */
  struct connection *next_dirty;
  struct io_thread *thread;
  h2_connection *h2;
  int fd;
  bool dirty, wants_write, broken;
} connection;

typedef struct command command;

typedef struct io_thread {
  struct wire *wire;
  int index;
  pthread_t thread;
  int epoll, wake;
  connection *connections, *dirty;
  query *queries;
  int64_t next_deadline_ns; /* no query has an earlier one; INT64_MAX: none */
  engine_link *link;
  /* Read by this thread, written by Python's. */
  pthread_mutex_t lock;
  command *first_command, **last_command;
  engine_link *next_link;
  bool link_changed, stopping, leaving, idle;
  const char *link_text; /* why the queries of the last link fail */
  pthread_cond_t settled;
  bool left; /* connections know that no calls begin any more */
  /* Python's calls by number. */
  call **calls;
  uint32_t *generation, *free_call;
  uint32_t calls_size, calls_free;
  /* Counts that Python takes from time to time. */
  ended_query *ended;
  uint32_t ended_count, unsent; /* the last of them are not sent yet */
  uint8_t *scratch; /* a response that is put together */
  size_t scratch_bytes;
} io_thread;

typedef struct call_event call_event;

typedef struct wire {
  int threads;
  io_thread *thread;
  int listener;
  int home; /* the core that the threads stay on; -1: any */
  size_t max_message_bytes;
  plan_table *plans;
  atomic_uint_fast64_t next_query; /* its number; those of Python come from here too */
  atomic_bool open;                 /* new queries are taken */
  refusal full, read_late, expired; /* no slot; deadline before the request was read; deadline before its answer */
  int32_t outcome_code[OUTCOMES];
  const char *infer_path, *tenant_header;
  const uint8_t *head, *trailers; /* header blocks of an answer */
  size_t head_bytes, trailers_bytes;
  pthread_mutex_t lock;
  call_event *first_event, **last_event;
  int events; /* wakes Python */
} wire;

int64_t now_ns(void);

/* io_thread.c */
bool thread_start(wire *owner, int index);
void thread_listen(io_thread *thread);
void mark_dirty(connection *connection);
void thread_wake(io_thread *thread);

/* grpc.c */
extern const h2_handler grpc_handler;
void grpc_answer(call *call, const uint8_t *message, size_t size); /* with its prefix */
void grpc_finish(call *call, int32_t code, const char *text, size_t size);

/* queries.c */
/* The head of a ModelInferRequest as a key. False for a message that only Python can read. */
bool message_key(const uint8_t *message, size_t size, const uint8_t *tenant, size_t tenant_bytes, plan_key *key);
/* Whether the call's message became a query or was refused, which ends the call; if not, Python has to look at it. */
bool query_begin(call *call, const uint8_t *message, size_t size);
void query_abandon(query *query); /* the client left */
void queries_end(io_thread *thread); /* all that the engine has answered */
void queries_sent(connection *at);   /* what it has to send is with the socket, as far as that takes it */
void queries_expire(io_thread *thread, int64_t now);
void queries_fail(io_thread *thread, const char *text); /* the engine is gone */
void link_release(engine_link *link);

/* python_calls.c */
enum { NOTICE_COUNTS, NOTICE_IDLE }; /* for Python as such, not for one call */
uint8_t *pack_fields(const hpack_field *fields, int count, size_t *size); /* NULL without memory */
void python_open(call *call);      /* and what it has received */
void python_message(call *call, uint8_t *data, size_t size, bool compressed); /* takes the data */
void python_ended(call *call);
void python_aborted(call *call, int64_t code);
void python_flushed(call *call);
void python_forget(call *call);
void post_notice(wire *owner, int kind);
void commands_run(io_thread *thread);
void commands_drop(io_thread *thread);

#endif
