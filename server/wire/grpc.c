/* The calls of gRPC: inference without peculiarities becomes a query, everything else is Python's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "grpc.h"

enum { RESOURCE_EXHAUSTED = 8 };
enum { MOST_DETAIL = 2048 /* bytes of a status message */ };
enum { MOST_AHEAD = 4096 /* messages of a stream that Python has not begun to handle */ };
enum { MESSAGE_BYTES = 512 /* that a message of any size costs on its way to Python */ };
enum { MOST_HEAD_BYTES = 1 << 12 /* of a message, in front of its tensors; a window is larger */ };

/* Counts what the call holds by now. */
static void count_held(call *of) {
  grpc_connection *on = of->asker.connection->state;
  const size_t now =
      sizeof *of + of->ahead + (of->fields ? of->fields_bytes : 0) + (of->message ? of->message_bytes : 0);
  on->held += now - of->held; /* which wraps as it should where it shrinks */
  of->held = now;
}

static bool is(const hpack_field *field, const char *name) {
  return field->name_size == strlen(name) && !memcmp(field->name, name, field->name_size);
}

static bool begins(const hpack_field *field, const char *text) {
  return field->value_size >= strlen(text) && !memcmp(field->value, text, strlen(text));
}

static bool has(const hpack_field *field, const char *text) { return field->value_size == strlen(text) && begins(field, text); }

static const int64_t NEVER_NS = INT64_C(1) << 62;

/* grpc-timeout: up to eight digits and a unit. 0 for a value that cannot be read. */
static int64_t deadline_of(const hpack_field *field, int64_t now) {
  static const char units[] = "HMSmun";
  static const int64_t unit_ns[] = {3600000000000, 60000000000, 1000000000, 1000000, 1000, 1};
  const uint32_t digits = field->value_size - 1;
  if (!field->value_size || !digits || digits > 8) return 0;
  int64_t value = 0;
  for (uint32_t i = 0; i < digits; i++) {
    if (field->value[i] < '0' || field->value[i] > '9') return 0;
    value = value * 10 + (field->value[i] - '0');
  }
  const char *unit = memchr(units, field->value[digits], sizeof units - 1);
  if (!unit) return 0;
  const int64_t step_ns = unit_ns[unit - units];
  return value > (NEVER_NS - now) / step_ns ? NEVER_NS : now + value * step_ns;
}

static void refuse_http(call *of) {
  uint8_t block[32];
  const hpack_field status = {":status", "415", 7, 3};
  of->state = OVER;
  mark_dirty(of->asker.connection);
  h2_headers(of->stream, block, hpack_encode(block, &status), true); /* frees the call */
}

/* application/grpc, with what its messages are behind a + or ; such as application/grpc+proto. gRPC-Web is another
 * protocol, whose pages would not understand the answer. */
static bool is_grpc(const hpack_field *type) {
  static const char name[] = "application/grpc";
  const uint32_t size = sizeof name - 1;
  if (!begins(type, name)) return false;
  return type->value_size == size || type->value[size] == '+' || type->value[size] == ';';
}

/* Whether the head is one of a call; what it says is kept. */
static bool read_head(call *new, const hpack_field *fields, int count) {
  const char *const tenant = new->asker.connection->thread->wire->tenant_header;
  bool post = false, grpc = false, infer = false, plain = true, timely = true;
  int tenants = 0, authorizations = 0;
  for (int i = 0; i < count; i++) {
    const hpack_field *field = &fields[i];
    if (is(field, ":method")) post = has(field, "POST");
    else if (is(field, ":path")) infer = has(field, new->asker.connection->thread->wire->infer_path);
    else if (is(field, "content-type")) grpc = is_grpc(field);
    else if (is(field, "grpc-encoding")) plain = has(field, "identity");
    else if (is(field, "grpc-timeout")) {
      new->asker.deadline_ns = deadline_of(field, new->asker.arrival_ns);
      timely = new->asker.deadline_ns;
    } else if (is(field, tenant)) tenants++;
    else if (is(field, "authorization")) authorizations++;
  }
  new->infers = infer;
  new->answerable = infer && plain && timely && tenants <= 1 && authorizations <= 1;
  return post && grpc;
}

/* The value of a field among the packed ones, which stay where they are. NULL: there is none. */
static const uint8_t *find_field(const call *in, const char *name, size_t *bytes) {
  const size_t name_size = strlen(name);
  for (const uint8_t *at = in->fields, *end = at + in->fields_bytes; at < end;) {
    uint32_t size[2];
    memcpy(size, at, sizeof size);
    at += sizeof size;
    if (size[0] == name_size && !memcmp(at, name, name_size)) {
      *bytes = size[1];
      return at + size[0];
    }
    at += size[0] + size[1];
  }
  return NULL;
}

static bool read_request(const call *of, const uint8_t *message, size_t size, request *found) {
  if (!grpc_request(message, size, found)) return false;
  found->key.part[TENANT] = of->tenant, found->key.size[TENANT] = of->tenant_bytes;
  query_name_caller(of->asker.connection, &found->key, of->authorization, of->authorization_bytes);
  return true;
}

