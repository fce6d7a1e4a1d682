/* The native front: I/O threads that read requests from sockets, answer those with a plan, and pass all others on to
 * Python. What the parts share; wire.c is what Python calls.
 *
 *   io_thread.c       one loop of epoll: connections, the engine's lane, Python's commands, deadlines
 *   grpc.c            the calls of gRPC, grpc_connection.c their connection, grpc_messages.c their messages
 *   http1.c           the requests of an HTTP/1.1 connection, http1_head.c their heads, http1_body.c what follows them;
 *                     http1_forward.c passes on those that are uvicorn's
 *   queries.c         requests with a plan: into a slot, to the engine, and back as a response
 *   python_calls.c    calls of gRPC that Python handles: events to it, commands from it
 *   budgets.c         what clients may use up before anything is decided about their queries
 *   traces.c          the contexts of traced queries
 *   plans.c, slots.c, lane.c, done_queries.c, standing_orders.c, buffer.c, tls.c
 */
#ifndef VELTAIR_WIRE_H
#define VELTAIR_WIRE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "../../veltair/grpc/native/http2.h"
#include "budgets.h"
#include "done_queries.h"
#include "gates.h"
#include "lane.h"
#include "plans.h"
#include "slots.h"
#include "standing_orders.h"
#include "tls.h"
#include "traces.h"

enum { MOST_THREADS = 64 };
enum { GRPC, HTTP, ADMIN, LISTENERS }; /* ADMIN: over HTTP, but no inference */

/* One engine process, as the front sees it. It is shared by all threads and freed when the last has let go of it. */
typedef struct {
  atomic_int references;
  int32_t tenants, slots;
  uint8_t **region;     /* by tenant: its slots, mapped by Python, which keeps them until no thread uses them */
  uint64_t *slot_bytes; /* likewise; both are behind this struct */
  lane lanes[MOST_THREADS];
  done_queries done;
  uint8_t *standing; /* standing_orders.h */
  gate *gates; /* by tenant * PRIORITY_LEVELS + priority level - 1 */
  int bell; /* wakes the engine */
  slot_table *free;
  struct query **held; /* by tenant * slots + slot; each is touched by its own thread alone */
} engine_link;

struct connection;
struct query;

/* Who waits for an answer: a call of gRPC, or an HTTP/1.1 connection. */
typedef struct {
  struct connection *connection;
  struct query *query;             /* NULL: none has begun */
  int64_t arrival_ns, deadline_ns; /* 0: none */
  trace_context trace;
} asker;

/* A request that may have a plan, where it was received. */
typedef struct {
  plan_key key;
  const uint8_t *id; /* what its query keeps for the response */
  size_t id_bytes;
  const uint8_t *tensors, *end; /* behind the head */
} request;

/* A request with a plan, from its submission to the engine's answer. */
typedef struct query {
  struct query *next, *previous; /* those of its thread */
  asker *asker;                  /* NULL once nobody waits any more */
  plan *plan;
  uint64_t id;
  int32_t slot;
  int64_t arrival_ns, deadline_ns; /* 0: none */
  int64_t submitted_ns;
  int64_t queue_ns, compute_ns;    /* once it is done: from its arrival to its first block, and in blocks */
  trace_context trace;
  bool aborted;                    /* the engine has been told */
  uint32_t id_bytes;
  uint8_t request_id[]; /* request.id */
} query;

enum { STAGE_READ, STAGE_HANDOFF, STAGE_WAIT, STAGE_EXECUTE, STAGE_GAP, STAGE_REPORT, STAGE_ANSWER, STAGES }; /* stages.STAGES */

/* How an ended query is counted: request_counts.ENDED_REQUEST, its tenant, and the socket of its answer. */
typedef struct {
  int64_t end_ns, duration_ns, stage_ns[STAGES];
  int32_t batch, outcome, reason, tenant, socket; /* -1: nothing more is to be counted of it */
} ended_query;

/* What the client gave as its request's id, for the access log. */
typedef struct {
  uint8_t size;
  uint8_t text[127]; /* cut where it is longer */
} ended_id;

/* A traced query that has ended. */
typedef struct {
  ended_query ended;
  ended_id id;
  trace_context trace;
  int32_t protocol; /* GRPC or HTTP */
  uint32_t state_bytes;
  uint8_t state[MOST_STATE]; /* trace_state */
} ended_trace; /* native.ENDED_TRACE */

