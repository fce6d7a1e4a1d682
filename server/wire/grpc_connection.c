/* A connection over gRPC: its bytes, what it holds, and what of it takes too long. */
#include <stdlib.h>

#include "grpc.h"

enum { CALMED = 200 /* glitches of a connection that a second makes up for */ };

static h2_connection *h2_of(const connection *at) { return ((const grpc_connection *)at->state)->h2; }

static bool open_connection(connection *at) {
  const wire *owner = at->thread->wire;
  const limits *most = &owner->budgets.most;
  const h2_limits limits = {owner->max_message_bytes, most->streams, most->header_bytes};
  grpc_connection *new = calloc(1, sizeof *new);
  if (!new) return false;
  at->state = new;
  new->h2 = h2_new(true, &limits, &grpc_handler, at);
  if (!new->h2) {
    free(new);
    return false;
  }
  new->calm_ns = new->midway_since_ns = new->idle_since_ns = now_ns();
  thread_expire_at(at->thread, new->midway_since_ns + most->head_ns);
  return true;
}

static void close_connection(connection *at) {
  grpc_connection *on = at->state;
  h2_free(on->h2);
  free(on);
}

static bool reads(const connection *at) {
  const grpc_connection *on = at->state;
  return !h2_failed(on->h2) && !on->ended;
}

static uint8_t *target(connection *at, size_t *room) { return h2_target(h2_of(at), room); }

/* Since when what it may be too slow with goes on. */
static void watch_client(connection *at) {
  grpc_connection *on = at->state;
  const limits *most = &at->thread->wire->budgets.most;
  const bool midway = !on->ended && h2_midway(on->h2), idle = !h2_streams(on->h2);
  if (!midway) {
    on->midway_since_ns = 0;
  } else if (!on->midway_since_ns) {
    on->midway_since_ns = now_ns();
    thread_expire_at(at->thread, on->midway_since_ns + most->head_ns);
  }
  if (!idle) {
    on->idle_since_ns = 0;
  } else if (!on->idle_since_ns) {
    on->idle_since_ns = now_ns();
    thread_expire_at(at->thread, on->idle_since_ns + most->idle_ns);
  }
}

static void filled(connection *at, size_t size) {
  static const int64_t SECOND_NS = 1000000000;
  grpc_connection *on = at->state;
  const int64_t seconds = (now_ns() - on->calm_ns) / SECOND_NS;
  if (seconds) {
    h2_calm(on->h2, (int)(seconds < 100 ? seconds : 100) * CALMED);
    on->calm_ns += seconds * SECOND_NS;
  }
  h2_filled(on->h2, size);
  watch_client(at);
}

static void broken_off(connection *at) { at->broken = true; }

/* A client that has closed its side either waits for its answers or has left, which looks the same until something is
 * sent: a ping, which brings a reset from where nobody is. Calls that it has not ended get nothing. */
static void ended(connection *at) {
  enum { CANCEL = 8 /* RFC 9113, section 7 */ };
  grpc_connection *on = at->state;
  for (h2_stream *next, *stream = h2_first(on->h2); stream; stream = next) {
    next = h2_next(stream);
    if (!h2_remote_open(stream)) continue;
    call *of = h2_context(stream);
    if (of && of->state == PYTHON) python_aborted(of, CANCEL);
    h2_reset(stream, CANCEL);
  }
  on->ended = at->half_closed = true;
  if (h2_streams(on->h2)) h2_ping(on->h2);
  watch_client(at);
  mark_dirty(at);
}

static const uint8_t *output(connection *at, size_t *size) { return h2_output(h2_of(at), size); }

static void sent(connection *at, size_t size) {
  h2_sent(h2_of(at), size);
  watch_client(at);
}

static bool over(const connection *at) {
  const grpc_connection *on = at->state;
  return h2_failed(on->h2) || on->closing || (on->ended && !h2_streams(on->h2));
}

static size_t busy(const connection *at) { return h2_streams(h2_of(at)); }

static void leave(connection *at) { h2_leave(h2_of(at)); }

static size_t memory(const connection *at) {
  const grpc_connection *on = at->state;
  return sizeof *on + on->held + h2_memory(on->h2);
}

/* Ends the calls whose requests do not come. Returns when the next one is due. */
static int64_t expire_calls(connection *at, int64_t now) {
  const int64_t patience = at->thread->wire->budgets.most.body_ns;
  int64_t earliest = INT64_MAX;
  for (h2_stream *next, *stream = h2_first(h2_of(at)); stream; stream = next) {
    next = h2_next(stream);
    call *of = h2_context(stream);
    const int64_t since = !of ? 0 : of->state == RECEIVING ? of->asker.arrival_ns : of->message_since_ns;
    if (!since) continue;
    if (since + patience > now) {
      if (since + patience < earliest) earliest = since + patience;
      continue;
    }
    grpc_refuse_call(of, SLOW);
  }
  return earliest;
}

static int64_t expire(connection *at, int64_t now) {
  grpc_connection *on = at->state;
  const limits *most = &at->thread->wire->budgets.most;
  int64_t next = expire_calls(at, now);
  if (on->midway_since_ns) {
    const int64_t due = on->midway_since_ns + most->head_ns;
    if (due <= now) {
      cut_off(at);
      return INT64_MAX;
    }
    if (due < next) next = due;
  }
  if (on->idle_since_ns && !on->closing) {
    const int64_t due = on->idle_since_ns + most->idle_ns;
    if (due <= now) { /* told, so that no client loses a call */
      h2_leave(on->h2);
      on->closing = true;
      mark_dirty(at);
      return INT64_MAX;
    }
    if (due < next) next = due;
  }
  return next;
}

const protocol grpc_protocol = {
    .open = open_connection, .close = close_connection, .reads = reads, .target = target, .filled = filled,
    .ended = ended, .output = output, .sent = sent, .unsent = broken_off,
    .over = over, .memory = memory, .busy = busy, .leave = leave, .expire = expire,
    .fill = grpc_fill, .respond = grpc_respond, .refuse = grpc_refuse,
};
