/* Outgoing frames: one growing buffer of bytes to send, and what waits for windows. */
#include <stdlib.h>
#include <string.h>

#include "http2_internal.h"

enum { FIRST_OUTPUT_BYTES = 1 << 12, KEPT_OUTPUT_BYTES = 1 << 22 };

static size_t unsent(const h2_connection *connection) { return connection->output_end - connection->output_begin; }

static bool is_full(const h2_connection *connection) { return unsent(connection) > OUTPUT_BYTES; }

/* Room for `size` more bytes; NULL when there is no memory, which ends the connection. */
static uint8_t *extend_output(h2_connection *connection, size_t size) {
  if (size > connection->output_room - connection->output_end) {
    const size_t present = unsent(connection);
    if (connection->output_begin >= present && connection->output_begin >= size) {
      memcpy(connection->output, connection->output + connection->output_begin, present);
    } else {
      const size_t needed = present + size;
      const size_t room = needed < FIRST_OUTPUT_BYTES ? FIRST_OUTPUT_BYTES : needed + needed / 2;
      uint8_t *larger = malloc(room);
      if (!larger) {
        connection->failed = connection->leaving = true;
        return NULL;
      }
      if (present) memcpy(larger, connection->output + connection->output_begin, present);
      free(connection->output);
      connection->output = larger;
      connection->output_room = room;
    }
    connection->output_begin = 0;
    connection->output_end = present;
  }
  uint8_t *target = connection->output + connection->output_end;
  connection->output_end += size;
  return target;
}

void h2_write(h2_connection *connection, const void *bytes, size_t size) {
  uint8_t *target = extend_output(connection, size);
  if (target) memcpy(target, bytes, size);
}

void h2_write_frame(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
                    size_t size) {
  uint8_t *target = extend_output(connection, FRAME_HEAD_BYTES + size);
  if (!target) return;
  write_word(target, (uint32_t)size << 8 | kind);
  target[4] = flags;
  write_word(target + 5, number);
  if (size) memcpy(target + FRAME_HEAD_BYTES, payload, size);
}

void h2_write_word(h2_connection *connection, uint8_t kind, uint32_t number, uint32_t word) {
  uint8_t payload[4];
  write_word(payload, word);
  h2_write_frame(connection, kind, 0, number, payload, sizeof payload);
}

bool h2_reply(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
              size_t size) {
  connection->unread_replies = is_full(connection) ? connection->unread_replies + 1 : 0;
  if (connection->unread_replies > MAX_UNREAD_REPLIES)
    return h2_fail(connection, ENHANCE_YOUR_CALM, "control frames whose answers are not read");
  h2_write_frame(connection, kind, flags, number, payload, size);
  return true;
}

/* Writes what windows and output allow of data[*sent …]. Returns whether that was all. */
static bool write_data(h2_stream *stream, const uint8_t *data, size_t size, size_t *sent, bool end) {
  h2_connection *connection = stream->connection;
  while (!is_full(connection) && !connection->failed) {
    size_t part = size - *sent;
    if (part) {
      int64_t allowed = connection->window < stream->send_window ? connection->window : stream->send_window;
      if (allowed > (int64_t)connection->frame_bytes) allowed = (int64_t)connection->frame_bytes;
      if (allowed <= 0) return false;
      if (part > (size_t)allowed) part = (size_t)allowed;
      connection->window -= (int64_t)part;
      stream->send_window -= (int64_t)part;
    }
    const bool all = *sent + part == size;
    h2_write_frame(connection, DATA, all && end ? END_STREAM : 0, stream->number, data + *sent, part);
    *sent += part;
    if (all) return true;
  }
  return false;
}

static bool write_any(h2_stream *stream, uint8_t kind, const uint8_t *data, size_t size, size_t *sent, bool end) {
  h2_connection *connection = stream->connection;
  if (kind == DATA) return write_data(stream, data, size, sent, end);
  if (is_full(connection) || connection->failed) return false;
  h2_write_frame(connection, HEADERS, END_HEADERS | (end ? END_STREAM : 0), stream->number, data, size);
  return true;
}

