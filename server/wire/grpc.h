/* What the files of gRPC share: a connection and its calls. */
#ifndef VELTAIR_GRPC_H
#define VELTAIR_GRPC_H

#include "wire.h"

/* What a connection over gRPC is, beside the protocol. */
typedef struct {
  h2_connection *h2;
  size_t held; /* bytes of heads and messages, its calls' */
  int64_t calm_ns;
  int64_t midway_since_ns; /* it owes the rest of a frame; 0: it does not */
  int64_t idle_since_ns;   /* it has no calls; 0: it has */
  bool ended;              /* the client sends no more */
  bool closing;            /* it was idle for too long, and knows that it is left */
} grpc_connection;

/* grpc.c */
extern const h2_handler grpc_handler;                /* of each connection's streams */
void grpc_refuse_call(call *of, int number);         /* whatever it is: for this reason */
bool grpc_respond(asker *to, const query *of, const uint8_t *slot);
void grpc_refuse(asker *to, status status, const char *text, size_t size);

#endif
