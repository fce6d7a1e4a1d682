/* Heads of HTTP/1.1 messages (RFC 9112), read line by line as they arrive. Pure: bytes in, facts out.
 *
 * The readers know just enough to tell where the next message begins and whether a request may have a plan. What is not
 * plainly valid is STRANGE: uvicorn, which gets it unchanged, decides what it is.
 */
#ifndef VELTAIR_HTTP1_HEAD_H
#define VELTAIR_HTTP1_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum head_state { HEAD_PARTIAL, HEAD_COMPLETE, HEAD_STRANGE };

/* A part of a head: offsets, since its bytes may move while it is incomplete. */
typedef struct {
  uint32_t begin, size;
} head_part;

/* All zero before the first bytes. */
typedef struct {
  uint32_t line, searched; /* where the first incomplete line begins, and up to where it has no end */
  bool begun;              /* the first line is complete */
  size_t bytes;            /* of the head, with the empty line */
  uint64_t body;           /* Content-Length; 0 without */
  bool has_body;           /* there is a Content-Length */
  bool closes;             /* Connection: close, or HTTP/1.0 */
  bool opaque;             /* a coding of the transfer, or two upgrades: only the two ends know where it ends */
  bool chunked;            /* its body is in chunks, of a response at least */
  bool old;                /* HTTP/1.0 */
  /* Of requests. */
  bool to_head;    /* its method is HEAD */
  bool infers;     /* it is inference */
  bool answerable; /* inference without peculiarities */
  bool has_host, has_json, has_tenant, has_authorization;
  uint64_t json; /* Inference-Header-Content-Length */
  head_part path, tenant, authorization;
  head_part upgrade; /* the value of the Connection header that offers one; size 0: none does */
  /* Of responses. */
  int status;
} http1_head;

/* Reads on with all bytes of the message so far. `tenant` is the name of the header that names one, in lower case;
 * `hosts` the names of this server between commas, a star for any. */
enum head_state http1_read_request(http1_head *head, const uint8_t *bytes, size_t size, const char *tenant, const char *hosts);
enum head_state http1_read_response(http1_head *head, const uint8_t *bytes, size_t size);

bool http1_is_token(uint8_t byte); /* of a field's name */

/* Moves *at behind `part`, where that stands there. */
static inline bool skip(const uint8_t **at, const uint8_t *end, const char *part) {
  const size_t size = strlen(part);
  if ((size_t)(end - *at) < size || memcmp(*at, part, size)) return false;
  *at += size;
  return true;
}

#endif
