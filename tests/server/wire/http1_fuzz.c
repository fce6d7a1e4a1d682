/* Reads messages from a file and feeds them to the readers: whole, and in parts of chance sizes, damaged or not.
 *
 * Each part lies in memory of its own that ends with it, so that the address sanitizer sees a read behind it. Whatever
 * the parts are, the same is found. Prints how many heads were complete. With LIBFUZZER defined it is a target of
 * libFuzzer instead, whose input is what kind of message it is, and the message (bench/fuzz).
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http1.h"

static uint64_t state = 1;

static uint64_t chance(uint64_t below) {
  state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (state >> 33) % below;
}

static uint8_t *copied(const uint8_t *bytes, size_t size) {
  uint8_t *copy = malloc(size ? size : 1);
  if (size) memcpy(copy, bytes, size);
  return copy;
}

static enum head_state read_head(http1_head *head, const uint8_t *bytes, size_t size, bool request) {
  uint8_t *const copy = copied(bytes, size);
  const enum head_state found =
      request ? http1_read_request(head, copy, size, "veltair-tenant", "localhost,a") : http1_read_response(head, copy, size);
  if (found == HEAD_COMPLETE) {
    if (head->bytes > size || head->path.begin + head->path.size > head->bytes) abort();
    if (head->tenant.begin + head->tenant.size > head->bytes) abort();
  }
  free(copy);
  return found;
}

/* Of any bytes as of a head: with whole numbers where the query is traced. */
static void read_trace(const uint8_t *bytes, size_t size) {
  static wire owner;
  static io_thread thread = {.wire = &owner, .chance = 1};
  uint8_t *const copy = copied(bytes, size);
  const trace_context found = trace_of_head(&thread, copy, size);
  uint8_t trace = 0, parent = 0;
  for (size_t i = 0; i < sizeof found.trace; i++) trace |= found.trace[i];
  for (size_t i = 0; i < sizeof found.parent; i++) parent |= found.parent[i];
  if (!found.sampled != !trace || !found.sampled != !parent) abort();
  free(copy);
}

static void read_json(const uint8_t *bytes, size_t size) {
  uint8_t *const copy = copied(bytes, size);
  request found = {0};
  if (http1_read_json(copy, size, &found)) {
    const uint8_t *const end = copy + size;
    if (found.key.part[1] < copy || found.key.part[1] + found.key.size[1] != end) abort();
    if (found.id && found.id + found.id_bytes > end) abort();
  }
  free(copy);
}

/* What a body in chunks is that comes in parts of up to `most` bytes: how much data it has, and how much of it was read. */
static chunks read_chunks(const uint8_t *from, size_t size, size_t most, uint64_t *data, size_t *read) {
  enum { MOST_BESIDE = 50 };
  chunks found = {0};
  *data = 0;
  size_t at = 0, part;
  for (; at < size && found.state == CHUNKS_GO_ON; at += part) {
    part = 1 + chance(most);
    if (part > size - at) part = size - at;
    if (found.left) {
      if (part > found.left) part = (size_t)found.left;
      found.left -= part;
      *data += part;
      continue;
    }
    uint8_t *const copy = copied(from + at, part);
    part = chunks_read(&found, copy, part, MOST_BESIDE);
    free(copy);
  }
  *read = at;
  return found;
}

static void examine_chunks(const uint8_t *bytes, size_t size) {
  uint64_t whole_data, data;
  size_t whole_read, read;
  const chunks whole = read_chunks(bytes, size, size, &whole_data, &whole_read);
  const chunks parts = read_chunks(bytes, size, 3, &data, &read);
  if (whole.state != parts.state || data != whole_data || read != whole_read) abort();
  if (whole.state == CHUNKS_OVER && whole.data != data) abort();
}

static bool examine(const uint8_t *bytes, size_t size, bool request) {
  http1_head whole = {0}, parts = {0};
  const enum head_state expected = read_head(&whole, bytes, size, request);
  enum head_state found = HEAD_PARTIAL;
  for (size_t taken = 0; taken < size && found == HEAD_PARTIAL;) {
    taken += 1 + chance(size - taken < 40 ? size - taken : 40);
    found = read_head(&parts, bytes, taken, request);
  }
  if (size && found != expected) abort();
  read_trace(bytes, size);
  if (found == HEAD_COMPLETE && memcmp(&whole, &parts, sizeof whole)) abort();
  for (int i = 0; i < 4; i++) read_json(bytes + chance(size + 1), 0);
  const size_t begin = chance(size + 1);
  read_json(bytes + begin, size - begin);
  return expected == HEAD_COMPLETE;
}

#ifdef LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  if (!size) return 0;
  state = 1;
  if (bytes[0] % 3 == 2) examine_chunks(bytes + 1, size - 1);
  else examine(bytes + 1, size - 1, bytes[0] % 3 == 0);
  return 0;
}

#else

int main(int count, char **arguments) {
  if (count != 3) return 2;
  FILE *file = fopen(arguments[1], "rb");
  const int rounds = atoi(arguments[2]);
  size_t complete = 0;
  for (uint32_t size; file && fread(&size, sizeof size, 1, file) == 1;) {
    uint8_t *bytes = malloc(size ? size : 1);
    if (fread(bytes, 1, size, file) != size) return 2;
    for (int round = 0; round < rounds; round++) {
      uint8_t *damaged = copied(bytes, size);
      for (uint64_t i = round ? chance(4) : 0; size && i--;) damaged[chance(size)] = (uint8_t)chance(256);
      for (uint64_t i = round ? chance(3) : 0; size && i--;) damaged[chance(size)] = (uint8_t) "\r\n :0,\"{"[chance(8)];
      complete += examine(damaged, size - (round ? chance(size / 8 + 1) : 0), true);
      complete += examine(damaged, size, false);
      examine_chunks(damaged, size);
      free(damaged);
    }
    free(bytes);
  }
  printf("%zu\n", complete);
  return 0;
}

#endif
