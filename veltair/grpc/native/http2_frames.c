/* Incoming bytes, cut into frames. Large messages are read straight into their own memory. */
#include <string.h>

#include "http2_internal.h"

void h2_end_received(h2_stream *stream) {
  if (stream->closed) return;
  if (stream->announced >= 0 && stream->announced != stream->received) {
    h2_stream_error(stream, PROTOCOL_ERROR);
    return;
  }
  stream->remote_open = false;
  stream->connection->handler.end(stream->connection->owner, stream);
  h2_half_closed(stream);
}

/* A data frame of `size` bytes begins; nobody wants it where its stream is closed. */
static bool accept_data(h2_connection *connection, uint32_t number, uint32_t size) {
  if (connection->in_block || !connection->settled || number == 0 || number > connection->last_stream)
    return h2_fail(connection, PROTOCOL_ERROR, "data of stream %u, which is not open", number);
  h2_stream *stream = h2_find_stream(connection, number);
  if (stream && !stream->remote_open)
    return h2_fail(connection, STREAM_CLOSED, "data of stream %u behind its end", number);
  if (!stream && connection->server && h2_stream_end(connection, number) != RESET_BY_US &&
      !h2_refuse_stream(connection, number, STREAM_CLOSED))
    return false;
  connection->unacknowledged += size;
  if (connection->unacknowledged > CONNECTION_WINDOW_BYTES / 2) {
    h2_write_word(connection, WINDOW_UPDATE, NO_STREAM, connection->unacknowledged);
    connection->unacknowledged = 0;
  }
  if (stream && !h2_count_data(stream, size)) return false;
  connection->data_stream = stream;
  return true;
}

/* `padding`: what its length byte says, where the frame has one; else -1. */
static bool begin_data(h2_connection *connection, uint32_t number, uint8_t flags, uint32_t size, int padding) {
  const uint32_t extra = (uint32_t)(padding + 1);
  if (size > DATA_FRAME_BYTES) return h2_fail(connection, FRAME_SIZE_ERROR, "a frame of %u bytes", size);
  if (extra > size) return h2_fail(connection, PROTOCOL_ERROR, "a frame with more padding than bytes");
  if (!accept_data(connection, number, size)) return false;
  if (size == extra && !(flags & END_STREAM) && !h2_glitch(connection)) return false;
  connection->left = size - extra;
  connection->padding = padding < 0 ? 0 : (uint32_t)padding;
  connection->data_ends_stream = flags & END_STREAM;
  h2_stream *stream = connection->data_stream;
  if (stream) {
    stream->received += connection->left;
    if (stream->announced >= 0 && stream->received > stream->announced) h2_stream_error(stream, PROTOCOL_ERROR);
  }
  return !connection->failed;
}

/* Hands on what has come of the data frame, skips its padding. Returns how many bytes both have. */
static size_t read_data(h2_connection *connection, const uint8_t *data, size_t size) {
  const size_t part = size < connection->left ? size : connection->left;
  connection->left -= (uint32_t)part;
  h2_stream *stream = connection->data_stream;
  if (part && stream && !stream->refused) h2_feed(stream, data, part);
  if (connection->left) return part;
  const size_t skipped = size - part < connection->padding ? size - part : connection->padding;
  connection->padding -= (uint32_t)skipped;
  return part + skipped;
}

static void end_data(h2_connection *connection) {
  h2_stream *stream = connection->data_stream;
  connection->data_stream = NULL;
  if (!stream) return;
  if (connection->data_ends_stream) h2_end_received(stream);
  else h2_extend_window(stream);
}

/* Handles the frame that begins here, except for the payload of data. Returns how many bytes it took, 0 where some are
 * missing. */
static size_t read_frame(h2_connection *connection, const uint8_t *from, size_t room) {
  if (room < FRAME_HEAD_BYTES) return 0;
  const uint32_t size = read_word(from) >> 8, number = read_word(from + 5) & INT32_MAX;
  const uint8_t kind = from[3], flags = from[4];
  if (kind == DATA) {
    const size_t head = FRAME_HEAD_BYTES + (flags & PADDED ? 1 : 0);
    if (size < head - FRAME_HEAD_BYTES) {
      h2_fail(connection, FRAME_SIZE_ERROR, "a frame that is too short or too long");
      return 0;
    }
    if (room < head) return 0;
    if (begin_data(connection, number, flags, size, flags & PADDED ? from[FRAME_HEAD_BYTES] : -1) &&
        !connection->left && !connection->padding)
      end_data(connection);
    return head;
  }
  const bool headers = kind == HEADERS || kind == CONTINUATION;
  if (size > (headers ? SCRATCH_BYTES - FRAME_HEAD_BYTES : CONTROL_BYTES)) {
    if (headers && size <= DATA_FRAME_BYTES) h2_fail(connection, ENHANCE_YOUR_CALM, "a header block that is too large");
    else h2_fail(connection, FRAME_SIZE_ERROR, "a frame of %u bytes", size);
    return 0;
  }
  if (room - FRAME_HEAD_BYTES < size) return 0;
  h2_handle_control(connection, kind, flags, number, from + FRAME_HEAD_BYTES, size);
  return FRAME_HEAD_BYTES + size;
}

static void parse(h2_connection *connection) {
  const size_t end = connection->held;
  uint8_t *view = connection->scratch;
  size_t at = 0;
  if (connection->expects_preface) {
    if (memcmp(view, PREFACE, end < PREFACE_BYTES ? end : PREFACE_BYTES) != 0) {
      h2_fail(connection, PROTOCOL_ERROR, "not HTTP/2");
      return;
    }
    if (end < PREFACE_BYTES) return;
    at = PREFACE_BYTES;
    connection->expects_preface = false;
  }
  while (!connection->failed) {
    if (connection->left || connection->padding) {
      at += read_data(connection, view + at, end - at);
      if (connection->left || connection->padding) break;
      end_data(connection);
    } else {
      const size_t taken = read_frame(connection, view + at, end - at);
      if (!taken) break;
      at += taken;
    }
  }
  connection->held = end - at;
  if (at && connection->held) memmove(view, view + at, connection->held);
}

/* The memory of the message being received, where much of it comes with the present frame and is wanted. */
static uint8_t *message_rest(const h2_connection *connection) {
  const h2_stream *stream = connection->data_stream;
  const uint32_t least = SCRATCH_BYTES / 4;
  if (!stream || !stream->message || !stream->wanted) return NULL;
  if (connection->left <= least || stream->message_size - stream->filled <= least) return NULL;
  return stream->message + stream->filled;
}

uint8_t *h2_target(h2_connection *connection, size_t *size) {
  if (!connection->direct && (connection->direct = message_rest(connection))) {
    const uint32_t missing = connection->data_stream->message_size - connection->data_stream->filled;
    connection->direct_room = missing < connection->left ? missing : connection->left;
  }
  if (connection->direct) {
    *size = connection->direct_room;
    return connection->direct;
  }
  *size = SCRATCH_BYTES - connection->held;
  return connection->scratch + connection->held;
}

void h2_filled(h2_connection *connection, size_t size) {
  if (connection->failed) return;
  h2_begin_call(connection);
  if (connection->direct) {
    connection->direct = NULL;
    connection->left -= (uint32_t)size;
    if (connection->orphan) {
      h2_free_message(connection->orphan);
      connection->orphan = NULL;
    } else {
      h2_message_filled(connection->data_stream, size);
    }
    if (!connection->left && !connection->padding) end_data(connection);
  } else {
    connection->held += size;
    parse(connection);
    if (connection->failed) connection->held = 0;
  }
  h2_end_call(connection);
}
