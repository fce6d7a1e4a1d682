/* Calls that Python handles: what the client sends becomes events for it, what it sends comes as commands. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "buffer.h"
#include "python_calls.h"

enum { READ_AHEAD = 2 /* messages of one call that Python has before it takes the first */ };

static const uint64_t INDEX_BITS = 32, THREAD_SHIFT = 56;

static void enqueue(wire *owner, call_event *event) {
  pthread_mutex_lock(&owner->lock);
  const bool first = !owner->first_event;
  *owner->last_event = event;
  owner->last_event = &event->next;
  pthread_mutex_unlock(&owner->lock);
  const uint64_t one = 1;
  if (first && write(owner->events, &one, sizeof one) < 0) return; /* it is full: Python is awake */
}

void post_notice(wire *owner, int kind) {
  call_event *event = malloc(sizeof *event);
  if (!event) return;
  *event = (call_event){.kind = kind};
  enqueue(owner, event);
}

/* Data: the size of the id (u32), the id, why. */
void post_failure(const asker *waiting, const query *of, const char *text, size_t size) {
  enum { MOST_ID = 1024 };
  const uint8_t *id = of->request_id;
  size_t id_bytes = of->id_bytes;
  if (waiting->connection->protocol == &grpc_protocol) id = grpc_id(id, id_bytes, &id_bytes);
  if (id_bytes > MOST_ID) id_bytes = MOST_ID;
  const uint32_t prefix = (uint32_t)id_bytes;
  call_event *event = malloc(sizeof *event);
  uint8_t *data = malloc(sizeof prefix + id_bytes + size);
  if (!event || !data) {
    free(event);
    free(data);
    return;
  }
  memcpy(data, &prefix, sizeof prefix);
  if (id_bytes) memcpy(data + sizeof prefix, id, id_bytes);
  if (size) memcpy(data + sizeof prefix + id_bytes, text, size);
  *event = (call_event){.call = of->id, .kind = NOTICE_FAILED, .code = of->plan->tenant, .data = data,
                        .size = sizeof prefix + id_bytes + size};
  enqueue(waiting->connection->thread->wire, event);
}

static void free_data(int kind, uint8_t *data) {
  if (kind == EVENT_MESSAGE) h2_free_message(data);
  else free(data);
}

/* Takes `data`, which must be free()able or a message of HTTP/2's as its kind says. */
static void post(call *of, int kind, int64_t code, uint8_t *data, size_t size) {
  call_event *event = malloc(sizeof *event);
  if (!event) { /* Python would wait for it: the call cannot go on */
    free_data(kind, data);
    return;
  }
  *event = (call_event){.call = of->python, .kind = kind, .code = code, .data = data, .size = size};
  enqueue(of->asker.connection->thread->wire, event);
}

call_event *event_next(wire *owner) {
  pthread_mutex_lock(&owner->lock);
  call_event *event = owner->first_event;
  if (event) owner->first_event = event->next;
  if (!owner->first_event) owner->last_event = &owner->first_event;
  pthread_mutex_unlock(&owner->lock);
  return event;
}

void event_free(call_event *event) {
  free_data(event->kind, event->data);
  free(event);
}

static size_t packed_bytes(const hpack_field *field) { return 2 * sizeof(uint32_t) + field->name_size + field->value_size; }

static uint8_t *pack(uint8_t *at, const hpack_field *field) {
  const uint32_t sizes[] = {field->name_size, field->value_size};
  at = append(at, sizes, sizeof sizes);
  at = append(at, field->name, sizes[0]);
  return append(at, field->value, sizes[1]);
}

uint8_t *pack_fields(const hpack_field *fields, int count, const char *certificate, size_t *size) {
  const hpack_field ours = {":certificate", certificate, 12, (uint32_t)strlen(certificate)}; /* no client can send it */
  *size = ours.value_size ? packed_bytes(&ours) : 0;
  for (int i = 0; i < count; i++) *size += packed_bytes(&fields[i]);
  uint8_t *const packed = malloc(*size ? *size : 1), *at = packed;
  if (!packed) return NULL;
  for (int i = 0; i < count; i++) at = pack(at, &fields[i]);
  if (ours.value_size) pack(at, &ours);
  return packed;
}

