/* Queries over HTTP/1.1: one at a time on a connection, and one more connection whenever all are busy. The C counterpart
 * of HttpClient in loadgen/http_client.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "transport.h"

enum { RECEIVED_BYTES = 1 << 18, MAX_HEAD_BYTES = 1 << 16, SHOWN_BYTES = 60, BODYLESS = 204, UNCHANGED = 304, OK = 200 };

struct connection {
  connection *before, *next; /* in the list of all */
  connection *below;         /* in the stack of idle ones, or in the list of those that are over */
  call *query;               /* whose answer is awaited, NULL: none */
  const uint8_t *request;    /* what is left to write of it */
  size_t request_size;
  char *kept; /* of an answer whose head is incomplete, or of the body of one that is no good */
  size_t kept_size;
  int64_t body_left; /* bytes that are missing; -1: the head is incomplete */
  int socket, status;
  bool connecting, writing; /* writing: epoll reports when the socket takes more */
  bool used;                /* it has answered before: the server may close it as idle */
  bool stays;               /* it does after this answer */
  bool idle, over;
};

struct connections {
  connection *all, *idle, *over; /* the idle one that was used last is on top: the server may close the others */
  char received[RECEIVED_BYTES];
};

static void end_connection(sender *s, connection *c) {
  if (c->over) return;
  if (c->idle) {
    connection **at = &s->connections->idle;
    while (*at != c) at = &(*at)->below;
    *at = c->below;
  }
  c->idle = false;
  c->over = true;
  c->below = s->connections->over;
  s->connections->over = c;
}

/* Ends the query of a connection, and the connection. */
static void fail(sender *s, connection *c, query_end end, int64_t code) {
  if (c->query) finish(s, c->query, end, code);
  c->query = NULL;
  end_connection(s, c);
}

static void fail_with(sender *s, connection *c, query_end end, const char *text, size_t size) {
  if (c->query && size) keep_text(s, c->query, text, size < SHOWN_BYTES ? size : SHOWN_BYTES);
  fail(s, c, end, 0);
}

