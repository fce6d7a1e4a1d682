/* The requests of an HTTP/1.1 connection. */
#include "http1.h"

#include <stdlib.h>
#include <string.h>

enum { READ = 1 << 14 /* bytes read at a time while no body is expected */ };
/* Bytes of JSON in a request that may have a plan, with tensors behind it and without. */
enum { MOST_JSON = 1 << 20, MOST_PLAIN_JSON = 1 << 16 };

/* How long it may stay as it is; 0: as long as it likes. */
static int64_t patience_ns(const http1 *on) {
  const limits *most = &on->asker.connection->thread->wire->budgets.most;
  switch (on->state) {
    case READS_HEAD: return buffer_size(&on->in) ? most->head_ns : most->idle_ns;
    case READS_BODY:
    case DISCARDS: return most->body_ns;
    case FORWARDS: return http1_awaits_request(on) ? most->body_ns : 0;
    case TUNNELS: return most->idle_ns;
    default: return 0;
  }
}

/* Its patience begins again. */
void http1_begin(http1 *on) {
  on->since_ns = now_ns();
  const int64_t patience = patience_ns(on);
  if (patience) thread_expire_at(on->asker.connection->thread, on->since_ns + patience);
}

static bool open_connection(connection *at) {
  http1 *new = calloc(1, sizeof *new);
  if (!new) return false;
  new->asker.connection = at;
  at->state = new;
  http1_begin(new);
  return true;
}

static void close_connection(connection *at) {
  http1 *on = at->state;
  if (on->asker.query) query_abandon(on->asker.query);
  http1_python_done(on);
  http1_forget_uvicorn(on);
  buffer_free(&on->in);
  buffer_free(&on->out);
  buffer_free(&on->up);
  buffer_free(&on->down);
  free(on);
}

/* Bytes that `in` has room for. */
static size_t room_of(const http1 *on) {
  size_t most = MOST_HEAD;
  if (on->state == READS_BODY) most = on->head.bytes + (size_t)(on->planned ? on->head.body : on->head.json);
  const size_t waiting = buffer_size(&on->in);
  return waiting < most ? most - waiting : 0;
}

static bool reads(const connection *at) {
  const http1 *on = at->state;
  return !on->closing && !on->ended && room_of(on);
}

static uint8_t *target(connection *at, size_t *room) {
  http1 *on = at->state;
  *room = room_of(on);
  if ((on->state == READS_HEAD || on->state == ASKS) && *room > READ) *room = READ;
  return buffer_reserve(&on->in, *room);
}

static void filled(connection *at, size_t size) {
  http1 *on = at->state;
  const bool first = !buffer_size(&on->in);
  buffer_add(&on->in, size);
  if ((first && on->state == READS_HEAD) || on->state == TUNNELS) http1_begin(on);
  http1_advance(on);
}

/* Of the body of a request that was refused. */
static uint64_t unwanted(const connection *at) {
  const http1 *on = at->state;
  return on->state == DISCARDS && !buffer_size(&on->in) ? on->discard : 0;
}

static void dropped(connection *at, size_t size) {
  http1 *on = at->state;
  on->discard -= size;
  http1_advance(on);
}

static void ended(connection *at) {
  http1 *on = at->state;
  on->ended = true;
  if (on->state == ASKS) http1_await_reader(on);
  else if (on->state == READS_HEAD && !buffer_size(&on->in)) on->closing = true;
  else http1_advance(on);
}

/* A client that has closed its side either waits for its answer or has left, which looks the same until something is sent.
 * An interim response is for those who wait to skip, and a reset is what comes from where nobody is (RFC 9110, 15.2). 100
 * is the one that clients skip that know no other. */
void http1_await_reader(http1 *on) {
  static const char interim[] = "HTTP/1.1 100 Continue\r\n\r\n";
  connection *at = on->asker.connection;
  if (at->half_closed) return;
  at->half_closed = true;
  const bool answers = buffer_size(&on->out) || (on->state == FORWARDS && (on->in_reply || on->replied));
  if (!answers && !on->head.old && !buffer_append(&on->out, interim, sizeof interim - 1)) at->broken = true;
  mark_dirty(at);
}

static const uint8_t *output(connection *at, size_t *size) {
  const http1 *on = at->state;
  *size = buffer_size(&on->out);
  return *size ? buffer_bytes(&on->out) : NULL;
}

static void sent(connection *at, size_t size) {
  http1 *on = at->state;
  buffer_drop(&on->out, size);
  if (on->uvicorn) mark_dirty(on->uvicorn); /* it may be read again */
  http1_advance(on);
}

static void unsent(connection *at) { at->broken = true; }

static bool over(const connection *at) { return ((const http1 *)at->state)->closing; }

static size_t busy(const connection *at) {
  const http1 *on = at->state;
  return on->state != READS_HEAD || buffer_size(&on->out);
}

static void leave(connection *at) {
  http1 *on = at->state;
  if (on->state == READS_HEAD) on->closing = true;
}

