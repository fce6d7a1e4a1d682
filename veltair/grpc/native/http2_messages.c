/* Incoming messages of a stream, each behind a flag and its length, and the windows that bound them. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "http2_internal.h"

/* Large messages that were freed wait here for the next one: fresh memory costs a page fault for every 4 KB. The only
 * state that connections, and threads, share. */
enum { KEPT = 2, KEPT_LEAST_BYTES = 1 << 16, KEPT_MOST_BYTES = 1 << 23 };

typedef struct {
  _Alignas(max_align_t) size_t room;
  _Alignas(max_align_t) uint8_t bytes[];
} message_memory;

static _Atomic(message_memory *) kept[KEPT];

static message_memory *memory_of(uint8_t *data) {
  return (message_memory *)(void *)(data - offsetof(message_memory, bytes));
}

static uint8_t *new_message(size_t size) {
  if (size >= KEPT_LEAST_BYTES) {
    for (int i = 0; i < KEPT; i++) {
      message_memory *memory = atomic_exchange(&kept[i], NULL);
      if (memory && size <= memory->room && memory->room / 4 <= size) return memory->bytes;
      free(memory);
    }
  }
  message_memory *memory = size < SIZE_MAX - sizeof *memory ? malloc(sizeof *memory + size) : NULL;
  if (!memory) return NULL;
  memory->room = size;
  return memory->bytes;
}

void h2_free_message(uint8_t *data) {
  message_memory *memory = memory_of(data);
  if (memory->room >= KEPT_LEAST_BYTES && memory->room <= KEPT_MOST_BYTES)
    for (int i = 0; i < KEPT && memory; i++) memory = atomic_exchange(&kept[i], memory);
  free(memory);
}

static void hand_on(h2_stream *stream) {
  h2_connection *connection = stream->connection;
  uint8_t *message = stream->message;
  stream->message = NULL;
  stream->prefix_size = 0;
  connection->kept -= stream->message_size;
  connection->handler.message(connection->owner, stream, message, stream->message_size, stream->prefix[0] != 0);
}

void h2_message_filled(h2_stream *stream, size_t size) {
  stream->filled += (uint32_t)size;
  if (stream->filled == stream->message_size) hand_on(stream);
}

/* The prefix is complete: memory for its message. False when there is none, or the message is too large. */
static bool begin_message(h2_stream *stream) {
  h2_connection *connection = stream->connection;
  const uint32_t size = read_word(stream->prefix + 1);
  if (size > connection->limits.message_bytes) {
    stream->refused = true;
    connection->handler.too_large(connection->owner, stream, size);
    return false;
  }
  if (connection->handler.room && !connection->handler.room(connection->owner, stream, size)) {
    stream->refused = true;
    return false;
  }
  stream->message = new_message(size);
  if (!stream->message) {
    stream->refused = true;
    if (connection->handler.no_memory) {
      connection->handler.no_memory(connection->owner, stream);
    } else {
      h2_write_word(connection, RST_STREAM, stream->number, INTERNAL_ERROR);
      h2_abort(stream, INTERNAL_ERROR);
    }
    return false;
  }
  stream->message_size = size;
  connection->kept += size;
  stream->filled = 0;
  stream->wanted = !connection->handler.begun;
  return true;
}

void h2_feed(h2_stream *stream, const uint8_t *data, size_t size) {
  do {
    if (!stream->message) {
      size_t part = (size_t)(MESSAGE_PREFIX_BYTES - stream->prefix_size);
      if (part > size) part = size;
      memcpy(stream->prefix + stream->prefix_size, data, part);
      stream->prefix_size += (uint8_t)part;
      data += part;
      size -= part;
      if (stream->prefix_size < MESSAGE_PREFIX_BYTES || !begin_message(stream)) return;
    }
    size_t part = stream->message_size - stream->filled;
    if (part > size) part = size;
    memcpy(stream->message + stream->filled, data, part);
    data += part;
    size -= part;
    h2_message_filled(stream, part);
  } while (size && !stream->closed);
  if (stream->message && stream->filled && !stream->wanted)
    stream->connection->handler.begun(stream->connection->owner, stream, stream->message, stream->filled);
}

int32_t h2_granted_window(const h2_connection *connection) {
  return connection->server ? REQUEST_WINDOW_BYTES : ANSWER_WINDOW_BYTES;
}

void h2_extend_window(h2_stream *stream) {
  if (stream->closed || !stream->remote_open || stream->held || (stream->message && !stream->wanted)) return;
  const int32_t window = h2_granted_window(stream->connection);
  const int64_t rest = stream->message ? stream->message_size - stream->filled : 0;
  const int64_t more = window + rest - stream->receive_window;
  if (more <= window / 2) return;
  h2_write_word(stream->connection, WINDOW_UPDATE, stream->number, (uint32_t)more);
  stream->receive_window += (int32_t)more;
}

bool h2_count_data(h2_stream *stream, uint32_t size) {
  stream->receive_window -= (int32_t)size;
  if (stream->receive_window < 0)
    return h2_fail(stream->connection, FLOW_CONTROL_ERROR, "more data than the stream's window");
  return true;
}

void h2_want(h2_stream *stream) {
  stream->wanted = true;
  if (stream->connection->data_stream != stream) h2_extend_window(stream); /* else where its frame ends */
}

void h2_hold(h2_stream *stream, bool held) {
  stream->held = held;
  if (!held) h2_extend_window(stream);
}
