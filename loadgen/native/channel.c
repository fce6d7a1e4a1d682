/* Queries over gRPC. A channel is one connection to the server, made again after it was lost, and the queries that wait
 * for it. The C counterpart of GrpcChannel and ServerConnection in veltair/grpc/client.py. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http2.h"
#include "transport.h"

enum { REFUSED_STREAM = 7, CANCEL = 8, LARGEST_STATUS = 16 };
enum { PIECES = 128 }; /* of the output in one system call */
enum { READS = 16 }; /* in a row from one connection: other queries are due meanwhile */
#define MAX_RESPONSE_BYTES ((size_t)INT32_MAX) /* protobuf has no larger message */

typedef struct {
  sender *sender;
  connection *connection; /* NULL: the next query makes one */
  call *first, *last;     /* queries that wait for the connection, or for a stream of it */
  int64_t turns;          /* of a tenant's first channel: queries that its channels got */
} channel;

struct connection {
  connection *next;
  channel *channel;
  h2_connection *http2;
  call *ended; /* calls that the server has ended, perhaps before their requests were sent */
  int socket;
  bool connecting, ready; /* ready: the server's settings are known */
  bool touched;           /* connections_settle has to look at it */
  bool writing;           /* epoll reports when the socket takes more */
  bool waiting;           /* a call was refused: nothing begins before another one has ended */
  bool refused;           /* that has just happened */
  bool over;
};

struct connections {
  connection *first; /* those of the channels, and those whose server leaves */
  channel channels[];
};

static void wait_in_front(channel *c, call *query) {
  query->next = c->first;
  c->first = query;
  if (!c->last) c->last = query;
}

/* The first query that waits and has not been given up meanwhile, or NULL. */
static call *take_waiting(channel *c) {
  call *query;
  while ((query = c->first)) {
    c->first = query->next;
    if (!c->first) c->last = NULL;
    if (record_of(c->sender, query)->end == UNSENT) break;
  }
  return query;
}

static void fail_waiting(channel *c, query_end end, int code) {
  for (call *query; (query = take_waiting(c));) finish(c->sender, query, end, code);
}

/* What HTTP/2 tells. */

static bool is(const hpack_field *field, const char *name) {
  return field->name_size == strlen(name) && !memcmp(field->name, name, field->name_size);
}

/* The number that the whole value is, without leading zeros; -1 for anything else. */
static int number(const hpack_field *field, int largest) {
  int found = 0;
  if (field->value_size == 0 || field->value_size > 3 || (field->value_size > 1 && field->value[0] == '0')) return -1;
  for (uint32_t i = 0; i < field->value_size; i++) {
    if (field->value[i] < '0' || field->value[i] > '9') return -1;
    found = found * 10 + (field->value[i] - '0');
  }
  return found > largest ? -1 : found;
}

static void headers(void *owner, h2_stream *stream, const hpack_field *fields, int count) {
  const sender *s = ((connection *)owner)->channel->sender;
  call *query = h2_context(stream);
  const hpack_field *message = NULL;
  for (const hpack_field *field = fields; field < fields + count; field++) {
    if (is(field, "grpc-status")) query->status = (int8_t)number(field, LARGEST_STATUS);
    if (is(field, ":status")) query->http_status = (int16_t)number(field, INT16_MAX);
    if (is(field, "grpc-message") && field->value_size) message = field;
  }
  if (message && query->status != 0) keep_text(s, query, message->value, message->value_size);
}

static void message(void *owner, h2_stream *stream, uint8_t *data, size_t size, bool compressed) {
  (void)compressed;
  record_of(((connection *)owner)->channel->sender, h2_context(stream))->bytes = (int64_t)size;
  h2_free_message(data);
}

static void too_large(void *owner, h2_stream *stream, size_t size) {
  sender *s = ((connection *)owner)->channel->sender;
  call *query = h2_context(stream);
  record_of(s, query)->bytes = (int64_t)size;
  finish(s, query, TOO_LARGE, 0);
  h2_reset(stream, CANCEL);
}

