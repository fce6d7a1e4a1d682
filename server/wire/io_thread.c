/* One I/O thread: connections, the engine's lane, Python's commands and deadlines, in one loop of epoll. */
#define _GNU_SOURCE
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "wire.h"

enum { EVENTS = 64, ACCEPTS = 16 /* connections taken at a time */ };
/* Above the engine: what waits to be read is seen by nobody, and to refuse it is cheaper than to decide. */
enum { NICE = -15 };
static const int64_t ACCEPT_PAUSE_NS = 100000000; /* while the system gives no descriptor for a connection */
/* Read from one connection before others have their turn, which many of them share. */
enum { TURN_BYTES = 1 << 20, LEAST_TURN_BYTES = 1 << 16 };
enum { TAKEN_BYTES = 1 << 16 /* of its output that a client has to take in time, or all */ };
/* Steps of handshakes in one turn: each may take the time of a signature, and everybody else waits meanwhile. */
enum { HANDSHAKES = 4 };
enum { SLACK_BYTES = 1 << 22 /* of memory beyond the budget of a connection, which is looked at afterwards */ };
static const int64_t EXPIRY_STEP_NS = 50000000; /* between two looks at what takes too long */
/* After a turn in a flood: what comes meanwhile is read and answered at once. It takes the system as long to give and to
 * take two queries of a connection as to give and to take ten, and workers need that time. */
static const struct timespec BREATH = {.tv_nsec = 500000};

void thread_wake(io_thread *thread) {
  const uint64_t one = 1;
  if (write(thread->wake, &one, sizeof one) < 0) return; /* it is full: the thread is awake */
}

void mark_dirty(connection *at) {
  if (at->dirty) return;
  at->dirty = true;
  at->next_dirty = at->thread->dirty;
  at->thread->dirty = at;
}

static void watch(const io_thread *thread, int operation, int fd, uint32_t events, void *about) {
  struct epoll_event event = {.events = events, .data.ptr = about};
  epoll_ctl(thread->epoll, operation, fd, &event);
}

connection *connection_open(io_thread *thread, const protocol *protocol, int fd) {
  connection *new = calloc(1, sizeof *new);
  if (new) *new = (connection){.thread = thread, .protocol = protocol, .fd = fd, .next = thread->connections, .certificate = ""};
  if (!new || !protocol->open(new)) {
    free(new);
    close(fd);
    return NULL;
  }
  if (new->next) new->next->previous = new;
  thread->connections = new;
  mark_dirty(new);
  return new;
}

static void watch_listeners(const io_thread *thread, int operation) {
  listener *all = thread->wire->listeners;
  for (int i = 0; i < LISTENERS; i++)
    if (all[i].fd >= 0) watch(thread, operation, all[i].fd, EPOLLIN | EPOLLEXCLUSIVE, &all[i]);
}

/* Clients wait in the listener's backlog meanwhile; watching it would only tell again and again that they do. */
static void pause_accepting(io_thread *thread) {
  thread->accept_again_ns = now_ns() + ACCEPT_PAUSE_NS;
  if (thread->accept_again_ns < thread->next_expiry_ns) thread->next_expiry_ns = thread->accept_again_ns;
  watch_listeners(thread, EPOLL_CTL_DEL);
}

/* False: without memory. */
static bool encrypt(connection *at, const listener *as) {
  wire *owner = at->thread->wire;
  pthread_mutex_lock(&owner->lock);
  tls_context *const context = as->tls ? tls_context_share(as->tls) : NULL;
  pthread_mutex_unlock(&owner->lock);
  if (!context) return true;
  at->tls = tls_new(context, at->fd);
  at->opened_ns = now_ns();
  thread_expire_at(at->thread, at->opened_ns + owner->budgets.most.head_ns);
  return at->tls;
}

static void accept_connections(io_thread *thread, const listener *from) {
  const int on = 1;
  for (int i = 0; i < ACCEPTS; i++) {
    struct sockaddr_storage client = {0};
    socklen_t size = sizeof client;
    uint32_t place;
    const int fd = accept4(from->fd, (struct sockaddr *)&client, &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) {
      if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) pause_accepting(thread);
      return; /* else there is none */
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on); /* the system notices a peer that vanished */
    if (!budget_connect(&thread->wire->budgets, &client, &place)) {
      close(fd);
      continue;
    }
    connection *new = connection_open(thread, from->protocol, fd);
    if (!new) {
      budget_disconnect(&thread->wire->budgets, place);
      continue;
    }
    new->counted = true, new->place = place, new->at_admin = from == &thread->wire->listeners[ADMIN];
    new->broken = !encrypt(new, from);
  }
}

