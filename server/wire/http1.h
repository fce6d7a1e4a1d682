/* What the files of an HTTP/1.1 connection share.
 *
 * Requests are handled one after the other: read, then either answered here or passed on to uvicorn over a connection
 * of its own, whose response is passed back. Bytes behind a request wait until it is answered. Of a body in chunks the
 * data alone is passed on, in chunks of our own. Where only the two ends can tell where a message ends, everything is
 * passed on from there, in both directions, but no more from the client than MOST_UNHEARD without a word of uvicorn.
 */
#ifndef VELTAIR_HTTP1_H
#define VELTAIR_HTTP1_H

#include "buffer.h"
#include "http1_chunks.h"
#include "http1_head.h"
#include "wire.h"

enum { MOST_HEAD = 1 << 16 };     /* bytes of a head, which is held until it is complete */
enum { MOST_UNHEARD = 1 << 16 };  /* bytes passed on that uvicorn may still hold for a head */
enum { MOST_WAITING = 1 << 18 };  /* bytes in one direction; while there are more, no more are read for it */

enum http1_state { READS_HEAD, READS_BODY, ASKS, DISCARDS, FORWARDS, TUNNELS };

typedef struct {
  asker asker; /* first, so that either is found from the other */
  enum http1_state state;
  bool advancing;
  bool planned; /* while the body is read: there is a plan for its head */
  bool ended;   /* the client sends no more */
  bool closing; /* nothing is read any more; closed once everything is sent */
  http1_head head;
  buffer in, out; /* from the client, and for it */
  uint64_t discard; /* bytes of a body that nobody reads: its request has been refused */
  int64_t since_ns;  /* it is idle, the head has begun, the body has, or the last byte of a tunnel has come */
  bool asks_python;  /* it is counted among the requests of Python */
  /* Of what is passed on. */
  connection *uvicorn; /* NULL while there is none */
  int64_t uvicorn_used_ns;
  bool deaf;     /* uvicorn takes no more bytes */
  bool told_end; /* that the client sends no more */
  bool replied;  /* the response is complete */
  bool in_reply; /* its head is */
  http1_head reply;
  uint64_t request_left, reply_left; /* bytes of each to be passed on */
  chunks chunks;    /* of a request's body */
  uint64_t unheard; /* bytes of a tunnel since uvicorn's last ones */
  buffer up, down;                   /* for uvicorn, and from it */
} http1;

/* http1.c */
void http1_advance(http1 *on);  /* as far as the bytes that are there allow */
void http1_begin(http1 *on);    /* what it does next, which may take only so long */
void http1_answered(http1 *on); /* the response to its request is in `out` */
void http1_python_done(http1 *on);
void http1_await_reader(http1 *on); /* its client sends no more, and has sent the whole request */

/* Nothing more is read of it; `number`: the refusal. */
void http1_refuse_connection(http1 *on, int number);
/* Whether the client still has to send a part of the request that is passed on. */
static inline bool http1_awaits_request(const http1 *on) {
  return on->request_left || (on->head.chunked && !on->head.opaque && on->chunks.state == CHUNKS_GO_ON);
}

/* http1_body.c */
/* What the JSON at the beginning of a body adds to a key that has its path and tenant. False: it can have no plan. */
bool http1_read_json(const uint8_t *json, size_t size, request *found);
bool http1_request(const http1 *on, request *found); /* once its JSON is there */
bool http1_fill(const plan *plan, const request *from, uint8_t *slot);
bool http1_respond(asker *to, const query *of, const uint8_t *slot);
void http1_refuse(asker *to, status status, const char *text, size_t size);

/* http1_chunked.c */
/* Passes on what has come of the chunks, `room` bytes of their data at most, as one chunk: what many small ones cost is
 * paid here. False: without memory. */
bool http1_pass_chunks(http1 *on, size_t room);

/* http1_forward.c */
void http1_forward(http1 *on); /* the request whose head has been read */
void http1_tunnel(http1 *on);  /* everything from here on */
bool http1_pass_on(http1 *on); /* what has come from the client. Returns whether the next request may be read */
void http1_forget_uvicorn(http1 *on);

#endif