enum { COUNTED_OK, COUNTED_INVALID, COUNTED_OVERLOADED, COUNTED_DEADLINE, COUNTED_CANCELLED, COUNTED_FAILED };
enum { DONE, REJECTED, CANCELLED, FAILED, WORKER_DIED, OUTCOMES }; /* of the engine: lane.OUTCOMES */

/* What an error is over each protocol: classes of errors.py. */
typedef struct {
  int32_t grpc, http;
} status;

typedef struct {
  status status;
  const char *text;
} refusal;

/* Why a query is refused: RefusalReason.number. */
enum { NO_REFUSAL, LATE_ON_ARRIVAL, DEADLINE, SLOTS, OVERLOAD, MEMORY, SLOW, BUSY, HEAD, RATE };
/* Why one fails: FailureReason.number. */
enum { NO_FAILURE, KERNEL_FAILURE, WORKER_FAILURE, ENGINE_FAILURE, SHUTDOWN_FAILURE, INTERNAL_FAILURE };

/* What a connection speaks. Its functions belong to the connection's thread. */
typedef struct protocol {
  bool (*open)(struct connection *at); /* false: without memory */
  void (*close)(struct connection *at);
  bool (*reads)(const struct connection *at);                /* whether it takes more bytes now */
  uint8_t *(*target)(struct connection *at, size_t *room);   /* where they go; NULL: without memory */
  void (*filled)(struct connection *at, size_t size);        /* so many have come */
  uint64_t (*unwanted)(const struct connection *at);        /* bytes that come next and nobody reads; NULL: never any */
  void (*dropped)(struct connection *at, size_t size);       /* so many of them have come */
  void (*ended)(struct connection *at);                      /* the other side sends no more */
  const uint8_t *(*output)(struct connection *at, size_t *size); /* what waits to be sent */
  void (*sent)(struct connection *at, size_t size);
  void (*unsent)(struct connection *at); /* the other side takes no more */
  bool (*over)(const struct connection *at); /* closed as soon as nothing waits to be sent */
  size_t (*memory)(const struct connection *at);             /* bytes that it holds */
  size_t (*busy)(const struct connection *at);               /* requests that are not answered */
  void (*leave)(struct connection *at);                      /* it begins no more of them */
  int64_t (*expire)(struct connection *at, int64_t now);     /* ends what takes too long; when to ask again */
  /* Of those who ask. */
  bool (*fill)(const plan *plan, const request *from, uint8_t *slot); /* false: it does not fit the plan */
  bool (*respond)(asker *to, const query *of, const uint8_t *slot);   /* false: without memory */
  void (*refuse)(asker *to, status status, const char *text, size_t size);
} protocol;

/* A socket. */
typedef struct connection {
  struct connection *next, *previous; /* those of its thread */
  struct connection *next_dirty;
  struct io_thread *thread;
  const protocol *protocol;
  void *state; /* the protocol's */
  int fd;
  uint32_t watched; /* events of epoll; 0: it is not asked about */
  bool dirty, broken;
  bool counted;            /* among those of clients; `place` is of its address */
  uint32_t place;
  bool at_admin;           /* it came in where no inference is served */
  tls *tls;                /* NULL: it is not encrypted */
  int64_t opened_ns;
  bool again;              /* there is more to receive, of which epoll does not know */
  bool half_closed;        /* its client sends no more and may still read: only a reset says that it does not */
  const char *certificate; /* the name in it by which the client is known; empty: it has shown none */
  uint64_t held;           /* bytes, as counted last */
  int64_t unread_since_ns; /* since then little of its output has been taken; 0: it has */
  size_t taken;            /* of its output, since then */
  int64_t closed_ns;       /* lingering.c: when the last of its output was sent */
} connection;

enum call_state { RECEIVING, QUERY, PYTHON, OVER };