/* What has come and is not read would make the system reset the connection, and with it an answer on its way. */
static void drain(int fd) {
  enum { PARTS = 16, PART_BYTES = 1 << 20 };
  shutdown(fd, SHUT_WR);
  for (int i = 0; i < PARTS && recv(fd, NULL, PART_BYTES, MSG_TRUNC | MSG_DONTWAIT) > 0; i++) continue;
}

/* What it speaks has ended. */
static void end_protocol(connection *at) {
  at->dirty = true; /* what its calls do now reaches nobody */
  at->protocol->close(at);
  at->dirty = false;
  budget_count(&at->thread->wire->budgets, &at->held, 0);
  if (at->tls) tls_free(at->tls);
  at->tls = NULL;
  at->certificate = "";
}

static void close_connection(connection *at) {
  io_thread *thread = at->thread;
  if (at->next) at->next->previous = at->previous;
  if (at->previous) at->previous->next = at->next;
  else thread->connections = at->next;
  end_protocol(at);
  if (at->counted) budget_disconnect(&thread->wire->budgets, at->place);
  /* A child that is being started has a copy of the descriptor until it runs its program: closing ours would leave the
     socket in epoll for so long, which would tell of what is gone. */
  if (at->watched) watch(thread, EPOLL_CTL_DEL, at->fd, 0, NULL);
  drain(at->fd);
  close(at->fd);
  free(at);
}

/* Bytes of it as recv() gives them. Without a target they are dropped. */
static ssize_t take(connection *at, uint8_t *target, size_t room) {
  if (!at->tls) return recv(at->fd, target, room, target ? 0 : MSG_TRUNC); /* which copies nothing */
  uint8_t dropped[1 << 14];
  if (!target && room > sizeof dropped) room = sizeof dropped;
  const ssize_t got = tls_receive(at->tls, target ? target : dropped, room);
  at->certificate = tls_client(at->tls);
  return got;
}

static bool may_speak(const connection *at) { return !at->tls || tls_established(at->tls); }

static void receive(connection *at, size_t turn) {
  const protocol *protocol = at->protocol;
  if (!may_speak(at) && at->thread->handshakes++ >= HANDSHAKES) return; /* epoll tells of it once more */
  mark_dirty(at);
  for (size_t taken = 0; taken < turn && !at->broken && protocol->reads(at);) {
    const uint64_t unwanted = protocol->unwanted ? protocol->unwanted(at) : 0;
    size_t room = unwanted < TURN_BYTES ? unwanted : TURN_BYTES;
    uint8_t *target = unwanted ? NULL : protocol->target(at, &room);
    const bool reads = target || unwanted;
    const ssize_t got = reads ? take(at, target, room) : -1;
    if (!reads || (got < 0 && errno != EINTR && errno != EAGAIN && errno != EWOULDBLOCK)) {
      at->broken = true;
    } else if (got == 0) {
      protocol->ended(at);
      return;
    } else if (got > 0) {
      if (unwanted) protocol->dropped(at, (size_t)got);
      else protocol->filled(at, (size_t)got);
      taken += (size_t)got;
    }
    if (got >= 0 ? (size_t)got < room && !at->tls : errno != EINTR) return;
  }
}

void cut_off(connection *at) {
  at->broken = true;
  mark_dirty(at);
  atomic_fetch_add(&at->thread->wire->budgets.expired_connections, 1);
}

/* A client that takes little of what it asked for is cut off in time. */
static void watch_reader(connection *at, size_t taken, bool all) {
  at->taken += taken;
  if (all) {
    at->unread_since_ns = 0;
  } else if (!at->unread_since_ns || at->taken >= TAKEN_BYTES) {
    at->unread_since_ns = now_ns();
    at->taken = 0;
    thread_expire_at(at->thread, at->unread_since_ns + at->thread->wire->budgets.most.unread_ns);
  }
}

/* Everything is sent: the other side learns it, and what it still sends is read as it comes. */
static void end_output(connection *at) {
  end_protocol(at);
  shutdown(at->fd, SHUT_WR);
  at->unread_since_ns = 0;
  linger(at);
  receive(at, TURN_BYTES); /* a client that has closed already is gone with that */
}

bool may_hold(const connection *at, uint64_t more) { return budget_allows(&at->thread->wire->budgets, at->held, more); }

