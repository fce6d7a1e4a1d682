/* A connection whose last answer has been sent while its client may still send. Closed there, the system would answer
 * what comes next with a reset, which can destroy that answer before it is read. So it goes on reading, into nothing,
 * until the client has closed its side too. */
#include "wire.h"

static const int64_t LINGER_NS = 2000000000; /* who goes on sending for longer has to live with a reset */
enum { MOST_BYTES = 1 << 30 };               /* at a time; without a copy */

static bool reads(const connection *at) { return !at->broken; }

static uint64_t unwanted(const connection *at) {
  (void)at;
  return MOST_BYTES;
}

static void dropped(connection *at, size_t size) { (void)at, (void)size; }

static void ended(connection *at) { at->broken = true; }

static const uint8_t *output(connection *at, size_t *size) {
  (void)at;
  *size = 0;
  return NULL;
}

static bool over(const connection *at) { return at->broken; }

static size_t nothing(const connection *at) {
  (void)at;
  return 0;
}

static void unmoved(connection *at) { (void)at; }

static int64_t expire(connection *at, int64_t now) {
  const int64_t due = at->closed_ns + LINGER_NS;
  if (due > now) return due;
  const struct linger none = {.l_onoff = 1};
  setsockopt(at->fd, SOL_SOCKET, SO_LINGER, &none, sizeof none); /* a reset now, and nothing left in the system */
  at->broken = true;
  mark_dirty(at);
  return INT64_MAX;
}

static const protocol lingering_protocol = {
    .close = unmoved, .reads = reads, .unwanted = unwanted, .dropped = dropped, .ended = ended, .output = output,
    .over = over, .memory = nothing, .busy = nothing, .leave = unmoved, .expire = expire,
};

void linger(connection *at) {
  at->protocol = &lingering_protocol;
  at->state = NULL;
  at->closed_ns = now_ns();
  thread_expire_at(at->thread, at->closed_ns + LINGER_NS);
}
