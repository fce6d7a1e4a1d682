/* What loadgen/native_sender.py gives to send_load, and what it reads afterwards; it has the same layouts. */
#ifndef VELTAIR_SENDER_H
#define VELTAIR_SENDER_H

#include <stdint.h>

enum { TEXTS = 64, TEXT_BYTES = 4096 }; /* distinct error texts that are kept of a tenant, each terminated */
enum { GRPC, HTTP };  /* the protocol */
enum { SENT, DONE };                    /* counts that can be read during the run */

/* How a query ended, and what its `code` then is. */
typedef enum {
  UNSENT,
  ANSWERED,    /* grpc-status */
  RESPONDED,   /* the status of HTTP */
  NO_STATUS,   /* the HTTP status, -1 without one */
  RESET,       /* an error code of HTTP/2 */
  LOST,        /* the connection was lost */
  TOO_LARGE,   /* `bytes` were announced */
  TIMED_OUT,   /* no end within timeout_ns */
  UNCONNECTED, /* errno of the attempt to connect */
  NO_HTTP2,    /* the connection was lost before the server's settings */
  STOPPED,     /* no end before that of the run */
  /* of HTTP/1.1: the connection was lost before or in the middle of an answer, or the answer is broken */
  LOST_BEFORE,
  LOST_WITHIN,
  NO_HTTP,     /* the text: how it begins */
  NO_STATUS_LINE, /* the text: the line */
  BAD_LENGTH,  /* the text: content-length */
  NO_LENGTH,   /* an answer without content-length */
  TOO_LONG,    /* more bytes than content-length */
} query_end;

typedef struct {
  int64_t sent_ns, done_ns; /* from the start of the run */
  int64_t bytes;            /* of the response message */
  int32_t end;              /* of query_end */
  int32_t code;
  int32_t text; /* which of its tenant's texts, from 1; 0: none, TEXTS + 1: one that was not kept */
} query_record;

typedef struct {
  int64_t protocol; /* GRPC or HTTP */
  int64_t queries;
  const int64_t *arrival_ns; /* (queries,) from the start of the run, ascending */
  const int64_t *tenant;     /* (queries,) */
  const int64_t *request;    /* (queries,) index in `data` and `size` */
  const uint8_t *const *data; /* (requests,) gRPC messages with their prefixes, or HTTP requests */
  const int64_t *size;        /* (requests,) */
  const uint8_t *head;        /* gRPC: the encoded header block of every request */
  int64_t head_size;
  const char *host, *port; /* numeric */
  int64_t connections; /* gRPC: of each tenant; HTTP: at first, and more when all are busy */
  int64_t tenants;
  int64_t window_ns;   /* the end of the load */
  int64_t timeout_ns;  /* of a query, from its sending */
  int64_t patience_ns; /* how long a stopped run waits for answers */
  int64_t stop;        /* an eventfd: 1 stops the run, 2 or more ends it at once */
  int64_t *counts;     /* (2,) written during the run */
  query_record *records; /* (queries,) zeros before */
  char *texts;           /* (tenants, TEXTS, TEXT_BYTES) zeros before */
} load;

#endif