/* Sends what waits, as far as the system takes it, and asks epoll about what comes next. */
static void transmit(connection *at) {
  const protocol *protocol = at->protocol;
  size_t size = 0;
  size_t taken = 0;
  const uint8_t *data;
  while (!at->broken && may_speak(at) && (data = protocol->output(at, &size), size)) {
    const ssize_t sent = at->tls ? tls_send(at->tls, data, size) : send(at->fd, data, size, MSG_NOSIGNAL);
    if (sent >= 0) taken += (size_t)sent, protocol->sent(at, (size_t)sent);
    else if (errno == EAGAIN || errno == EWOULDBLOCK) break;
    else if (errno != EINTR) protocol->unsent(at);
  }
  if (!at->broken && !size && protocol->over(at)) {
    if (at->dirty) return; /* by what was sent just now; its turn comes once more */
    end_output(at);
    protocol = at->protocol;
  }
  if (at->broken) return;
  if (size || at->unread_since_ns) watch_reader(at, taken, !size);
  budget_count(&at->thread->wire->budgets, &at->held, protocol->memory(at) + (at->tls ? TLS_BYTES : 0));
  if (at->held > at->thread->wire->budgets.most.connection_memory + SLACK_BYTES) { /* answers that are not read */
    at->broken = true;
    return;
  }
  const bool reads = protocol->reads(at), sends = size || (at->tls && tls_waits_to_send(at->tls));
  at->again = reads && at->tls && tls_holds(at->tls);
  at->thread->again = at->thread->again || at->again;
  /* A reset is told of without being asked for, as long as the connection is in epoll. */
  const uint32_t events = (reads ? EPOLLIN : 0) | (sends ? EPOLLOUT : 0) | (at->half_closed ? EPOLLERR : 0);
  if (events == at->watched) return;
  /* Without an event it leaves epoll: a closed peer would be reported again and again. */
  watch(at->thread, !at->watched ? EPOLL_CTL_ADD : events ? EPOLL_CTL_MOD : EPOLL_CTL_DEL, at->fd, events, at);
  at->watched = events;
}

static void transmit_all(io_thread *thread) {
  for (connection *at; (at = thread->dirty);) {
    thread->dirty = at->next_dirty;
    at->dirty = false;
    transmit(at);
    if (thread->unsent) queries_sent(at);
    if (at->broken && !at->dirty) close_connection(at);
  }
  thread->unsent = 0;
}

static void announce_leave(io_thread *thread) {
  for (connection *at = thread->connections; at; at = at->next) {
    at->protocol->leave(at);
    mark_dirty(at);
  }
}

static void tell_when_idle(io_thread *thread) {
  size_t open = 0;
  for (connection *at = thread->connections; at; at = at->next) open += at->protocol->busy(at);
  if (open) return;
  pthread_mutex_lock(&thread->lock);
  thread->idle = true;
  pthread_mutex_unlock(&thread->lock);
  post_notice(thread->wire, NOTICE_IDLE);
}

/* What Python's thread has asked for. Returns whether the thread goes on. */
static bool obey(io_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  const bool change = thread->link_changed, stopping = thread->stopping;
  const bool leave = thread->leaving && !thread->left;
  engine_link *link = thread->next_link;
  const char *text = thread->link_text;
  const int reason = thread->link_reason;
  pthread_mutex_unlock(&thread->lock);
  if (change) {
    queries_fail(thread, reason, text);
    link_release(thread->link);
    thread->link = link;
    pthread_mutex_lock(&thread->lock);
    thread->link_changed = false;
    pthread_cond_broadcast(&thread->settled);
    pthread_mutex_unlock(&thread->lock);
  }
  if (leave) {
    thread->left = true;
    thread->accept_again_ns = INT64_MAX;
    watch_listeners(thread, EPOLL_CTL_DEL);
    announce_leave(thread);
  }
  commands_run(thread);
  return !stopping;
}

/* When something is due, whatever happens before. INT64_MAX: nothing is. */
static int64_t next_due_ns(const io_thread *thread) {
  const int64_t deadline = thread->next_deadline_ns, expiry = thread->next_expiry_ns, look = thread->next_look_ns;
  const int64_t next = deadline < expiry ? deadline : expiry;
  return look < next ? look : next;
}

static int timeout_ms(const io_thread *thread) {
  if (thread->again) return 0;
  const int64_t next = next_due_ns(thread);
  if (next == INT64_MAX) return -1;
  const int64_t left_ms = (next - now_ns() + 999999) / 1000000;
  return left_ms < 0 ? 0 : left_ms > INT_MAX ? INT_MAX : (int)left_ms;
}

void thread_expire_at(io_thread *thread, int64_t due) {
  if (due < thread->next_expiry_ns) thread->next_expiry_ns = due;
}

/* What of it takes too long, whatever it speaks. Returns when to ask again. */
static int64_t expire_reader(connection *at, int64_t now) {
  const limits *most = &at->thread->wire->budgets.most;
  const bool speaks = may_speak(at);
  if (speaks && !at->unread_since_ns) return INT64_MAX;
  const int64_t due = speaks ? at->unread_since_ns + most->unread_ns : at->opened_ns + most->head_ns;
  if (due > now) return due;
  cut_off(at);
  return INT64_MAX;
}

