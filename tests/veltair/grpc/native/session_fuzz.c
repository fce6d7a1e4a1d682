/* Plays recorded sessions, damaged at random, to a connection whose owner does anything at any time. Built with
 * sanitizers, which find what goes wrong; every stream owns memory that `closed` frees, so that they also find streams
 * that close twice or never.
 *
 * session_fuzz FILE ROUNDS; the file has records of an owner (u8; odd: a server's end), size (u32, little-endian), bytes.
 * With LIBFUZZER defined it is a target of libFuzzer instead, whose input is an owner and bytes (bench/fuzz). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http2.h"

typedef struct {
  uint64_t state;
  h2_connection *connection;
  h2_stream *recent; /* an open stream, or none */
  uint64_t checksum;
  size_t open, messages;
} session;

typedef struct {
  h2_stream *stream;
} call;

static uint32_t pick(session *s, uint32_t below) {
  s->state = s->state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(s->state >> 33) % below;
}

static void make_known(session *s, h2_stream *stream) {
  if (h2_context(stream)) return;
  call *made = malloc(sizeof *made);
  made->stream = stream;
  h2_set_context(stream, made);
  s->recent = stream;
  s->open++;
}

/* Returns whether the stream is still there. */
static bool act(session *s, h2_stream *stream) {
  static const uint8_t block[] = "\x88\x00\x02te\x08trailers";
  static const uint8_t data[200000];
  const size_t before = s->open;
  switch (pick(s, 12)) {
    case 0: h2_headers(stream, block, sizeof block - 1, false); break;
    case 1: h2_headers(stream, block, sizeof block - 1, true); break;
    case 2: h2_data(stream, data, pick(s, 300), pick(s, 3) == 0); break;
    case 3: h2_data(stream, data, pick(s, sizeof data), pick(s, 3) == 0); break;
    case 4: h2_reset(stream, 8); break;
    case 5: h2_hold(stream, true); break;
    case 6: h2_hold(stream, false); break;
    case 7: h2_kept_data(stream, data, pick(s, sizeof data), pick(s, 3) == 0); break;
    default: break;
  }
  return s->open == before;
}

static void headers(void *owner, h2_stream *stream, const hpack_field *fields, int count) {
  session *s = owner;
  make_known(s, stream);
  for (int i = 0; i < count; i++)
    for (uint32_t j = 0; j < fields[i].value_size; j++) s->checksum += (uint8_t)fields[i].value[j];
  if (act(s, stream)) act(s, stream);
}

static void message(void *owner, h2_stream *stream, uint8_t *data, size_t size, bool compressed) {
  session *s = owner;
  for (size_t i = 0; i < size; i++) s->checksum += data[i];
  s->checksum += compressed;
  s->messages++;
  h2_free_message(data);
  if (act(s, stream)) act(s, stream);
}

static void too_large(void *owner, h2_stream *stream, size_t size) {
  (void)size;
  act(owner, stream);
}

static void end(void *owner, h2_stream *stream) {
  if (act(owner, stream)) act(owner, stream);
}

static void aborted(void *owner, h2_stream *stream, int64_t code) {
  (void)code;
  act(owner, stream); /* ignored */
}

static void flushed(void *owner, h2_stream *stream) {
  session *s = owner;
  if (pick(s, 4) == 0) act(s, stream);
}

static void closed(void *owner, h2_stream *stream) {
  session *s = owner;
  call *known = h2_context(stream);
  if (known->stream != stream) abort();
  free(known);
  h2_set_context(stream, NULL);
  if (s->recent == stream) s->recent = NULL;
  s->open--;
}

static bool room(void *owner, h2_stream *stream, size_t size) {
  session *s = owner;
  (void)size;
  if (pick(s, 16)) return true;
  h2_reset(stream, 2);
  return false;
}

