#define _GNU_SOURCE
#include "transport.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

query_record *record_of(const sender *s, const call *query) { return &s->load->records[query - s->calls]; }

void finish(sender *s, const call *query, query_end end, int64_t code) {
  query_record *record = record_of(s, query);
  if (record->end != UNSENT) return;
  record->end = end;
  record->code = (int32_t)code;
  record->done_ns = now_ns() - s->start_ns;
  __atomic_store_n(&s->load->counts[DONE], ++s->done, __ATOMIC_RELAXED);
}

void keep_text(const sender *s, const call *query, const char *text, size_t size) {
  char *kept = s->load->texts + s->load->tenant[query - s->calls] * TEXTS * TEXT_BYTES;
  int number = 1;
  if (size >= TEXT_BYTES) size = TEXT_BYTES - 1;
  for (; number <= TEXTS; number++, kept += TEXT_BYTES) {
    if (!kept[0]) memcpy(kept, text, size);
    if (!memcmp(kept, text, size) && !kept[size]) break;
  }
  record_of(s, query)->text = number;
}

int open_socket(const sender *s) {
  const struct addrinfo *to = s->address;
  const int made = socket(to->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), yes = 1;
  if (made < 0) return -errno;
  if (connect(made, to->ai_addr, to->ai_addrlen) < 0 && errno != EINPROGRESS) {
    const int why = errno;
    close(made);
    return -why;
  }
  setsockopt(made, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  return made;
}

void watch(const sender *s, const connection *c, int socket, int operation, uint32_t events) {
  struct epoll_event event = {.events = events, .data.ptr = (void *)c};
  epoll_ctl(s->epoll, operation, socket, &event);
}

int connect_error(int socket) {
  int why = 0;
  socklen_t size = sizeof why;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &why, &size);
  return why;
}