void grpc_refuse_call(call *of, int number) {
  wire *owner = of->asker.connection->thread->wire;
  const refusal *why = &owner->refusals[number];
  budget_refuse(&owner->budgets, number);
  if (of->state == PYTHON) python_aborted(of, why->status.grpc);
  grpc_finish(of, why->status.grpc, why->text, strlen(why->text));
}

/* False: the call is over. */
static bool open_in_python(call *of) {
  budgets *all = &of->asker.connection->thread->wire->budgets;
  if (of->infers && !(of->asks_python = budget_ask_python(all))) {
    grpc_refuse_call(of, BUSY);
    return false;
  }
  of->ahead = of->message ? of->message_bytes + MESSAGE_BYTES : 0;
  if (!python_open(of)) return false;
  count_held(of);
  return true;
}

static void send_to_python(call *of, uint8_t *data, size_t size, bool compressed) {
  if (of->taken >= MOST_AHEAD) {
    h2_free_message(data);
    grpc_refuse_call(of, MEMORY);
    return;
  }
  of->ahead = (of->taken ? of->ahead : 0) + size + MESSAGE_BYTES;
  count_held(of);
  python_message(of, data, size, compressed);
}

/* NULL: without memory; the stream is over then. */
static call *begin_call(connection *on, h2_stream *stream) {
  call *new = calloc(1, sizeof *new);
  if (!new) {
    h2_reset(stream, 2 /* INTERNAL_ERROR */);
    return NULL;
  }
  *new = (call){.asker = {.connection = on, .arrival_ns = now_ns()}, .stream = stream};
  h2_set_context(stream, new);
  return new;
}

static void long_head(void *owner, h2_stream *stream) {
  call *new = begin_call(owner, stream);
  if (new) grpc_refuse_call(new, HEAD);
}

static void headers(void *owner, h2_stream *stream, const hpack_field *fields, int count) {
  if (h2_context(stream)) return; /* trailers mean nothing to a server */
  call *new = begin_call(owner, stream);
  if (!new) return;
  const bool call_of_grpc = read_head(new, fields, count);
  new->fields = pack_fields(fields, count, new->asker.connection->certificate, &new->fields_bytes);
  count_held(new);
  if (!call_of_grpc || !new->fields) {
    refuse_http(new);
    return;
  }
  new->tenant = find_field(new, new->asker.connection->thread->wire->tenant_header, &new->tenant_bytes);
  new->authorization = find_field(new, "authorization", &new->authorization_bytes);
  io_thread *const thread = new->asker.connection->thread;
  if (atomic_load_explicit(&thread->wire->traces, memory_order_relaxed) && new->answerable)
    new->asker.trace = trace_of_fields(thread, new->fields, new->fields_bytes);
  thread_expire_at(new->asker.connection->thread, new->asker.arrival_ns + new->asker.connection->thread->wire->budgets.most.body_ns);
  if (!new->answerable) open_in_python(new);
}

static bool room(void *owner, h2_stream *stream, size_t size) {
  const connection *on = owner;
  call *of = h2_context(stream);
  if (!of || may_hold(on, size + MESSAGE_BYTES)) return true;
  grpc_refuse_call(of, MEMORY);
  return false;
}

/* The system gives none for its message. */
static void no_memory(void *owner, h2_stream *stream) {
  (void)owner;
  call *of = h2_context(stream);
  if (of) grpc_refuse_call(of, MEMORY);
}

/* A large message, whose head is enough to refuse it: its client need not send the rest. */
static void begun(void *owner, h2_stream *stream, const uint8_t *data, size_t size) {
  const connection *on = owner;
  call *of = h2_context(stream);
  request found;
  if (!of) return;
  if (!of->message_since_ns) {
    of->message_since_ns = now_ns();
    thread_expire_at(on->thread, of->message_since_ns + on->thread->wire->budgets.most.body_ns);
  }
  if (of->state == RECEIVING && !of->message) {
    const bool read = read_request(of, data, size, &found) && found.tensors < found.end;
    if (!read && size < MOST_HEAD_BYTES) return;
    if (read && query_foresee(&of->asker, &found.key, 0) == REFUSED) return;
  }
  h2_want(stream);
}

static void message(void *owner, h2_stream *stream, uint8_t *data, size_t size, bool compressed) {
  (void)owner;
  call *of = h2_context(stream);
  if (of) of->message_since_ns = 0;
  if (of && of->state == RECEIVING && !of->message && !compressed) {
    of->message = data;
    of->message_bytes = size;
    count_held(of);
    return;
  }
  if (of && of->state == RECEIVING && !open_in_python(of)) of = NULL; /* it is over */
  if (of && of->state == PYTHON) send_to_python(of, data, size, compressed);
  else h2_free_message(data);
}