/* A call of gRPC. */
typedef struct call {
  asker asker; /* first, so that either is found from the other */
  h2_stream *stream;
  enum call_state state;
  bool infers;        /* it is ModelInfer */
  bool asks_python;   /* it is counted among the requests of Python */
  bool answerable;    /* until its end it may become a query: it is ModelInfer without compression */
  bool ended;         /* the client sends no more */
  uint8_t *fields; /* python_calls.c: the head, as Python reads it */
  size_t fields_bytes;
  const uint8_t *tenant, *authorization; /* in `fields`; NULL: there is none */
  size_t tenant_bytes, authorization_bytes;
  uint8_t *message;
  size_t message_bytes;
  uint64_t python; /* its number there; 0: Python does not know it */
  int64_t message_since_ns; /* a message that is larger than what came with it has begun; 0: it is complete */
  int taken;       /* messages that Python has and has not begun to handle */
  size_t ahead;    /* bytes of them, and of those that it has begun since the last of them was taken */
  size_t held;     /* bytes in all, as counted last */
  bool tell_flushed; /* Python waits until everything is sent */
} call;

typedef struct command command;

typedef struct io_thread {
  struct wire *wire;
  int index;
  pthread_t thread;
  int epoll, wake;
  connection *connections, *dirty;
  bool again;     /* some of them have more to receive */
  int handshakes; /* steps of them in this turn */
  uint32_t passed, refused; /* queries in this turn: taken, and for whose work there is no room */
  query *queries;
  int64_t next_deadline_ns; /* no query has an earlier one; INT64_MAX: none */
  int64_t next_look_ns;     /* when the engine is to look what claims wait for; INT64_MAX: none does */
  int64_t next_expiry_ns;   /* no idle connection is closed earlier */
  int64_t accept_again_ns; /* until then no connections are taken; INT64_MAX: they are */
  engine_link *link;
  /* Read by this thread, written by Python's. */
  pthread_mutex_t lock;
  command *first_command, **last_command;
  engine_link *next_link;
  bool link_changed, stopping, leaving, idle;
  const char *link_text; /* why the queries of the last link fail */
  int link_reason;       /* as one of the fixed list */
  pthread_cond_t settled;
  bool left; /* connections know that no calls begin any more */
  /* Python's calls by number. */
  call **calls;
  uint32_t *generation, *free_call;
  uint32_t calls_size, calls_free;
  /* Counts that Python takes from time to time. */
  ended_query *ended;
  ended_id *ended_ids; /* beside `ended`; NULL as long as there is no access log */
  uint32_t ended_count, unsent; /* the last of them are not sent yet */
  /* Likewise, of traced queries. */
  ended_trace *traces; /* MOST_TRACES of them; NULL before the first */
  uint32_t trace_count, traces_lost;
  uint64_t chance; /* traces.c: where its sequence stands */
  trace_state *states; /* KEPT_STATES of them; NULL before the first */
  uint32_t last_state; /* its number */
  uint8_t *scratch; /* a response that is put together */
  size_t scratch_bytes;
  int64_t date_s; /* the second that `date` names */
  char date[32];
} io_thread;

typedef struct {
  const protocol *protocol;
  int fd;           /* -1: it does not listen */
  tls_context *tls; /* of new connections, under the wire's lock; NULL: they are not encrypted */
} listener;

typedef struct call_event call_event;

enum { MOST_TRAILERS = 64 };

typedef struct wire {
  int threads;
  io_thread *thread;
  int home; /* the core that the threads stay on; -1: any */
  listener listeners[LISTENERS];
  struct sockaddr_un uvicorn; /* who gets what has no plan over HTTP */
  socklen_t uvicorn_bytes;
  const char *uvicorn_secret; /* by which it knows that a connection is ours */
  atomic_bool names_callers;  /* a plan is for one caller alone */
  atomic_bool keeps_ids;      /* there is an access log */
  atomic_bool traces;         /* queries may be traced */
  atomic_uint_fast64_t trace_below; /* of 2^64: so many of those without a context of their own are */
  size_t max_message_bytes, max_body_bytes;
  budgets budgets;
  plan_table *plans;
  atomic_uint_fast64_t next_query; /* its number; those of Python come from here too */
  atomic_bool open;                 /* new queries are taken */
  const refusal *refusals;          /* by number */
  int32_t refusal_count;
  status outcome_status[OUTCOMES];
  const char *infer_path, *tenant_header, *hosts;
  const uint8_t *head, *trailers; /* header blocks of an answer; the second has MOST_TRAILERS bytes at most */
  size_t head_bytes, trailers_bytes;
  pthread_mutex_t lock;
  call_event *first_event, **last_event;
  int events; /* wakes Python */
} wire;