static void end(void *owner, h2_stream *stream) {
  connection *c = owner;
  call *query = h2_context(stream);
  if (query->status >= 0) finish(c->channel->sender, query, ANSWERED, query->status);
  else finish(c->channel->sender, query, NO_STATUS, query->http_status);
  query->next = c->ended;
  c->ended = query;
}

static void aborted(void *owner, h2_stream *stream, int64_t code) {
  call *query = h2_context(stream);
  query->refused = code == REFUSED_STREAM && !query->alone;
  if (!query->refused) finish(((connection *)owner)->channel->sender, query, code < 0 ? LOST : RESET, code);
}

static void flushed(void *owner, h2_stream *stream) {
  (void)owner;
  (void)stream;
}

static void closed(void *owner, h2_stream *stream) {
  connection *c = owner;
  call *query = h2_context(stream);
  query->connection = NULL;
  query->stream = NULL;
  if (query->refused) { /* a server counts a call as open for a moment after its end has left */
    query->refused = false;
    wait_in_front(c->channel, query);
    c->refused = true;
  } else {
    c->waiting = false;
  }
}

static void ready(void *owner) { ((connection *)owner)->ready = true; }

static const h2_handler handler = {
    .headers = headers, .message = message, .too_large = too_large, .end = end,
    .aborted = aborted, .flushed = flushed, .closed = closed, .ready = ready,
};

/* Channels */

static void channel_connect(channel *channel) {
  sender *s = channel->sender;
  connection *c = calloc(1, sizeof *c);
  static const h2_limits limits = {MAX_RESPONSE_BYTES, H2_STREAMS, H2_HEADER_BYTES};
  if (c) c->http2 = h2_new(false, &limits, &handler, c);
  if (!c || !c->http2) {
    free(c);
    fail_waiting(channel, UNCONNECTED, ENOMEM);
    return;
  }
  c->channel = channel;
  c->socket = open_socket(s);
  if (c->socket < 0) {
    fail_waiting(channel, UNCONNECTED, -c->socket);
    h2_free(c->http2);
    free(c);
    return;
  }
  c->connecting = c->writing = true;
  c->next = s->connections->first;
  s->connections->first = channel->connection = c;
  watch(s, c, c->socket, EPOLL_CTL_ADD, EPOLLIN | EPOLLOUT);
}

static int64_t channels_of(const load *l) { return l->connections * l->tenants; }

/* Tenants are different clients: nobody's queries wait behind another's in a socket. */
static channel *next_channel(sender *s, int64_t tenant) {
  channel *own = &s->connections->channels[tenant * s->load->connections];
  return &own[own->turns++ % s->load->connections];
}

static void channel_send(sender *s, call *query) {
  channel *channel = next_channel(s, s->load->tenant[query - s->calls]);
  query->next = NULL;
  if (channel->last) channel->last->next = query;
  else channel->first = query;
  channel->last = query;
  if (!channel->connection) channel_connect(channel);
  if (channel->connection) channel->connection->touched = true;
}

static void call_give_up(sender *s, call *query, query_end end) {
  finish(s, query, end, 0);
  if (!query->stream) return;
  query->connection->touched = true;
  h2_reset(query->stream, CANCEL);
}

/* Connections */

static void begin(connection *c, call *query) {
  const sender *s = c->channel->sender;
  const load *l = s->load;
  const int64_t request = l->request[query - s->calls];
  query->alone = h2_streams(c->http2) == 0;
  query->status = -1;
  query->http_status = -1;
  h2_stream *stream = h2_open(c->http2);
  if (!stream) {
    finish(c->channel->sender, query, UNCONNECTED, ENOMEM);
    return;
  }
  query->connection = c;
  query->stream = stream;
  h2_set_context(stream, query);
  h2_headers(stream, l->head, (size_t)l->head_size, false);
  h2_kept_data(stream, l->data[request], (size_t)l->size[request], true);
}

