#include "traces.h"

#include <stdlib.h>
#include <string.h>

#include "wire.h"

enum { TRACEPARENT = 55 /* bytes of version 00: 00-TRACE-PARENT-FLAGS */, SAMPLED = 1 };
static const char NAME[] = "traceparent";
enum { NAME_BYTES = sizeof NAME - 1 };

/* An even chance, of which nothing but the number of traces depends (xorshift64*). */
static uint64_t draw(io_thread *thread) {
  uint64_t state = thread->chance;
  state ^= state >> 12, state ^= state << 25, state ^= state >> 27;
  thread->chance = state;
  return state * UINT64_C(0x2545F4914F6CDD1D);
}

/* Digits in lower case alone, as the standard has them. */
static bool read_hex(const uint8_t *text, uint8_t *target, size_t bytes) {
  for (size_t i = 0; i < 2 * bytes; i++) {
    const uint8_t c = text[i];
    const int digit = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
    if (digit < 0) return false;
    target[i / 2] = (uint8_t)(i % 2 ? target[i / 2] | digit : digit << 4);
  }
  return true;
}

static bool any(const uint8_t *bytes, size_t size) {
  uint8_t all = 0;
  for (size_t i = 0; i < size; i++) all |= bytes[i];
  return all;
}

/* W3C Trace Context, section 3.2; a later version may have more behind the flags. */
static bool parse(const uint8_t *text, size_t size, trace_context *found, uint8_t *flags) {
  uint8_t version;
  if (size < TRACEPARENT || text[2] != '-' || text[35] != '-' || text[52] != '-') return false;
  if (!read_hex(text, &version, 1) || version == 0xFF) return false;
  if (size > TRACEPARENT && (!version || text[TRACEPARENT] != '-')) return false;
  return read_hex(text + 3, found->trace, sizeof found->trace) && any(found->trace, sizeof found->trace) &&
         read_hex(text + 36, found->parent, sizeof found->parent) && any(found->parent, sizeof found->parent) &&
         read_hex(text + 53, flags, 1);
}

/* `count`: how many there are; `value`: the last one's. */
static trace_context read_context(io_thread *thread, const uint8_t *value, size_t size, int count) {
  static const trace_context none = {.sampled = 0};
  trace_context found = none;
  uint8_t flags = 0;
  while (size && (*value == ' ' || *value == '\t')) value++, size--;
  while (size && (value[size - 1] == ' ' || value[size - 1] == '\t')) size--;
  if (count == 1 && parse(value, size, &found, &flags)) {
    if (!(flags & SAMPLED)) return none;
    found.sampled = 1;
    return found;
  }
  const uint64_t below = atomic_load_explicit(&thread->wire->trace_below, memory_order_relaxed); /* 0: never */
  if (!below || draw(thread) >= below) return none;
  return (trace_context){.sampled = 1};
}

static bool is_name(const uint8_t *text) {
  for (size_t i = 0; i < NAME_BYTES; i++)
    if ((text[i] | 0x20) != (uint8_t)NAME[i]) return false;
  return true;
}

trace_context trace_of_head(io_thread *thread, const uint8_t *head, size_t size) {
  const uint8_t *value = NULL, *const end = head + size;
  size_t value_bytes = 0;
  int count = 0;
  for (const uint8_t *line = head, *next; line < end; line = next) {
    const uint8_t *stop = memchr(line, '\n', (size_t)(end - line));
    next = stop ? stop + 1 : end;
    if (!stop || stop - line <= NAME_BYTES || line[NAME_BYTES] != ':' || !is_name(line)) continue;
    if (stop[-1] == '\r') stop--;
    value = line + NAME_BYTES + 1, value_bytes = (size_t)(stop - value);
    count++;
  }
  return read_context(thread, value, value_bytes, count);
}

trace_context trace_of_fields(io_thread *thread, const uint8_t *fields, size_t size) {
  const uint8_t *value = NULL;
  size_t value_bytes = 0;
  int count = 0;
  for (const uint8_t *at = fields, *const end = fields + size; at < end;) {
    uint32_t sizes[2];
    memcpy(sizes, at, sizeof sizes);
    at += sizeof sizes;
    if (sizes[0] == NAME_BYTES && !memcmp(at, NAME, NAME_BYTES)) {
      value = at + NAME_BYTES, value_bytes = sizes[1];
      count++;
    }
    at += sizes[0] + sizes[1];
  }
  return read_context(thread, value, value_bytes, count);
}

void trace_keep(io_thread *thread, const ended_trace *ended) {
  if (!thread->traces) thread->traces = malloc(MOST_TRACES * sizeof *thread->traces);
  if (!thread->traces || thread->trace_count == MOST_TRACES) {
    thread->traces_lost++;
    return;
  }
  thread->traces[thread->trace_count++] = *ended;
}
