/* How queries reach the server and what their ends are: by channel.c over gRPC, by http1.c over HTTP/1.1. */
#ifndef VELTAIR_TRANSPORT_H
#define VELTAIR_TRANSPORT_H

#include <netdb.h>
#include <stdbool.h>

#include "sender.h"

typedef struct connection connection;   /* each transport has its own */
typedef struct connections connections; /* all that a transport holds */
typedef struct h2_stream h2_stream;
typedef struct transport transport;

/* A query once it is sent. */
typedef struct call {
  struct call *next;      /* in the list that it is in */
  connection *connection; /* NULL while it waits for one */
  h2_stream *stream;      /* gRPC: NULL while it has none */
  int16_t http_status;    /* gRPC: -1: not received */
  int8_t status;          /* gRPC: grpc-status; -1: not received */
  bool alone;             /* gRPC: no other call was open when it began */
  bool refused;           /* gRPC: the server has not looked at it */
} call;

typedef struct {
  const load *load;
  const transport *transport;
  connections *connections;
  call *calls; /* (queries,) */
  struct addrinfo *address;
  int epoll;
  int64_t start_ns; /* of the run, by CLOCK_MONOTONIC */
  int64_t sent, done;
} sender;

struct transport {
  /* Makes sender->connections; false: there is no memory. */
  bool (*prepare)(sender *sender);
  /* Begins to make the first connections. */
  void (*connect)(sender *sender);
  /* Whether none of them is under way any more. */
  bool (*settled)(const sender *sender);
  /* Takes a query up; it leaves with the next call of `settle` at the latest. */
  void (*send)(sender *sender, call *query);
  /* Ends a query, whose answer is not waited for any more, with TIMED_OUT or STOPPED. */
  void (*give_up)(sender *sender, call *query, query_end end);
  /* Reads and writes what epoll says is possible. */
  void (*event)(sender *sender, connection *connection, uint32_t events);
  /* Writes, and closes what is over. Pointers from epoll are invalid afterwards. */
  void (*settle)(sender *sender);
  void (*close)(sender *sender);
};

extern const transport grpc_transport, http_transport;

int64_t now_ns(void);
query_record *record_of(const sender *sender, const call *query);
/* Ends a query, once. */
void finish(sender *sender, const call *query, query_end end, int64_t code);
/* Keeps a text of a query's end in its record; what is beyond TEXT_BYTES is cut. */
void keep_text(const sender *sender, const call *query, const char *text, size_t size);
/* A socket that connects to the server, or an errno, negative. */
int open_socket(const sender *sender);
/* Tells epoll what to report of a connection. */
void watch(const sender *sender, const connection *connection, int socket, int operation, uint32_t events);
/* Why a socket could not connect: an errno, or 0. */
int connect_error(int socket);

#endif