/* A number for a call: its thread, a generation, its place in the thread's table. 0 without memory. */
static uint64_t number_call(io_thread *thread, call *of) {
  if (!thread->calls_free) {
    const uint32_t old = thread->calls_size, size = old ? 2 * old : 64;
    call **calls = realloc(thread->calls, size * sizeof *calls);
    if (calls) thread->calls = calls;
    uint32_t *generation = realloc(thread->generation, size * sizeof *generation);
    if (generation) thread->generation = generation;
    uint32_t *free_call = realloc(thread->free_call, size * sizeof *free_call);
    if (free_call) thread->free_call = free_call;
    if (!calls || !generation || !free_call) return 0;
    for (uint32_t i = size; i-- > old;) {
      thread->calls[i] = NULL;
      thread->generation[i] = 1;
      thread->free_call[thread->calls_free++] = i;
    }
    thread->calls_size = size;
  }
  const uint32_t place = thread->free_call[--thread->calls_free];
  thread->calls[place] = of;
  const uint64_t generation = thread->generation[place] & 0xFFFFFF;
  return (uint64_t)thread->index << THREAD_SHIFT | generation << INDEX_BITS | place;
}

static call *call_of(const io_thread *thread, uint64_t number) {
  const uint32_t place = (uint32_t)number;
  if (place >= thread->calls_size || !thread->calls[place]) return NULL;
  return thread->calls[place]->python == number ? thread->calls[place] : NULL;
}

bool python_open(call *of) {
  of->python = number_call(of->asker.connection->thread, of);
  if (!of->python) {
    static const char text[] = "out of memory";
    grpc_finish(of, 8, text, sizeof text - 1);
    return false;
  }
  of->state = PYTHON;
  post(of, EVENT_OPEN, 0, of->fields, of->fields_bytes);
  of->fields = NULL;
  of->tenant = NULL;
  if (of->message) {
    uint8_t *data = of->message;
    of->message = NULL;
    python_message(of, data, of->message_bytes, false);
  }
  if (of->ended) python_ended(of);
  return true;
}

void python_message(call *of, uint8_t *data, size_t size, bool compressed) {
  if (++of->taken >= READ_AHEAD) h2_hold(of->stream, true);
  post(of, EVENT_MESSAGE, compressed, data, size);
}

void python_ended(call *of) { post(of, EVENT_END, 0, NULL, 0); }

void python_aborted(call *of, int64_t code) { post(of, EVENT_ABORTED, code, NULL, 0); }

void python_flushed(call *of) {
  if (!of->tell_flushed) return;
  of->tell_flushed = false;
  post(of, EVENT_FLUSHED, 0, NULL, 0);
}

void python_forget(call *of) {
  if (!of->python) return;
  io_thread *thread = of->asker.connection->thread;
  const uint32_t place = (uint32_t)of->python;
  thread->calls[place] = NULL;
  thread->generation[place] = (thread->generation[place] & 0xFFFFFF) % 0xFFFFFF + 1; /* never 0 */
  thread->free_call[thread->calls_free++] = place;
  of->python = 0;
}

bool command_post(wire *owner, uint64_t number, int kind, bool last, const uint8_t *data, size_t size) {
  const uint64_t index = number >> THREAD_SHIFT;
  if (index >= (uint64_t)owner->threads) return false;
  io_thread *thread = &owner->thread[index];
  command *new = malloc(sizeof *new + size);
  if (!new) return false;
  *new = (command){.call = number, .kind = kind, .last = last, .size = size};
  if (size) memcpy(new->data, data, size);
  pthread_mutex_lock(&thread->lock);
  const bool first = !thread->first_command;
  *thread->last_command = new;
  thread->last_command = &new->next;
  pthread_mutex_unlock(&thread->lock);
  if (first) thread_wake(thread);
  return true;
}

static void run(io_thread *thread, const command *given) {
  call *of = call_of(thread, given->call);
  if (!of || of->state != PYTHON) return;
  mark_dirty(of->asker.connection);
  switch (given->kind) {
    case COMMAND_HEADERS:
      h2_headers(of->stream, given->data, given->size, given->last);
      break;
    case COMMAND_DATA:
      h2_data(of->stream, given->data, given->size, given->last);
      break;
    case COMMAND_TELL_FLUSHED:
      of->tell_flushed = true;
      break;
    case COMMAND_TAKEN:
      if (--of->taken < READ_AHEAD) h2_hold(of->stream, false);
      break;
    case COMMAND_RESET: {
      uint32_t code = 0; /* the data are not aligned */
      if (given->size >= sizeof code) memcpy(&code, given->data, sizeof code);
      h2_reset(of->stream, code);
      break;
    }
    default:
      break;
  }
}

void commands_run(io_thread *thread) {
  pthread_mutex_lock(&thread->lock);
  command *at = thread->first_command;
  thread->first_command = NULL;
  thread->last_command = &thread->first_command;
  pthread_mutex_unlock(&thread->lock);
  for (command *next; at; at = next) {
    next = at->next;
    run(thread, at);
    free(at);
  }
}

void commands_drop(io_thread *thread) {
  for (command *next, *at = thread->first_command; at; at = next) {
    next = at->next;
    free(at);
  }
  thread->first_command = NULL;
  thread->last_command = &thread->first_command;
}