/* Whether the call's message became a query or was refused, which ends the call. */
static bool begin_query(call *of, const uint8_t *data) {
  request found;
  if (!read_request(of, data, of->message_bytes, &found)) return false;
  of->state = QUERY;
  return query_begin(&of->asker, &found);
}

static void end(void *owner, h2_stream *stream) {
  (void)owner;
  call *of = h2_context(stream);
  if (!of) return;
  of->ended = true;
  if (of->state == PYTHON) {
    python_ended(of);
  } else if (of->state == RECEIVING) {
    uint8_t *const data = of->message;
    of->message = NULL;
    count_held(of);
    if (data && begin_query(of, data)) { /* a refusal has freed the call */
      h2_free_message(data);
    } else {
      of->message = data;
      open_in_python(of);
    }
  }
}

static void too_large(void *owner, h2_stream *stream, size_t size) {
  connection *on = owner;
  call *of = h2_context(stream);
  if (!of) return;
  char text[128];
  const size_t most = on->thread->wire->max_message_bytes;
  const int written = snprintf(text, sizeof text, "a message of %zu bytes; %zu bytes are allowed", size, most);
  if (of->state == PYTHON) python_aborted(of, RESOURCE_EXHAUSTED);
  grpc_finish(of, RESOURCE_EXHAUSTED, text, (size_t)written);
}

static void aborted(void *owner, h2_stream *stream, int64_t code) {
  (void)owner;
  call *of = h2_context(stream);
  if (!of) return;
  if (of->asker.query) query_abandon(of->asker.query);
  if (of->state == PYTHON) python_aborted(of, code);
  of->state = OVER;
}

static void flushed(void *owner, h2_stream *stream) {
  (void)owner;
  call *of = h2_context(stream);
  if (of && of->state == PYTHON) python_flushed(of);
}

static void closed(void *owner, h2_stream *stream) {
  (void)owner;
  call *of = h2_context(stream);
  if (!of) return;
  h2_set_context(stream, NULL);
  if (of->asker.query) query_abandon(of->asker.query);
  if (of->asks_python) budget_python_done(&of->asker.connection->thread->wire->budgets);
  ((grpc_connection *)of->asker.connection->state)->held -= of->held;
  python_forget(of);
  if (of->message) h2_free_message(of->message);
  free(of->fields);
  free(of);
}

const h2_handler grpc_handler = {
    .headers = headers, .room = room, .no_memory = no_memory, .begun = begun, .message = message, .too_large = too_large, .end = end,
    .aborted = aborted, .flushed = flushed, .closed = closed, .long_head = long_head,
};

bool grpc_respond(asker *to, const query *query, const uint8_t *slot) {
  call *of = (call *)to;
  io_thread *thread = to->connection->thread;
  const wire *owner = thread->wire;
  h2_stream *stream = of->stream;
  const size_t size = grpc_response(thread, query, slot);
  if (!size) return false;
  char value[MOST_TIMING];
  const hpack_field timing = {"server-timing", value, 13, query_timing(value, query)};
  uint8_t trailers[MOST_TRAILERS + 2 * 6 + 13 + MOST_TIMING];
  size_t used = owner->trailers_bytes;
  memcpy(trailers, owner->trailers, used);
  used += hpack_encode(trailers + used, &timing);
  of->state = OVER;
  mark_dirty(to->connection);
  h2_headers(stream, owner->head, owner->head_bytes, false);
  h2_data(stream, thread->scratch, size, false);
  h2_headers(stream, trailers, used, true);
  return true;
}

/* Percent-encodes what a status message may not contain. Returns the size; `target` has three times the room. */
static size_t quote(char *target, const char *text, size_t size) {
  static const char digits[] = "0123456789ABCDEF";
  char *at = target;
  for (size_t i = 0; i < size; i++) {
    const uint8_t byte = (uint8_t)text[i];
    if (byte >= 0x20 && byte < 0x7F && byte != '%') {
      *at++ = (char)byte;
    } else {
      *at++ = '%';
      *at++ = digits[byte >> 4];
      *at++ = digits[byte & 15];
    }
  }
  return (size_t)(at - target);
}

void grpc_finish(call *of, int32_t code, const char *text, size_t size) {
  char number[12], detail[3 * MOST_DETAIL];
  if (size > MOST_DETAIL) size = MOST_DETAIL;
  const hpack_field fields[] = {
      {":status", "200", 7, 3},
      {"content-type", "application/grpc", 12, 16},
      {"grpc-status", number, 11, (uint32_t)snprintf(number, sizeof number, "%d", (int)code)},
      {"grpc-message", detail, 12, (uint32_t)quote(detail, text, size)},
  };
  uint8_t block[sizeof detail + 256];
  size_t used = 0;
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) used += hpack_encode(block + used, &fields[i]);
  of->state = OVER;
  mark_dirty(of->asker.connection);
  h2_headers(of->stream, block, used, true);
}

void grpc_refuse(asker *to, status status, const char *text, size_t size) {
  grpc_finish((call *)to, status.grpc, text, size);
}
