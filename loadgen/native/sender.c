/* The open-loop sender: sends each query of a load at its time and records how it ended, in one thread.
 *
 * Plain C without headers of Python: native_sender.py calls it without the interpreter lock. loadgen/open_loop.py is its
 * reference: the same tests run against both. */
#define _GNU_SOURCE
#include "sender.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "transport.h"

#define EXPORT __attribute__((visibility("default")))
enum { EVENTS = 64, BURST = 64 /* queries that a late sender sends before it reads answers and notices a stop */ };

typedef struct {
  sender sender;
  int timer;
  int64_t armed_ns; /* when the timer rings, from the start of the run; INT64_MAX: never */
  uint64_t stops;   /* how often the run was told to stop */
  int64_t oldest;   /* no query before this one waits for its answer */
} run;

static int64_t earlier(int64_t a, int64_t b) { return a < b ? a : b; }

static void arm(run *r, int64_t wake_ns) {
  if (wake_ns == r->armed_ns) return;
  r->armed_ns = wake_ns;
  struct itimerspec when = {0}; /* zero disarms it */
  if (wake_ns < INT64_MAX) {
    const int64_t at = r->sender.start_ns + wake_ns;
    when.it_value = (struct timespec){at / 1000000000, at % 1000000000};
  }
  timerfd_settime(r->timer, TFD_TIMER_ABSTIME, &when, NULL);
}

/* Waits until `wake_ns` at most and handles what happens; returns at once when that has passed. */
static void handle_events(run *r, int64_t wake_ns) {
  sender *s = &r->sender;
  struct epoll_event events[EVENTS];
  const bool late = wake_ns <= now_ns() - s->start_ns;
  if (!late) arm(r, wake_ns);
  const int count = epoll_wait(s->epoll, events, EVENTS, late ? 0 : -1);
  for (int i = 0; i < count; i++) {
    eventfd_t more;
    if (events[i].data.ptr == &r->timer) continue; /* quiet once it is armed again */
    if (events[i].data.ptr != &r->stops) s->transport->event(s, events[i].data.ptr, events[i].events);
    else if (!eventfd_read((int)s->load->stop, &more)) r->stops += more;
  }
}

static void connect_all(run *r) {
  sender *s = &r->sender;
  s->start_ns = now_ns();
  s->transport->connect(s);
  while (!r->stops && !s->transport->settled(s) && now_ns() - s->start_ns < s->load->timeout_ns) {
    handle_events(r, s->load->timeout_ns);
    s->transport->settle(s);
  }
  arm(r, INT64_MAX); /* it counted from this start */
}

static void send_due(sender *s, int64_t now) {
  const load *l = s->load;
  for (int i = 0; i < BURST && s->sent < l->queries && l->arrival_ns[s->sent] <= now; i++) {
    l->records[s->sent].sent_ns = now_ns() - s->start_ns;
    s->transport->send(s, &s->calls[s->sent]);
    s->sent++;
  }
  __atomic_store_n(&l->counts[SENT], s->sent, __ATOMIC_RELAXED);
}

/* Gives up queries sent at `before` or earlier; returns when the next of them was sent, INT64_MAX without one. */
static int64_t give_up(run *r, int64_t before, query_end end) {
  for (; r->oldest < r->sender.sent; r->oldest++) {
    const query_record *record = &r->sender.load->records[r->oldest];
    if (record->end != UNSENT) continue;
    if (record->sent_ns > before) return record->sent_ns;
    r->sender.transport->give_up(&r->sender, &r->sender.calls[r->oldest], end);
  }
  return INT64_MAX;
}

/* Returns when the run was stopped, or the end of the load. */
static int64_t run_load(run *r) {
  sender *s = &r->sender;
  const load *l = s->load;
  int64_t cut = l->window_ns, until = INT64_MAX; /* until: when a stopped run ends */
  s->start_ns = now_ns();
  for (;;) {
    const int64_t now = now_ns() - s->start_ns;
    if (r->stops && until == INT64_MAX) {
      cut = earlier(now, cut);
      until = now + l->patience_ns;
    }
    if (!r->stops) send_due(s, now);
    const int64_t oldest_ns = give_up(r, now - l->timeout_ns, TIMED_OUT);
    s->transport->settle(s);
    const bool all_sent = r->stops || (s->sent == l->queries && now >= l->window_ns);
    if ((all_sent && s->done == s->sent) || now >= until || r->stops > 1) return cut;
    int64_t wake = until;
    if (oldest_ns < INT64_MAX) wake = earlier(wake, oldest_ns + l->timeout_ns);
    if (!all_sent) wake = earlier(wake, s->sent < l->queries ? l->arrival_ns[s->sent] : l->window_ns);
    handle_events(r, wake);
  }
}

static int prepare(run *r) {
  sender *s = &r->sender;
  const load *l = s->load;
  const struct addrinfo hints = {.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  struct epoll_event timer = {.events = EPOLLIN, .data.ptr = &r->timer}, stop = {.events = EPOLLIN, .data.ptr = &r->stops};
  s->calls = calloc((size_t)l->queries + 1, sizeof *s->calls);
  if (!s->calls || !s->transport->prepare(s)) return ENOMEM;
  if (getaddrinfo(l->host, l->port, &hints, &s->address)) return EADDRNOTAVAIL;
  s->epoll = epoll_create1(EPOLL_CLOEXEC);
  r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (s->epoll < 0 || r->timer < 0 || epoll_ctl(s->epoll, EPOLL_CTL_ADD, r->timer, &timer) < 0 ||
      epoll_ctl(s->epoll, EPOLL_CTL_ADD, (int)l->stop, &stop) < 0)
    return errno;
  return 0;
}

/* Returns when the run was stopped, in ns from its start, or window_ns; or an errno, negative, when it could not begin. */
EXPORT int64_t send_load(const load *load) {
  const transport *transport = load->protocol == HTTP ? &http_transport : &grpc_transport;
  run r = {.sender = {.load = load, .transport = transport, .epoll = -1}, .timer = -1, .armed_ns = INT64_MAX};
  int64_t result = -prepare(&r);
  if (result == 0) {
    connect_all(&r);
    result = run_load(&r);
    give_up(&r, INT64_MAX, STOPPED);
  }
  if (r.sender.connections) transport->close(&r.sender);
  if (r.sender.address) freeaddrinfo(r.sender.address);
  if (r.sender.epoll >= 0) close(r.sender.epoll);
  if (r.timer >= 0) close(r.timer);
  free(r.sender.calls);
  return result;
}