static connection *new_connection(sender *s, call *query) {
  connections *all = s->connections;
  connection *c = calloc(1, sizeof *c);
  const int made = c ? open_socket(s) : -ENOMEM;
  if (made < 0) {
    if (query) finish(s, query, UNCONNECTED, -made);
    free(c);
    return NULL;
  }
  c->socket = made;
  c->connecting = c->writing = true;
  c->query = query;
  c->next = all->all;
  if (all->all) all->all->before = c;
  all->all = c;
  watch(s, c, made, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
  return c;
}

static void transmit(sender *s, connection *c) {
  bool full = false;
  while (c->request_size && !full) {
    const ssize_t sent = send(c->socket, c->request, c->request_size, MSG_NOSIGNAL);
    if (sent >= 0) {
      c->request += sent;
      c->request_size -= (size_t)sent;
    } else if (errno == EAGAIN) {
      full = true;
    } else if (errno != EINTR) {
      c->request_size = 0; /* what the server has said before it closed is still to be read */
    }
  }
  if (full != c->writing) watch(s, c, c->socket, EPOLL_CTL_MOD, full ? EPOLLIN | EPOLLOUT : EPOLLIN);
  c->writing = full;
}

static void begin(sender *s, connection *c, call *query) {
  const int64_t request = s->load->request[query - s->calls];
  query->connection = c;
  c->query = query;
  c->request = s->load->data[request];
  c->request_size = (size_t)s->load->size[request];
  c->body_left = -1;
  c->kept_size = 0;
  if (!c->connecting) transmit(s, c);
}

static void connect_for(sender *s, call *query) {
  connection *c = new_connection(s, query);
  if (c) begin(s, c, query);
}

/* The server closed the connection. It may have been idle for too long when the query came: that is sent again. */
static void lost(sender *s, connection *c) {
  const bool fresh = c->body_left < 0 && c->kept_size == 0;
  call *query = c->query;
  if (query && fresh && c->used) {
    c->query = NULL;
    end_connection(s, c);
    connect_for(s, query);
  } else {
    fail(s, c, fresh ? LOST_BEFORE : LOST_WITHIN, 0);
  }
}

static void rest(sender *s, connection *c) {
  c->idle = true;
  c->below = s->connections->idle;
  s->connections->idle = c;
}

/* Answers */

static void answered(sender *s, connection *c) {
  if (c->status != OK && c->kept_size) keep_text(s, c->query, c->kept, c->kept_size);
  finish(s, c->query, RESPONDED, c->status);
  c->query = NULL;
  c->used = true;
  if (!c->stays) end_connection(s, c);
  else if (!c->request_size) rest(s, c); /* an answer may come before the request has left */
}

static bool keep(sender *s, connection *c, const char *data, size_t size) {
  if (!size) return true;
  char *larger = realloc(c->kept, c->kept_size + size);
  if (!larger) {
    fail(s, c, UNCONNECTED, ENOMEM);
    return false;
  }
  memcpy(larger + c->kept_size, data, size);
  c->kept = larger;
  c->kept_size += size;
  return true;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static void trim(const char **value, const char **end) {
  while (*value < *end && (**value == ' ' || **value == '\t')) ++*value;
  while (*end > *value && ((*end)[-1] == ' ' || (*end)[-1] == '\t')) --*end;
}

/* The number that a value is, blanks aside; -1 for anything else. */
static int64_t number(const char *value, const char *end) {
  int64_t found = 0;
  trim(&value, &end);
  if (value == end || end - value > 15) return -1;
  for (; value < end; value++) {
    if (!is_digit(*value)) return -1;
    found = found * 10 + (*value - '0');
  }
  return found;
}

static bool is_named(const char *line, const char *colon, const char *name) {
  return (size_t)(colon - line) == strlen(name) && !strncasecmp(line, name, strlen(name));
}

static bool says_close(const char *value, const char *end) {
  trim(&value, &end);
  return end - value == 5 && !strncasecmp(value, "close", 5);
}

/* Reads a head, which ends before its empty line; false: it is broken, and the query has ended. */
static bool parse_head(sender *s, connection *c, const char *head, size_t size) {
  const char *end = head + size, *line_end = memmem(head, size, "\r\n", 2);
  if (!line_end) line_end = end;
  const size_t length = (size_t)(line_end - head);
  const bool is_http = length >= 12 && !memcmp(head, "HTTP/1.", 7) && head[8] == ' ' && is_digit(head[9]) &&
                       is_digit(head[10]) && is_digit(head[11]) && (length == 12 || head[12] == ' ');
  if (!is_http) {
    fail_with(s, c, NO_STATUS_LINE, head, length);
    return false;
  }
  c->status = (head[9] - '0') * 100 + (head[10] - '0') * 10 + (head[11] - '0');
  c->stays = head[7] == '1';
  c->body_left = c->status == BODYLESS || c->status == UNCHANGED ? 0 : -1;
  for (const char *line = line_end; line < end; line = line_end) {
    line += 2;
    line_end = memmem(line, (size_t)(end - line), "\r\n", 2);
    if (!line_end) line_end = end;
    const char *colon = memchr(line, ':', (size_t)(line_end - line));
    if (!colon) continue;
    if (is_named(line, colon, "content-length")) {
      c->body_left = number(colon + 1, line_end);
      if (c->body_left < 0) {
        fail_with(s, c, BAD_LENGTH, colon + 1, (size_t)(line_end - colon - 1));
        return false;
      }
    } else if (is_named(line, colon, "connection") && says_close(colon + 1, line_end)) {
      c->stays = false;
    }
  }
  if (c->body_left < 0) {
    fail(s, c, NO_LENGTH, 0);
    return false;
  }
  record_of(s, c->query)->bytes = c->body_left;
  return true;
}

static void take_body(sender *s, connection *c, const char *data, size_t size) {
  if ((int64_t)size > c->body_left) {
    fail(s, c, TOO_LONG, 0);
    return;
  }
  const size_t room = TEXT_BYTES - c->kept_size;
  if (c->status != OK && !keep(s, c, data, size < room ? size : room)) return;
  c->body_left -= (int64_t)size;
  if (!c->body_left) answered(s, c);
}

static void take_head(sender *s, connection *c, const char *data, size_t size) {
  const bool first = c->kept_size == 0;
  if (!first) {
    if (!keep(s, c, data, size)) return;
    data = c->kept;
    size = c->kept_size;
  }
  const char *end = memmem(data, size, "\r\n\r\n", 4);
  if (!end) {
    if (size > MAX_HEAD_BYTES || memcmp(data, "HTTP/", size < 5 ? size : 5)) fail_with(s, c, NO_HTTP, data, size);
    else if (first) keep(s, c, data, size);
    return;
  }
  if (!parse_head(s, c, data, (size_t)(end - data))) return;
  char *kept = c->kept; /* `data` may be in it, while the body is kept */
  c->kept = NULL;
  c->kept_size = 0;
  take_body(s, c, end + 4, size - (size_t)(end + 4 - data));
  free(kept);
}

static void receive(sender *s, connection *c) {
  for (;;) {
    char *received = s->connections->received;
    const ssize_t count = recv(c->socket, received, RECEIVED_BYTES, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) lost(s, c);
    else if (!c->query) end_connection(s, c); /* nobody asked for it */
    else if (c->body_left < 0) take_head(s, c, received, (size_t)count);
    else take_body(s, c, received, (size_t)count);
    if (c->over || count < RECEIVED_BYTES) return;
  }
}

/* The transport */

static void event(sender *s, connection *c, uint32_t events) {
  if (c->over) return;
  if (c->connecting) {
    const int why = connect_error(c->socket);
    c->connecting = false;
    if (why) {
      fail(s, c, UNCONNECTED, why);
      return;
    }
    transmit(s, c);
    if (!c->query) rest(s, c);
    return;
  }
  if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) receive(s, c);
  if (c->over || !(events & EPOLLOUT) || !c->request_size) return;
  transmit(s, c);
  if (!c->over && !c->query && !c->request_size) rest(s, c);
}

static void send_query(sender *s, call *query) {
  connection *c = s->connections->idle;
  if (!c) {
    connect_for(s, query);
    return;
  }
  s->connections->idle = c->below;
  c->idle = false;
  begin(s, c, query);
}

static void give_up(sender *s, call *query, query_end end) {
  fail(s, query->connection, end, 0); /* and the connection: its late answer is nobody else's */
}

static void settle(sender *s) {
  connections *all = s->connections;
  for (connection *c; (c = all->over);) {
    all->over = c->below;
    if (c->before) c->before->next = c->next;
    else all->all = c->next;
    if (c->next) c->next->before = c->before;
    watch(s, c, c->socket, EPOLL_CTL_DEL, 0); /* a child that is being started has a copy of the socket */
    close(c->socket);
    free(c->kept);
    free(c);
  }
}

static bool prepare(sender *s) {
  s->connections = calloc(1, sizeof *s->connections);
  return s->connections;
}

static void connect_all(sender *s) {
  for (int64_t i = 0; i < s->load->connections; i++) new_connection(s, NULL);
}

static bool settled(const sender *s) {
  for (const connection *c = s->connections->all; c; c = c->next) {
    if (c->connecting && !c->over) return false;
  }
  return true;
}

static void close_all(sender *s) {
  s->connections->idle = NULL;
  for (connection *c = s->connections->all; c; c = c->next) {
    c->idle = false;
    end_connection(s, c);
  }
  settle(s);
  free(s->connections);
}

const transport http_transport = {
    .prepare = prepare, .connect = connect_all, .settled = settled, .send = send_query,
    .give_up = give_up, .event = event, .settle = settle, .close = close_all,
};
