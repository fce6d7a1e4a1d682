/* A channel: one connection to the server, made again after it was lost, and the queries that wait for it. The C
 * counterpart of GrpcChannel and ServerConnection in veltair/grpc/client.py. */
#ifndef VELTAIR_CHANNEL_H
#define VELTAIR_CHANNEL_H

#include <netdb.h>
#include <stdbool.h>

#include "http2.h"
#include "sender.h"

typedef struct connection connection;
typedef struct channel channel;

/* A query once it is sent. */
typedef struct call {
  struct call *next;      /* in the list that it is in */
  connection *connection; /* NULL while it waits for one */
  h2_stream *stream;      /* NULL while it has none */
  int16_t http_status;    /* -1: not received */
  int8_t status;          /* grpc-status; -1: not received */
  bool alone;             /* no other call was open when it began */
  bool refused;           /* the server has not looked at it */
} call;

typedef struct {
  const load *load;
  call *calls;             /* (queries,) */
  channel *channels;       /* (connections,) */
  connection *connections; /* a list: those of the channels, and those whose server leaves */
  struct addrinfo *address;
  int epoll;
  int64_t start_ns; /* of the run, by CLOCK_MONOTONIC */
  int64_t sent, done;
} sender;

struct channel {
  sender *sender;
  connection *connection; /* NULL: the next query makes one */
  call *first, *last;     /* queries that wait for the connection, or for a stream of it */
};

int64_t now_ns(void);

/* Begins to connect. */
void channel_connect(channel *channel);
/* Nothing is under way that makes the channel ready. */
bool channel_settled(const channel *channel);
/* Takes a query up; it leaves with the next call of connections_settle. */
void channel_send(channel *channel, call *query);
/* Ends a query, whose answer is not waited for any more, with TIMED_OUT or STOPPED. */
void call_give_up(sender *sender, call *query, query_end end);

/* Reads and writes what epoll says is possible. */
void connection_event(connection *connection, uint32_t events);
/* Lets waiting queries begin, writes, and closes what is over. Pointers from epoll are invalid afterwards. */
void connections_settle(sender *sender);
void connections_close(sender *sender);

#endif
