#include "traces.h"

#include <stdlib.h>
#include <string.h>

#include "wire.h"

enum { TRACEPARENT = 55 /* bytes of version 00: 00-TRACE-PARENT-FLAGS */, SAMPLED = 1 };
static const char PARENT_NAME[] = "traceparent", STATE_NAME[] = "tracestate";
enum { PARENT = sizeof PARENT_NAME - 1, STATE = sizeof STATE_NAME - 1 };

/* What a head has of a context. */
typedef struct {
  const uint8_t *parent; /* the last one's value */
  size_t parent_bytes;
  uint32_t parents; /* how many there are */
  trace_state state;
} found_fields;

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

/* Without the white space round it. */
static const uint8_t *trim(const uint8_t *value, size_t *size) {
  while (*size && (*value == ' ' || *value == '\t')) value++, --*size;
  while (*size && (value[*size - 1] == ' ' || value[*size - 1] == '\t')) --*size;
  return value;
}

static void add_parent(found_fields *to, const uint8_t *value, size_t size) {
  to->parent = trim(value, &size), to->parent_bytes = size;
  to->parents++;
}

/* Several are one list; too long a one counts as none. */
static void add_state(trace_state *to, const uint8_t *value, size_t size) {
  value = trim(value, &size);
  const size_t comma = to->bytes ? 1 : 0;
  if (!size || to->bytes > MOST_STATE) return;
  if (to->bytes + comma + size > MOST_STATE) {
    to->bytes = MOST_STATE + 1;
    return;
  }
  if (comma) to->text[to->bytes] = ',';
  memcpy(to->text + to->bytes + comma, value, size);
  to->bytes += (uint32_t)(comma + size);
}

static uint32_t keep_state(io_thread *thread, trace_state *state) {
  if (!state->bytes || state->bytes > MOST_STATE) return 0;
  if (!thread->states) thread->states = calloc(KEPT_STATES, sizeof *thread->states);
  if (!thread->states) return 0;
  if (!++thread->last_state) ++thread->last_state;
  state->number = thread->last_state;
  thread->states[state->number % KEPT_STATES] = *state;
  return state->number;
}

static trace_context read_context(io_thread *thread, found_fields *fields) {
  static const trace_context none = {.sampled = 0};
  trace_context found = none;
  uint8_t flags = 0;
  if (fields->parents == 1 && parse(fields->parent, fields->parent_bytes, &found, &flags)) {
    if (!(flags & SAMPLED)) return none;
    found.sampled = 1;
    found.state = keep_state(thread, &fields->state);
    return found;
  }
  const uint64_t below = atomic_load_explicit(&thread->wire->trace_below, memory_order_relaxed); /* 0: never */
  if (!below || draw(thread) >= below) return none;
  return (trace_context){.sampled = 1};
}

/* Whether a line has this name, in whatever case; its value is behind it. */
static bool has_name(const uint8_t *line, const uint8_t *stop, const char *name, size_t bytes) {
  if ((size_t)(stop - line) <= bytes || line[bytes] != ':') return false;
  for (size_t i = 0; i < bytes; i++)
    if ((line[i] | 0x20) != (uint8_t)name[i]) return false;
  return true;
}

trace_context trace_of_head(io_thread *thread, const uint8_t *head, size_t size) {
  found_fields found;
  found.parents = found.state.bytes = 0;
  const uint8_t *const end = head + size;
  for (const uint8_t *line = head, *next; line < end; line = next) {
    const uint8_t *stop = memchr(line, '\n', (size_t)(end - line));
    next = stop ? stop + 1 : end;
    if (!stop || stop == line || (*line | 0x20) != 't') continue;
    if (stop[-1] == '\r') stop--;
    if (has_name(line, stop, PARENT_NAME, PARENT)) add_parent(&found, line + PARENT + 1, (size_t)(stop - line - PARENT - 1));
    else if (has_name(line, stop, STATE_NAME, STATE)) add_state(&found.state, line + STATE + 1, (size_t)(stop - line - STATE - 1));
  }
  return read_context(thread, &found);
}

trace_context trace_of_fields(io_thread *thread, const uint8_t *fields, size_t size) {
  found_fields found;
  found.parents = found.state.bytes = 0;
  for (const uint8_t *at = fields, *const end = fields + size; at < end;) {
    uint32_t sizes[2];
    memcpy(sizes, at, sizeof sizes);
    at += sizeof sizes;
    if (sizes[0] == PARENT && !memcmp(at, PARENT_NAME, PARENT)) add_parent(&found, at + PARENT, sizes[1]);
    if (sizes[0] == STATE && !memcmp(at, STATE_NAME, STATE)) add_state(&found.state, at + STATE, sizes[1]);
    at += sizes[0] + sizes[1];
  }
  return read_context(thread, &found);
}

void trace_keep(io_thread *thread, const ended_trace *ended) {
  if (!thread->traces) thread->traces = malloc(MOST_TRACES * sizeof *thread->traces);
  if (!thread->traces || thread->trace_count == MOST_TRACES) {
    thread->traces_lost++;
    return;
  }
  ended_trace *const kept = &thread->traces[thread->trace_count++];
  *kept = *ended;
  const trace_state *state = ended->trace.state ? &thread->states[ended->trace.state % KEPT_STATES] : NULL;
  if (!state || state->number != ended->trace.state) return;
  kept->state_bytes = state->bytes;
  memcpy(kept->state, state->text, state->bytes);
}