/* io_thread.c */
bool thread_start(wire *owner, int index);
void thread_listen(io_thread *thread, listener *on);
connection *connection_open(io_thread *thread, const protocol *protocol, int fd); /* takes fd; NULL without memory */
void mark_dirty(connection *connection);
void thread_expire_at(io_thread *thread, int64_t due); /* `expire` is asked then, or earlier */
void cut_off(connection *at); /* what it does takes too long */
/* Whether the connection may hold so many bytes more. */
bool may_hold(const connection *at, uint64_t more);
void thread_wake(io_thread *thread);

/* lingering.c */
void linger(connection *at); /* reads on into nothing; its protocol has been closed */

/* traces.c */
enum { MOST_TRACES = 4096 /* of a thread, until Python takes them; more are lost */ };
void trace_keep(io_thread *thread, const ended_trace *ended); /* under the thread's lock */

/* grpc_connection.c */
extern const protocol grpc_protocol;

/* grpc.c */
void grpc_finish(call *call, int32_t code, const char *text, size_t size);

/* grpc_messages.c */
/* The head and tensors of a ModelInferRequest. False for a message that only Python can read. */
bool grpc_request(const uint8_t *message, size_t size, request *found);
/* Whether nothing but tensors follows the head: any other field there would have a say in what the request means. */
bool grpc_plain(const request *from);
bool grpc_fill(const plan *plan, const request *from, uint8_t *slot);
/* The id in the field of a message of gRPC that holds it. */
const uint8_t *grpc_id(const uint8_t *field, size_t field_bytes, size_t *size);
/* Puts the response together behind its prefix, in the thread's scratch memory. Returns the size of both, 0 without
 * memory. */
size_t grpc_response(io_thread *thread, const query *of, const uint8_t *slot);

/* http1.c */
extern const protocol http1_protocol;

/* queries.c */
/* Puts into the key by what the caller is known, where callers are named: the request's authorization, which may be NULL,
 * or else the connection's certificate. */
void query_name_caller(const connection *on, plan_key *key, const uint8_t *authorization, size_t size);
/* What becomes of a request with this head, of which so many bytes come yet that have to be read. A refusal, for a gate
 * that is shut or for want of a slot, of rate or of memory, has been sent and may have freed the asker. */
enum foreseen { UNPLANNED, PLANNED, REFUSED };
enum foreseen query_foresee(asker *from, const plan_key *key, uint64_t more);
/* Whether the request became a query or was refused, which may free the asker; if not, Python has to look at it. */
bool query_begin(asker *from, const request *request);
void query_abandon(query *query); /* the client left */
/* The value of Server-Timing, as stages.server_timing writes it. Returns its size; `target` has MOST_TIMING bytes. */
enum { MOST_TIMING = 80 };
uint32_t query_timing(char *target, const query *of);
void queries_end(io_thread *thread); /* all that the engine has answered */
void queries_sent(connection *at);   /* what it has to send is with the socket, as far as that takes it */
void queries_expire(io_thread *thread, int64_t now);
void queries_look(io_thread *thread, int64_t now); /* has the engine see what claims wait for */
void queries_fail(io_thread *thread, int reason, const char *text); /* the engine is gone, or the server ends */
void link_release(engine_link *link);

/* python_calls.c */
enum { NOTICE_COUNTS, NOTICE_IDLE, NOTICE_FAILED }; /* for Python as such, not for one call */
/* The head of a call as Python reads it, and the name in the client's certificate. NULL without memory. */
uint8_t *pack_fields(const hpack_field *fields, int count, const char *certificate, size_t *size);
bool python_open(call *call);      /* and what it has received; false: without memory, and the call is over */
void python_message(call *call, uint8_t *data, size_t size, bool compressed); /* takes the data */
void python_ended(call *call);
void python_aborted(call *call, int64_t code);
void python_flushed(call *call);
void python_forget(call *call);
void post_notice(wire *owner, int kind);
/* For its log; without memory nothing is logged. */
void post_failure(const asker *waiting, const query *of, const char *text, size_t size);
void commands_run(io_thread *thread);
void commands_drop(io_thread *thread);

#endif