static void receive(connection *c) {
  for (int i = 0; i < READS && !c->over && !h2_failed(c->http2); i++) {
    size_t size;
    uint8_t *target = h2_target(c->http2, &size);
    const ssize_t count = recv(c->socket, target, size, 0);
    if (count < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (count <= 0) {
      c->over = true;
      return;
    }
    h2_filled(c->http2, (size_t)count);
    if ((size_t)count < size) return;
  }
}

static void transmit(connection *c) {
  bool full = false;
  while (!c->over && !full) {
    struct iovec pieces[PIECES];
    const int count = h2_output_pieces(c->http2, pieces, PIECES);
    if (!count) break;
    const struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
    const ssize_t sent = sendmsg(c->socket, &message, MSG_NOSIGNAL);
    if (sent >= 0) h2_sent(c->http2, (size_t)sent);
    else if (errno == EAGAIN) full = true;
    else if (errno != EINTR) c->over = true;
  }
  if (full != c->writing) watch(c->channel->sender, c, c->socket, EPOLL_CTL_MOD, full ? EPOLLIN | EPOLLOUT : EPOLLIN);
  c->writing = full;
}

static void connection_event(sender *s, connection *c, uint32_t events) {
  (void)s;
  if (c->connecting) {
    const int why = connect_error(c->socket);
    c->connecting = false;
    c->over = why != 0;
    if (why) fail_waiting(c->channel, UNCONNECTED, why);
  } else if (events & (EPOLLIN | EPOLLHUP | EPOLLERR)) {
    receive(c);
  }
  c->touched = true;
}

static void settle(connection *c) {
  channel *channel = c->channel;
  c->touched = false;
  while (c->ended) {
    call *query = c->ended;
    c->ended = query->next;
    if (query->stream) h2_reset(query->stream, CANCEL);
  }
  if (c->refused) c->waiting = h2_streams(c->http2) > 0;
  c->refused = false;
  if (h2_leaving(c->http2) && c->ready && channel->connection == c) channel->connection = NULL;
  while (channel->connection == c && c->ready && !c->waiting && h2_streams(c->http2) < h2_max_streams(c->http2)) {
    call *query = take_waiting(channel);
    if (!query) break;
    begin(c, query);
  }
  if (!c->connecting) transmit(c);
  if (h2_failed(c->http2) || (channel->connection != c && h2_streams(c->http2) == 0)) c->over = true;
}

static void discard(connection *c) {
  channel *channel = c->channel;
  if (channel->connection == c) channel->connection = NULL;
  h2_free(c->http2);
  watch(channel->sender, c, c->socket, EPOLL_CTL_DEL, 0); /* a child that is being started has a copy of the socket, which would keep it there */
  close(c->socket);
  if (!c->ready && !channel->connection) fail_waiting(channel, NO_HTTP2, 0);
  free(c);
}

static void channels_settle(sender *s) {
  for (connection *c = s->connections->first; c; c = c->next) {
    if (c->touched && !c->over) settle(c);
  }
  for (connection **at = &s->connections->first; *at;) {
    connection *c = *at;
    if (c->over) {
      *at = c->next;
      discard(c);
    } else {
      at = &c->next;
    }
  }
  for (channel *c = s->connections->channels; c < s->connections->channels + channels_of(s->load); c++) {
    if (c->first && !c->connection) channel_connect(c);
  }
}

static bool channels_prepare(sender *s) {
  const size_t count = (size_t)channels_of(s->load);
  s->connections = calloc(1, sizeof *s->connections + count * sizeof(channel));
  for (size_t i = 0; s->connections && i < count; i++) s->connections->channels[i].sender = s;
  return s->connections;
}

static void channels_connect(sender *s) {
  for (int64_t i = 0; i < channels_of(s->load); i++) channel_connect(&s->connections->channels[i]);
}

static bool channels_settled(const sender *s) {
  for (int64_t i = 0; i < channels_of(s->load); i++) {
    const connection *c = s->connections->channels[i].connection;
    if (c && !c->ready) return false;
  }
  return true;
}

static void channels_close(sender *s) {
  for (int64_t i = 0; i < channels_of(s->load); i++) {
    s->connections->channels[i].first = s->connections->channels[i].last = NULL;
  }
  for (connection *c = s->connections->first; c; c = c->next) c->over = true;
  channels_settle(s);
  free(s->connections);
}

const transport grpc_transport = {
    .prepare = channels_prepare, .connect = channels_connect, .settled = channels_settled, .send = channel_send,
    .give_up = call_give_up, .event = connection_event, .settle = channels_settle, .close = channels_close,
};