static void begun(void *owner, h2_stream *stream, const uint8_t *data, size_t size) {
  session *s = owner;
  for (size_t i = 0; i < size; i += 100) s->checksum += data[i];
  if (pick(s, 4)) h2_want(stream);
  else act(s, stream);
}

static const h2_handler handler = {
    .headers = headers, .room = room, .begun = begun, .message = message, .too_large = too_large,
    .end = end, .aborted = aborted, .flushed = flushed, .closed = closed,
};

static void send_some(session *s) {
  size_t size;
  const uint8_t *output = h2_output(s->connection, &size);
  if (size > (1u << 24)) abort(); /* it is bounded */
  const size_t sent = pick(s, 3) ? size : pick(s, (uint32_t)size + 1);
  for (size_t i = 0; i < sent; i += 100) s->checksum += output[i];
  h2_sent(s->connection, sent);
}

static void play(session *s, bool server, const uint8_t *bytes, size_t size) {
  static const h2_limits limits = {1 << 18, H2_STREAMS, H2_HEADER_BYTES};
  s->connection = h2_new(server, &limits, &handler, s);
  const bool slow = pick(s, 8) == 0;
  for (int i = server ? 0 : 5; i > 0; i--) {
    h2_stream *stream = h2_open(s->connection);
    make_known(s, stream);
    act(s, stream);
  }
  for (size_t at = 0; at < size && !h2_failed(s->connection);) {
    size_t room;
    uint8_t *target = h2_target(s->connection, &room);
    size_t part = slow ? 1 + pick(s, 20) : 1 + pick(s, 1 << 17);
    if (part > room) part = room;
    if (part > size - at) part = size - at;
    if (s->recent && pick(s, 8) == 0) act(s, s->recent); /* also a reset, while a read into its message is under way */
    memcpy(target, bytes + at, part);
    h2_filled(s->connection, part);
    at += part;
    if (pick(s, 4) == 0) send_some(s);
    if (pick(s, 1000) == 0) h2_leave(s->connection);
  }
  send_some(s);
  if (h2_streams(s->connection) != s->open) abort();
  h2_free(s->connection);
  if (s->open) abort();
}

static void damage(session *s, uint8_t *bytes, size_t size) {
  for (uint32_t left = pick(s, 4); left > 0 && size; left--) {
    const size_t at = pick(s, (uint32_t)size);
    switch (pick(s, 3)) {
      case 0: bytes[at] = (uint8_t)pick(s, 256); break;
      case 1: bytes[at] ^= (uint8_t)(1u << pick(s, 8)); break;
      default: memmove(bytes + at, bytes + at + (size - at) / 8, size - at - (size - at) / 8);
    }
  }
}

#ifdef LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (!size) return 0;
  session s = {.state = bytes[0]};
  play(&s, bytes[0] & 1, bytes + 1, size - 1);
  return 0;
}

#else

int main(int count, char **arguments) {
  if (count != 3) return 2;
  FILE *file = fopen(arguments[1], "rb");
  const uint64_t rounds = strtoull(arguments[2], NULL, 10);
  if (!file) return 2;
  uint8_t head[5];
  session s = {0};
  for (uint64_t record = 0; fread(head, sizeof head, 1, file) == 1; record++) {
    const size_t size = head[1] | (size_t)head[2] << 8 | (size_t)head[3] << 16 | (size_t)head[4] << 24;
    uint8_t *bytes = malloc(size + 1), *damaged = malloc(size + 1);
    if (fread(bytes, 1, size, file) != size) return 2;
    for (uint64_t round = 0; round < rounds; round++) {
      s.state = round ? record << 32 | round : head[0];
      memcpy(damaged, bytes, size);
      if (round) damage(&s, damaged, size);
      play(&s, head[0] & 1, damaged, size);
    }
    free(bytes);
    free(damaged);
  }
  fclose(file);
  printf("%zu messages, checksum %llu\n", s.messages, (unsigned long long)s.checksum);
  return 0;
}

#endif
