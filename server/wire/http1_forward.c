/* Requests that uvicorn answers: passed on byte for byte, and so are its responses. */
#define _GNU_SOURCE
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http1.h"

enum { READ = 1 << 16 /* bytes read at a time */ };

static const protocol uvicorn_protocol;

static size_t smaller(uint64_t a, size_t b) { return a < b ? (size_t)a : b; }

static void fail(http1 *on) {
  on->asker.connection->broken = true;
  mark_dirty(on->asker.connection);
}

void http1_forget_uvicorn(http1 *on) {
  if (!on->uvicorn) return;
  on->uvicorn->state = NULL;
  on->uvicorn->broken = true;
  mark_dirty(on->uvicorn);
  on->uvicorn = NULL;
}

/* The first line on a connection to uvicorn: that it is ours, where its client came in, and by what it is known. */
static bool introduce(http1 *on) {
  const connection *at = on->asker.connection;
  const char *const parts[] = {at->thread->wire->uvicorn_secret, at->at_admin ? " admin " : " main ", at->certificate, "\n"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    if (!buffer_append(&on->up, parts[i], strlen(parts[i]))) return false;
  return true;
}

/* Has a connection to uvicorn ready. */
static bool reach(http1 *on) {
  connection *at = on->asker.connection;
  const wire *owner = at->thread->wire;
  const int64_t now = now_ns();
  if (now - on->uvicorn_used_ns > owner->budgets.most.idle_ns / 2) http1_forget_uvicorn(on); /* it may be about to be closed */
  on->uvicorn_used_ns = now;
  if (on->uvicorn) return true;
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  if (connect(fd, (const struct sockaddr *)&owner->uvicorn, owner->uvicorn_bytes)) {
    close(fd);
    return false;
  }
  buffer_free(&on->up);
  buffer_free(&on->down);
  on->deaf = on->told_end = false;
  on->uvicorn = connection_open(at->thread, &uvicorn_protocol, fd);
  if (!on->uvicorn) return false;
  on->uvicorn->state = on;
  return introduce(on);
}

void http1_python_done(http1 *on) {
  if (on->asks_python) budget_python_done(&on->asker.connection->thread->wire->budgets);
  on->asks_python = false;
}

/* Requests of inference alone: all others, by which an operator looks at the server, get through. */
static bool may_ask(http1 *on) {
  if (!on->head.infers) return true;
  on->asks_python = on->asks_python || budget_ask_python(&on->asker.connection->thread->wire->budgets);
  return on->asks_python;
}

/* Nobody here speaks another protocol, and a client that offers one wants its answer in this one then (RFC 9110, 7.8):
 * the offer ends here, since uvicorn would take the body behind it for that protocol's. */
static void decline_upgrade(http1 *on) {
  const head_part *offer = &on->head.upgrade;
  if (offer->size && !on->head.opaque) memset(on->in.memory + on->in.begin + offer->begin, ' ', offer->size);
}

static void begin(http1 *on, enum http1_state state) {
  connection *at = on->asker.connection;
  decline_upgrade(on);
  if (!may_ask(on)) {
    const refusal *why = &at->thread->wire->refusals[BUSY];
    budget_refuse(&at->thread->wire->budgets, BUSY);
    on->discard = on->head.bytes + on->head.body;
    if (state == TUNNELS || on->head.chunked) on->closing = true; /* nobody knows where the request ends */
    http1_refuse(&on->asker, why->status, why->text, strlen(why->text));
    return;
  }
  on->state = state;
  on->reply = (http1_head){0};
  on->replied = on->in_reply = false;
  on->request_left = state == TUNNELS ? 0 : on->head.bytes + on->head.body;
  on->chunks = (chunks){0};
  on->unheard = 0;
  if (!reach(on)) fail(on);
}

void http1_forward(http1 *on) { begin(on, on->head.opaque ? TUNNELS : FORWARDS); }

void http1_tunnel(http1 *on) { begin(on, TUNNELS); }

/* What uvicorn has of the request is given up. */
static void give_up(http1 *on, status status, const char *text) {
  http1_forget_uvicorn(on);
  http1_python_done(on);
  if (on->reply.begun || on->replied) { /* an answer is on its way */
    fail(on);
    return;
  }
  on->head.closes = true;
  http1_refuse(&on->asker, status, text, strlen(text));
}

/* Bytes as they are. Returns how many. */
static size_t pass_bytes(http1 *on, uint64_t most) {
  const size_t size = smaller(most, buffer_size(&on->in));
  if (on->deaf) buffer_drop(&on->in, size);
  else if (!buffer_move(&on->up, &on->in, size)) fail(on);
  return size;
}

static bool is_overlong(const http1 *on) {
  return on->head.chunked && on->chunks.data > on->asker.connection->thread->wire->max_body_bytes;
}

/* What may go to uvicorn of what has come. False: the request is over, with a refusal. */
static bool pass_request(http1 *on) {
  const size_t waiting = buffer_size(&on->up);
  const size_t room = on->deaf ? MOST_WAITING : waiting < MOST_WAITING ? MOST_WAITING - waiting : 0;
  if (on->request_left) on->request_left -= pass_bytes(on, smaller(on->request_left, room));
  if (on->request_left) return true;
  if (http1_awaits_request(on)) {
    if (!http1_pass_chunks(on, room)) fail(on);
    if (on->chunks.state != CHUNKS_BROKEN) return true;
    give_up(on, (status){.http = 400}, "the chunks of the body are not valid, or their extensions and trailers too long");
    return false;
  }
  if (on->state != TUNNELS) return true;
  const bool switched = on->reply.status == 101;
  const size_t unheard = on->unheard < MOST_UNHEARD ? MOST_UNHEARD - (size_t)on->unheard : 0;
  on->unheard += pass_bytes(on, switched || unheard > room ? room : unheard);
  if (switched || on->unheard < MOST_UNHEARD || !buffer_size(&on->in)) return true;
  const refusal *why = &on->asker.connection->thread->wire->refusals[HEAD];
  give_up(on, why->status, why->text);
  return false;
}

bool http1_pass_on(http1 *on) {
  if (on->asker.connection->broken || !on->uvicorn) return false;
  const size_t before = buffer_size(&on->in);
  if (!pass_request(on)) return false;
  if (buffer_size(&on->in) < before) mark_dirty(on->asker.connection); /* it may be read again */
  const bool tunnel = on->state == TUNNELS, awaits = http1_awaits_request(on);
  if (on->ended && !tunnel && !awaits) {
    http1_await_reader(on);
  } else if (on->ended && (!buffer_size(&on->in) || (!tunnel && !awaits)) && !on->told_end && !buffer_size(&on->up)) {
    on->told_end = true;
    shutdown(on->uvicorn->fd, SHUT_WR);
  }
  mark_dirty(on->uvicorn);
  if (is_overlong(on)) on->head.closes = true; /* what follows is for nobody */
  if (tunnel || !on->replied || (awaits && !is_overlong(on))) return false;
  on->uvicorn_used_ns = now_ns();
  http1_python_done(on);
  http1_answered(on);
  return true;
}

/* What has come from uvicorn, as far as it can be told apart. */

/* Whether the head of the response is complete, or everything is passed on from here. */
static bool read_reply(http1 *on) {
  http1_head *reply = &on->reply;
  const enum head_state state = http1_read_response(reply, buffer_bytes(&on->down), buffer_size(&on->down));
  if (state == HEAD_PARTIAL && buffer_size(&on->down) < MOST_HEAD) return false;
  const bool empty = on->head.to_head || reply->status == 204 || reply->status == 304 ||
                     (reply->status >= 100 && reply->status < 200);
  if (state != HEAD_COMPLETE || reply->status == 101 || (!empty && (reply->opaque || !reply->has_body))) {
    on->state = TUNNELS;
    return true;
  }
  on->reply_left = reply->bytes + (empty ? 0 : reply->body);
  on->in_reply = true;
  return true;
}

static void pass_back(http1 *on) {
  while (on->state == TUNNELS || (on->state == FORWARDS && !on->replied)) {
    if (on->state == FORWARDS && !on->in_reply && (!buffer_size(&on->down) || !read_reply(on))) return;
    const bool tunnel = on->state == TUNNELS;
    const size_t size = smaller(tunnel ? UINT64_MAX : on->reply_left, buffer_size(&on->down));
    if (!buffer_move(&on->out, &on->down, size)) fail(on);
    if (tunnel) return;
    on->reply_left -= size;
    if (on->reply_left) return;
    on->in_reply = false;
    if (on->reply.status < 200) on->reply = (http1_head){0}; /* the response is still to come */
    else if (buffer_size(&on->down)) on->state = TUNNELS;    /* uvicorn saw more than one request */
    else on->replied = true;
  }
}

static bool open_uvicorn(connection *at) {
  (void)at;
  return true;
}

static void close_uvicorn(connection *at) {
  http1 *on = at->state;
  if (!on) return;
  on->uvicorn = NULL;
  if (on->state != FORWARDS && on->state != TUNNELS) return; /* another is opened when it is needed */
  buffer_move(&on->out, &on->down, buffer_size(&on->down));
  on->closing = true;
  mark_dirty(on->asker.connection);
}

static bool uvicorn_reads(const connection *at) {
  const http1 *on = at->state;
  return on && buffer_size(&on->out) < MOST_WAITING;
}

static uint8_t *uvicorn_target(connection *at, size_t *room) {
  *room = READ;
  return buffer_reserve(&((http1 *)at->state)->down, READ);
}

static void uvicorn_filled(connection *at, size_t size) {
  http1 *on = at->state;
  buffer_add(&on->down, size);
  if (on->state == TUNNELS) http1_begin(on);
  on->unheard = 0;
  pass_back(on);
  mark_dirty(on->asker.connection);
  http1_advance(on);
  const bool asked = on->state == FORWARDS || on->state == TUNNELS;
  if (buffer_size(&on->down) && !asked) at->broken = true;
}

static void uvicorn_ended(connection *at) { at->broken = true; }

static const uint8_t *uvicorn_output(connection *at, size_t *size) {
  const http1 *on = at->state;
  *size = on ? buffer_size(&on->up) : 0;
  return *size ? buffer_bytes(&on->up) : NULL;
}

static void uvicorn_sent(connection *at, size_t size) {
  http1 *on = at->state;
  buffer_drop(&on->up, size);
  if (on->state == FORWARDS || on->state == TUNNELS) http1_advance(on);
}

/* It has closed its end, but its last words may still be on their way. */
static void uvicorn_unsent(connection *at) {
  http1 *on = at->state;
  on->deaf = true;
  buffer_free(&on->up);
  http1_advance(on);
}

static bool uvicorn_over(const connection *at) {
  (void)at;
  return false;
}

static size_t uvicorn_busy(const connection *at) {
  (void)at;
  return 0; /* the client's connection is */
}

static void uvicorn_leave(connection *at) { (void)at; }

static size_t uvicorn_memory(const connection *at) {
  (void)at;
  return 0; /* the client's connection holds what it has */
}

static int64_t uvicorn_expire(connection *at, int64_t now) {
  (void)at, (void)now;
  return INT64_MAX;
}

static const protocol uvicorn_protocol = {
    .open = open_uvicorn, .close = close_uvicorn, .reads = uvicorn_reads, .target = uvicorn_target,
    .filled = uvicorn_filled, .ended = uvicorn_ended, .output = uvicorn_output, .sent = uvicorn_sent,
    .unsent = uvicorn_unsent, .over = uvicorn_over, .busy = uvicorn_busy, .leave = uvicorn_leave,
    .expire = uvicorn_expire, .memory = uvicorn_memory,
};
