/* The requests of an HTTP/1.1 connection. */
#include "http1.h"

#include <stdlib.h>

enum { READ = 1 << 14 /* bytes read at a time while no body is expected */ };
/* Bytes of JSON in a request that may have a plan, with tensors behind it and without. */
enum { MOST_JSON = 1 << 20, MOST_PLAIN_JSON = 1 << 16 };

/* From here on it waits for a request. */
static void rest(http1 *on) {
  io_thread *thread = on->asker.connection->thread;
  on->idle_since_ns = now_ns();
  const int64_t due = on->idle_since_ns + thread->wire->keep_alive_ns;
  if (due < thread->next_expiry_ns) thread->next_expiry_ns = due;
}

static bool open_connection(connection *at) {
  http1 *new = calloc(1, sizeof *new);
  if (!new) return false;
  new->asker.connection = at;
  at->state = new;
  rest(new);
  return true;
}

static void close_connection(connection *at) {
  http1 *on = at->state;
  if (on->asker.query) query_abandon(on->asker.query);
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
  buffer_add(&on->in, size);
  http1_advance(on);
}

static void ended(connection *at) {
  http1 *on = at->state;
  on->ended = true;
  if (on->state == FORWARDS || on->state == TUNNELS) http1_advance(on);
  else if (on->state == READS_HEAD) on->closing = true;
  else at->broken = true; /* it does not wait for its answer */
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

static int64_t expire(connection *at, int64_t now) {
  http1 *on = at->state;
  if (on->state != READS_HEAD || buffer_size(&on->in) || buffer_size(&on->out)) return INT64_MAX;
  const int64_t due = on->idle_since_ns + at->thread->wire->keep_alive_ns;
  if (due > now) return due;
  on->closing = true;
  mark_dirty(at);
  return INT64_MAX;
}

void http1_answered(http1 *on) {
  connection *at = on->asker.connection;
  if (on->head.closes || on->reply.closes || at->thread->left) on->closing = true;
  on->state = READS_HEAD;
  on->head = on->reply = (http1_head){0};
  rest(on);
  if (on->ended && !buffer_size(&on->in)) on->closing = true;
  mark_dirty(at); /* the next request begins once the answer is on its way */
}

/* Each of these returns whether there is more to do at once. */

static bool read_head(http1 *on) {
  const wire *owner = on->asker.connection->thread->wire;
  const size_t size = buffer_size(&on->in);
  if (on->closing || !size || buffer_size(&on->out) >= MOST_WAITING) return false;
  http1_head *head = &on->head;
  const enum head_state state = http1_read_request(head, buffer_bytes(&on->in), size, owner->tenant_header);
  if (state == HEAD_PARTIAL && size < MOST_HEAD) {
    on->closing = on->ended;
    return false;
  }
  if (state != HEAD_COMPLETE) {
    http1_tunnel(on);
    return true;
  }
  on->asker.arrival_ns = now_ns();
  on->planned = false;
  on->state = READS_BODY;
  const uint64_t most_json = head->has_json ? MOST_JSON : MOST_PLAIN_JSON;
  if (!head->answerable || head->body > owner->max_body_bytes || head->json > most_json) http1_forward(on);
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
    on->planned = query_planned(&on->asker, &request.key);
    if (on->planned) return false;
    plain = false;
  }
  if (plain) on->state = ASKS;
  if (!plain || !query_begin(&on->asker, &request)) http1_forward(on);
  else buffer_drop(&on->in, whole);
  return true;
}

void http1_advance(http1 *on) {
  if (on->advancing) return; /* the loop below goes on */
  on->advancing = true;
  for (bool more = true; more;) {
    switch (on->state) {
      case READS_HEAD: more = read_head(on); break;
      case READS_BODY: more = read_body(on); break;
      case ASKS: more = false; break;
      default: more = http1_pass_on(on); break;
    }
  }
  on->advancing = false;
}

const protocol http1_protocol = {
    .open = open_connection, .close = close_connection, .reads = reads, .target = target, .filled = filled,
    .ended = ended, .output = output, .sent = sent, .unsent = unsent, .over = over, .busy = busy, .leave = leave,
    .expire = expire, .fill = http1_fill, .respond = http1_respond, .refuse = http1_refuse,
};
