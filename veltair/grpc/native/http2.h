/* One end of an HTTP/2 connection (RFC 9113) without TLS and without I/O, as gRPC uses it: frames, streams, flow
 * control, length-prefixed messages. The C counterpart of http2/connection.py, frame_reader.py and stream.py, which are
 * its reference: the same tests run against both.
 *
 * Bytes that arrive go in through h2_target and h2_filled; bytes to send wait in h2_output until h2_sent. Nothing here
 * but h2_free_message is thread-safe: a connection belongs to one thread.
 */
#ifndef VELTAIR_HTTP2_H
#define VELTAIR_HTTP2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#include "hpack.h"

typedef struct h2_connection h2_connection;
typedef struct h2_stream h2_stream;

/* What the owner of a connection is told. `owner` is what h2_new got. A stream's pointer is valid until `closed` has
 * returned. */
typedef struct {
  /* A header list is complete: the head of a request or response, or trailers. The fields are valid during the call. */
  void (*headers)(void *owner, h2_stream *stream, const hpack_field *fields, int count);
  /* Whether there is room for a message of so many bytes; false: the callee ends the stream. NULL: always. */
  bool (*room)(void *owner, h2_stream *stream, size_t size);
  /* A part of a message has come that is larger than what came with it, and not wanted yet: without h2_want the other
   * side sends no more of it than its window of 64 KB. NULL: all are wanted. */
  void (*begun)(void *owner, h2_stream *stream, const uint8_t *data, size_t size);
  /* A message is complete. `data` is the callee's, who frees it with h2_free_message. */
  void (*message)(void *owner, h2_stream *stream, uint8_t *data, size_t size, bool compressed);
  /* A message of more than the allowed bytes is announced; the callee ends the stream. Its further data is dropped. */
  void (*too_large)(void *owner, h2_stream *stream, size_t size);
  /* The other side sends no more on this stream. */
  void (*end)(void *owner, h2_stream *stream);
  /* The other side reset the stream (an HTTP/2 error code), or the connection is lost (-1). `closed` follows. */
  void (*aborted)(void *owner, h2_stream *stream, int64_t code);
  /* No frame of the stream waits any more: all are in the output. Comes within h2_headers and h2_data where nothing
   * holds them back. */
  void (*flushed)(void *owner, h2_stream *stream);
  /* The stream is over and its pointer becomes invalid; comes exactly once for every stream that `headers` or h2_open
   * made known. */
  void (*closed)(void *owner, h2_stream *stream);
  /* The other side's settings are in force (a client may begin). May be NULL. */
  void (*ready)(void *owner);
  /* The head of a request is larger than allowed; the callee ends the stream. NULL: it is reset. */
  void (*long_head)(void *owner, h2_stream *stream);
  /* The system gives no memory for a message; the callee ends the stream. NULL: it is reset. */
  void (*no_memory)(void *owner, h2_stream *stream);
} h2_handler;

/* What the other side may have. */
typedef struct {
  uint64_t message_bytes; /* of the largest message */
  uint32_t streams;       /* open at the same time */
  uint32_t header_bytes;  /* of a header list, HPACK_LIST_BYTES at most */
} h2_limits;

enum { H2_STREAMS = 1024, H2_HEADER_BYTES = HPACK_LIST_BYTES };

/* A server's end, or a client's. NULL when there is no memory. The preface and settings are in the output at once. */
h2_connection *h2_new(bool server, const h2_limits *limits, const h2_handler *handler, void *owner);
/* Tells every stream that it is aborted (-1) and closed, then frees the connection. Not from within a callback. */
void h2_free(h2_connection *connection);

/* Where the next bytes from the socket belong: `*size` bytes of memory, inside the message being received where most
 * of it is missing, so that large messages are copied by the kernel alone. */
uint8_t *h2_target(h2_connection *connection, size_t *size);
/* `size` bytes were read into h2_target. Calls the handler. */
void h2_filled(h2_connection *connection, size_t size);

/* What waits to be sent, in order: `*size` bytes, valid until the next call that queues something. h2_sent(n) drops the
 * first n of them. Above 1 MB no frame of a stream is added until h2_sent drains it below. */
const uint8_t *h2_output(h2_connection *connection, size_t *size);
/* The same in pieces: with h2_kept_data it lies in several places, and h2_output gives the first. Returns how many. */
int h2_output_pieces(const h2_connection *connection, struct iovec *pieces, int most);
void h2_sent(h2_connection *connection, size_t size);

/* The connection has to be closed once its output is sent: the other side broke the protocol (a GOAWAY says how). */
bool h2_failed(const h2_connection *connection);
/* Time has passed: so many of the frames that cost more than they brought are forgiven. */
void h2_calm(h2_connection *connection, int frames);
/* One side has announced that no streams begin any more. */
bool h2_leaving(const h2_connection *connection);
void h2_leave(h2_connection *connection); /* announces it */
void h2_ping(h2_connection *connection);  /* asks for an answer, which nobody is told of */
size_t h2_streams(const h2_connection *connection); /* open ones */
h2_stream *h2_first(const h2_connection *connection); /* the oldest open one; NULL without any */
h2_stream *h2_next(const h2_stream *stream);
size_t h2_memory(const h2_connection *connection); /* bytes that it holds */
/* Whether the other side owes the rest of its preface, its settings, a header block or another frame but data. */
bool h2_midway(const h2_connection *connection);
uint32_t h2_max_streams(const h2_connection *connection); /* at the same time, by the other side's settings */

/* A client's new stream, numbered; NULL when leaving or without memory. */
h2_stream *h2_open(h2_connection *connection);

/* Queues a header block (already encoded, at most 16,384 bytes), or data of any size, of which a copy is made; flow
 * control decides when it leaves. Ignored behind an end and on closed streams. `end`: nothing follows. */
void h2_headers(h2_stream *stream, const uint8_t *block, size_t size, bool end);
void h2_data(h2_stream *stream, const uint8_t *data, size_t size, bool end);
/* Without a copy of large data: the caller keeps it until h2_free, as the output may refer to it. */
void h2_kept_data(h2_stream *stream, const uint8_t *data, size_t size, bool end);
/* Ends a stream at once with a RST_STREAM, where it is not over yet. `closed` is called. */
void h2_reset(h2_stream *stream, uint32_t code);
/* The rest of the message that has begun may come. */
void h2_want(h2_stream *stream);
/* On streams whose messages are taken one by one: while `held` nothing extends the stream's receive window. */
void h2_hold(h2_stream *stream, bool held);

bool h2_remote_open(const h2_stream *stream); /* the other side may still send */
uint32_t h2_number(const h2_stream *stream);
void h2_set_context(h2_stream *stream, void *context); /* the owner's */
void *h2_context(const h2_stream *stream);

void h2_free_message(uint8_t *data);

#endif