static void expire(io_thread *thread) {
  const int64_t now = now_ns();
  if (thread->next_deadline_ns <= now) queries_expire(thread, now);
  if (thread->next_look_ns <= now) queries_look(thread, now);
  if (now < thread->next_expiry_ns) return;
  if (thread->accept_again_ns <= now) {
    thread->accept_again_ns = INT64_MAX;
    watch_listeners(thread, EPOLL_CTL_ADD);
  }
  thread->next_expiry_ns = thread->accept_again_ns;
  for (connection *at = thread->connections; at; at = at->next) {
    thread_expire_at(thread, expire_reader(at, now));
    if (!at->broken) thread_expire_at(thread, at->protocol->expire(at, now));
  }
  if (thread->next_expiry_ns < now + EXPIRY_STEP_NS) thread->next_expiry_ns = now + EXPIRY_STEP_NS;
}

static void handle(io_thread *thread, const struct epoll_event *event, size_t turn) {
  const listener *listeners = thread->wire->listeners;
  void *const about = event->data.ptr;
  if (about == thread) return; /* the loop looks at everything that it is woken for */
  if (about == &listeners[GRPC] || about == &listeners[HTTP] || about == &listeners[ADMIN]) {
    accept_connections(thread, about);
  } else {
    connection *at = about;
    if (at->half_closed && event->events & (EPOLLHUP | EPOLLERR)) at->broken = true, mark_dirty(at);
    else if (event->events & (EPOLLIN | EPOLLHUP | EPOLLERR) || !may_speak(at)) receive(at, turn);
    else mark_dirty(at);
  }
}

/* Those whose next bytes are here already. */
static void receive_again(io_thread *thread, size_t turn) {
  thread->again = false;
  for (connection *at = thread->connections; at; at = at->next)
    if (at->again && !at->broken) receive(at, turn);
}

/* Most queries of this turn were refused, and connections had more than one of them each. Who sends one and waits for its
 * answer would only wait for longer. */
static bool is_flooded(const io_thread *thread, int connections) {
  return thread->refused > thread->passed && thread->passed + thread->refused > (uint32_t)(connections > 0 ? connections : 0);
}

static void *serve(void *argument) {
  io_thread *thread = argument;
  struct epoll_event events[EVENTS];
  setpriority(PRIO_PROCESS, 0, NICE); /* of this thread, where the system allows it */
  for (bool serving = true; serving;) {
    const int count = epoll_wait(thread->epoll, events, EVENTS, timeout_ms(thread));
    queries_end(thread);
    const size_t turn = count > TURN_BYTES / LEAST_TURN_BYTES ? LEAST_TURN_BYTES : TURN_BYTES / (size_t)(count > 0 ? count : 1);
    thread->handshakes = 0;
    thread->passed = thread->refused = 0;
    for (int i = 0; i < count; i++) handle(thread, &events[i], turn);
    if (thread->again) receive_again(thread, LEAST_TURN_BYTES);
    if (next_due_ns(thread) != INT64_MAX) expire(thread);
    serving = obey(thread);
    transmit_all(thread);
    if (thread->left && !thread->idle) tell_when_idle(thread);
    if (is_flooded(thread, count) && serving) nanosleep(&BREATH, NULL);
  }
  queries_fail(thread, SHUTDOWN_FAILURE, "the server shut down before the query was answered");
  transmit_all(thread);
  while (thread->connections) close_connection(thread->connections);
  link_release(thread->link);
  return NULL;
}

bool thread_start(wire *owner, int index) {
  io_thread *thread = &owner->thread[index];
  *thread = (io_thread){.wire = owner, .index = index, .next_deadline_ns = INT64_MAX, .next_look_ns = INT64_MAX,
                        .next_expiry_ns = INT64_MAX, .accept_again_ns = INT64_MAX,
                        .chance = (uint64_t)now_ns() << 8 | (uint64_t)index << 1 | 1};
  thread->last_command = &thread->first_command;
  pthread_mutex_init(&thread->lock, NULL);
  pthread_cond_init(&thread->settled, NULL);
  thread->epoll = epoll_create1(EPOLL_CLOEXEC);
  thread->wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (thread->epoll < 0 || thread->wake < 0) return false;
  watch(thread, EPOLL_CTL_ADD, thread->wake, EPOLLIN | EPOLLET, thread); /* each write tells; nobody reads it */
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are Python's business */
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  if (owner->home >= 0) {
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET(owner->home, &cores);
    pthread_attr_setaffinity_np(&attributes, sizeof cores, &cores);
  }
  const int failed = pthread_create(&thread->thread, &attributes, serve, thread);
  pthread_attr_destroy(&attributes);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  if (failed) return false;
  char name[16] = "veltair-io";
  pthread_setname_np(thread->thread, name);
  return true;
}

void thread_listen(io_thread *thread, listener *on) {
  watch(thread, EPOLL_CTL_ADD, on->fd, EPOLLIN | EPOLLEXCLUSIVE, on);
}