/* `flushed` may queue more, which then is written at once: called in a loop, not by itself. */
static void tell_flushed(h2_stream *stream) {
  if (stream->in_flushed) {
    stream->flushed_again = true;
    return;
  }
  stream->in_flushed = true;
  do {
    stream->flushed_again = false;
    stream->connection->handler.flushed(stream->connection->owner, stream);
  } while (stream->flushed_again && !stream->closed && !stream->first);
  stream->in_flushed = false;
}

/* Frames of the stream were written, the last one of all if `ended`. */
static void written(h2_stream *stream, bool ended) {
  if (ended) {
    stream->local_open = false;
    h2_half_closed(stream);
  }
  if (!stream->closed && !stream->first) tell_flushed(stream);
}

void h2_flush(h2_stream *stream) {
  bool ended = false;
  for (pending_frame *frame; (frame = stream->first);) {
    if (!write_any(stream, frame->kind, frame->bytes, frame->size, &frame->sent, frame->end)) break;
    ended = frame->end;
    stream->first = frame->next;
    if (!stream->first) stream->connection->waiting--;
    free(frame);
  }
  written(stream, ended);
}

void h2_flush_all(h2_connection *connection) {
  if (!connection->waiting) return;
  for (h2_stream *stream = connection->first; stream; stream = stream->next)
    if (!stream->closed && stream->first) h2_flush(stream);
}

void h2_drop_pending(h2_stream *stream) {
  if (stream->first) stream->connection->waiting--;
  for (pending_frame *frame; (frame = stream->first);) {
    stream->first = frame->next;
    free(frame);
  }
}

static void append_pending(h2_stream *stream, uint8_t kind, const uint8_t *data, size_t size, bool end) {
  h2_connection *connection = stream->connection;
  pending_frame *frame = size < SIZE_MAX - sizeof *frame ? malloc(sizeof *frame + size) : NULL;
  if (!frame) {
    connection->failed = connection->leaving = true;
    return;
  }
  *frame = (pending_frame){.size = size, .kind = kind, .end = end};
  if (size) memcpy(frame->bytes, data, size);
  if (stream->first) {
    stream->last->next = frame;
  } else {
    stream->first = frame;
    connection->waiting++;
  }
  stream->last = frame;
}

/* Straight into the output, without a copy in between, where nothing is in the way. */
static void queue(h2_stream *stream, uint8_t kind, const uint8_t *data, size_t size, bool end) {
  if (stream->closed) return;
  h2_begin_call(stream->connection);
  size_t sent = 0;
  if (stream->end_queued) {
    written(stream, false); /* nothing was, but whoever waits for `flushed` gets it */
  } else {
    stream->end_queued = end;
    if (!stream->first && write_any(stream, kind, data, size, &sent, end)) {
      written(stream, end);
    } else {
      append_pending(stream, kind, data + sent, size - sent, end);
    }
  }
  h2_end_call(stream->connection);
}

void h2_headers(h2_stream *stream, const uint8_t *block, size_t size, bool end) {
  queue(stream, HEADERS, block, size, end);
}

void h2_data(h2_stream *stream, const uint8_t *data, size_t size, bool end) { queue(stream, DATA, data, size, end); }

const uint8_t *h2_output(h2_connection *connection, size_t *size) {
  *size = unsent(connection);
  return connection->output + connection->output_begin;
}

void h2_sent(h2_connection *connection, size_t size) {
  const bool was_full = is_full(connection);
  connection->output_begin += size;
  if (connection->output_begin == connection->output_end) {
    connection->output_begin = connection->output_end = 0;
    if (connection->output_room > KEPT_OUTPUT_BYTES) {
      free(connection->output);
      connection->output = NULL;
      connection->output_room = 0;
    }
  }
  if (was_full && !is_full(connection)) {
    h2_begin_call(connection);
    h2_flush_all(connection);
    h2_end_call(connection);
  }
}