void http1_refuse_connection(http1 *on, int number) {
  wire *owner = on->asker.connection->thread->wire;
  const refusal *why = &owner->refusals[number];
  budget_refuse(&owner->budgets, number);
  on->head.closes = true;
  http1_refuse(&on->asker, why->status, why->text, strlen(why->text));
}

static int64_t expire(connection *at, int64_t now) {
  http1 *on = at->state;
  const int64_t patience = patience_ns(on);
  if (!patience || on->closing) return INT64_MAX;
  if (buffer_size(&on->out)) return now + patience; /* it has not read the last answer yet, for which it has its time */
  const int64_t due = on->since_ns + patience;
  if (due > now) return due;
  const bool asked = on->state == READS_HEAD ? buffer_size(&on->in) : on->state == READS_BODY;
  if (asked) {
    atomic_fetch_add(&at->thread->wire->budgets.expired_connections, 1);
    http1_refuse_connection(on, SLOW);
  } else {
    cut_off(at);
  }
  return INT64_MAX;
}

static size_t memory(const connection *at) {
  const http1 *on = at->state;
  return sizeof *on + on->in.room + on->out.room + on->up.room + on->down.room;
}

void http1_answered(http1 *on) {
  connection *at = on->asker.connection;
  if (on->head.closes || on->reply.closes || at->thread->left) on->closing = true;
  on->state = on->discard && !on->closing ? DISCARDS : READS_HEAD;
  on->head = on->reply = (http1_head){0};
  http1_begin(on);
  if (on->ended && !buffer_size(&on->in)) on->closing = true;
  mark_dirty(at); /* the next request begins once the answer is on its way */
}

/* Each of these returns whether there is more to do at once. */

static bool read_head(http1 *on) {
  const wire *owner = on->asker.connection->thread->wire;
  const size_t size = buffer_size(&on->in);
  if (on->closing || !size || buffer_size(&on->out) >= MOST_WAITING) return false;
  http1_head *head = &on->head;
  const enum head_state state = http1_read_request(head, buffer_bytes(&on->in), size, owner->tenant_header, owner->hosts);
  const size_t most = owner->budgets.most.header_bytes;
  if (state == HEAD_PARTIAL ? size > most : state == HEAD_COMPLETE && head->bytes > most) {
    http1_refuse_connection(on, HEAD);
    return false;
  }
  if (state == HEAD_PARTIAL) {
    on->closing = on->ended;
    return false;
  }
  if (state != HEAD_COMPLETE) {
    http1_tunnel(on);
    return true;
  }
  on->asker.arrival_ns = now_ns();
  if (atomic_load_explicit(&owner->traces, memory_order_relaxed))
    on->asker.trace = trace_of_head(on->asker.connection->thread, buffer_bytes(&on->in), head->bytes);
  on->planned = false;
  on->state = READS_BODY;
  http1_begin(on);
  const uint64_t most_json = head->has_json ? MOST_JSON : MOST_PLAIN_JSON;
  if (!head->answerable || on->asker.connection->at_admin || head->body > owner->max_body_bytes || head->json > most_json) http1_forward(on);
  return true;
}

static bool read_body(http1 *on) {
  const http1_head *head = &on->head;
  const size_t size = buffer_size(&on->in), whole = head->bytes + (size_t)head->body;
  if (size < head->bytes + head->json || (on->planned && size < whole)) {
    on->closing = on->ended;
    return false;
  }
  request request;
  bool plain = http1_request(on, &request);
  if (plain && size < whole) {
    on->discard = whole; /* where it is refused */
    const enum foreseen foreseen = query_foresee(&on->asker, &request.key, whole);
    if (foreseen == REFUSED) return true;
    on->discard = 0;
    on->planned = foreseen == PLANNED;
    if (on->planned) return false;
    plain = false;
  }
  if (plain) on->state = ASKS;
  if (!plain || !query_begin(&on->asker, &request)) http1_forward(on);
  else buffer_drop(&on->in, whole);
  return true;
}

static bool discard(http1 *on) {
  const size_t there = buffer_size(&on->in), size = on->discard < there ? (size_t)on->discard : there;
  buffer_drop(&on->in, size);
  on->discard -= size;
  if (!on->discard) on->state = READS_HEAD, http1_begin(on);
  else on->closing = on->closing || on->ended;
  return !on->discard;
}

void http1_advance(http1 *on) {
  if (on->advancing) return; /* the loop below goes on */
  on->advancing = true;
  for (bool more = true; more;) {
    switch (on->state) {
      case READS_HEAD: more = read_head(on); break;
      case READS_BODY: more = read_body(on); break;
      case ASKS: more = false; break;
      case DISCARDS: more = discard(on); break;
      default: more = http1_pass_on(on); break;
    }
  }
  on->advancing = false;
}

const protocol http1_protocol = {
    .open = open_connection, .close = close_connection, .reads = reads, .target = target, .filled = filled,
    .unwanted = unwanted, .dropped = dropped, .ended = ended, .output = output, .sent = sent, .unsent = unsent,
    .over = over, .busy = busy, .leave = leave, .expire = expire, .memory = memory, .fill = http1_fill, .respond = http1_respond, .refuse = http1_refuse,
};
