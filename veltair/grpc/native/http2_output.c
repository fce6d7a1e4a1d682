/* Outgoing frames: one growing buffer of bytes to send, views of large data between them, and what waits for windows. */
#include <stdlib.h>
#include <string.h>

#include "http2_internal.h"

enum { FIRST_OUTPUT_BYTES = 1 << 12, KEPT_OUTPUT_BYTES = 1 << 22 };
enum { VIEW_BYTES = 1 << 13, FIRST_VIEWS = 16 }; /* VIEW_BYTES: smaller data is copied, which takes less than a view */

static size_t own_unsent(const h2_connection *connection) { return connection->output_end - connection->output_begin; }

static size_t unsent(const h2_connection *connection) { return own_unsent(connection) + connection->viewed; }

bool h2_full(const h2_connection *connection) { return unsent(connection) > OUTPUT_BYTES; }

/* Room for `size` more bytes; NULL when there is no memory, which ends the connection. */
static uint8_t *extend_output(h2_connection *connection, size_t size) {
  if (size > connection->output_room - connection->output_end) {
    const size_t present = own_unsent(connection);
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

/* Writes the head of a frame of `size` bytes. Returns the room behind it, of `room` bytes, or NULL. */
static uint8_t *write_head(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, size_t size,
                           size_t room) {
  uint8_t *target = extend_output(connection, FRAME_HEAD_BYTES + room);
  if (!target) return NULL;
  write_word(target, (uint32_t)size << 8 | kind);
  target[4] = flags;
  write_word(target + 5, number);
  return target + FRAME_HEAD_BYTES;
}

void h2_write_frame(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
                    size_t size) {
  uint8_t *target = write_head(connection, kind, flags, number, size, size);
  if (target && size) memcpy(target, payload, size);
}

static void add_view(h2_connection *connection, const uint8_t *data, size_t size) {
  if (connection->views_end == connection->views_room) {
    const size_t room = connection->views_room ? 2 * connection->views_room : FIRST_VIEWS;
    output_view *larger = realloc(connection->views, room * sizeof *larger);
    if (!larger) {
      connection->failed = connection->leaving = true;
      return;
    }
    connection->views = larger;
    connection->views_room = room;
  }
  const uint64_t at = connection->output_dropped + own_unsent(connection);
  connection->views[connection->views_end++] = (output_view){at, data, size};
  connection->viewed += size;
}

void h2_write_word(h2_connection *connection, uint8_t kind, uint32_t number, uint32_t word) {
  uint8_t payload[4];
  write_word(payload, word);
  h2_write_frame(connection, kind, 0, number, payload, sizeof payload);
}

bool h2_reply(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
              size_t size) {
  connection->unread_replies = h2_full(connection) ? connection->unread_replies + 1 : 0;
  if (connection->unread_replies > MAX_UNREAD_REPLIES)
    return h2_fail(connection, ENHANCE_YOUR_CALM, "control frames whose answers are not read");
  h2_write_frame(connection, kind, flags, number, payload, size);
  return true;
}

/* Writes what windows and output allow of the rest of a frame of data. Returns whether that was all. */
static bool write_data(h2_stream *stream, pending_frame *frame) {
  h2_connection *connection = stream->connection;
  while (!h2_full(connection) && !connection->failed) {
    size_t part = frame->size - frame->sent;
    if (part) {
      const int64_t own = connection->first_window + stream->send_window;
      int64_t allowed = connection->window < own ? connection->window : own;
      if (allowed > (int64_t)connection->frame_bytes) allowed = (int64_t)connection->frame_bytes;
      if (allowed <= 0) return false;
      if (part > (size_t)allowed) {
        part = (size_t)allowed;
        if (part < SMALL_FRAME_BYTES && !h2_glitch(connection)) return false;
      }
      connection->window -= (int64_t)part;
      stream->send_window -= (int64_t)part;
    }
    if (part >= SMALL_FRAME_BYTES) h2_calm(connection, 1);
    const bool all = frame->sent + part == frame->size;
    const uint8_t flags = all && frame->end ? END_STREAM : 0;
    if (!frame->kept || part < VIEW_BYTES) {
      h2_write_frame(connection, DATA, flags, stream->number, frame->data + frame->sent, part);
    } else if (write_head(connection, DATA, flags, stream->number, part, 0)) {
      add_view(connection, frame->data + frame->sent, part);
    }
    frame->sent += part;
    if (all) return true;
  }
  return false;
}

static bool write_any(h2_stream *stream, pending_frame *frame) {
  h2_connection *connection = stream->connection;
  if (frame->kind == DATA) return write_data(stream, frame);
  if (h2_full(connection) || connection->failed) return false;
  stream->known = true;
  h2_write_frame(connection, HEADERS, END_HEADERS | (frame->end ? END_STREAM : 0), stream->number, frame->data,
                 frame->size);
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

static size_t pending_bytes(const pending_frame *frame) { return sizeof *frame + (frame->kept ? 0 : frame->size); }

static void free_pending(const h2_stream *stream, pending_frame *frame) {
  stream->connection->kept -= pending_bytes(frame);
  free(frame);
}

void h2_flush(h2_stream *stream) {
  bool ended = false;
  for (pending_frame *frame; (frame = stream->first);) {
    if (!write_any(stream, frame)) break;
    ended = frame->end;
    stream->first = frame->next;
    if (!stream->first) stream->connection->waiting--;
    free_pending(stream, frame);
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
    free_pending(stream, frame);
  }
}

/* Keeps the rest of a frame for later. */
static void append_pending(h2_stream *stream, const pending_frame *rest) {
  h2_connection *connection = stream->connection;
  const uint8_t *data = rest->data + rest->sent;
  const size_t size = rest->size - rest->sent, copied = rest->kept ? 0 : size;
  pending_frame *frame = copied < SIZE_MAX - sizeof *frame ? malloc(sizeof *frame + copied) : NULL;
  if (!frame) {
    connection->failed = connection->leaving = true;
    return;
  }
  *frame = (pending_frame){.data = data, .size = size, .kind = rest->kind, .end = rest->end, .kept = rest->kept};
  if (!rest->kept) {
    if (size) memcpy(frame->bytes, data, size);
    frame->data = frame->bytes;
  }
  connection->kept += pending_bytes(frame);
  if (stream->first) {
    stream->last->next = frame;
  } else {
    stream->first = frame;
    connection->waiting++;
  }
  stream->last = frame;
}

/* Straight into the output, without a copy in between, where nothing is in the way. */
static void queue(h2_stream *stream, pending_frame *frame) {
  if (stream->closed) return;
  h2_begin_call(stream->connection);
  if (stream->end_queued) {
    written(stream, false); /* nothing was, but whoever waits for `flushed` gets it */
  } else {
    stream->end_queued = frame->end;
    if (!stream->first && write_any(stream, frame)) written(stream, frame->end);
    else append_pending(stream, frame);
  }
  h2_end_call(stream->connection);
}

void h2_headers(h2_stream *stream, const uint8_t *block, size_t size, bool end) {
  queue(stream, &(pending_frame){.data = block, .size = size, .kind = HEADERS, .end = end});
}

void h2_data(h2_stream *stream, const uint8_t *data, size_t size, bool end) {
  queue(stream, &(pending_frame){.data = data, .size = size, .kind = DATA, .end = end});
}

void h2_kept_data(h2_stream *stream, const uint8_t *data, size_t size, bool end) {
  queue(stream, &(pending_frame){.data = data, .size = size, .kind = DATA, .end = end, .kept = true});
}

int h2_output_pieces(const h2_connection *connection, struct iovec *pieces, int most) {
  int count = 0;
  size_t begin = connection->output_begin;
  uint64_t at = connection->output_dropped;
  for (size_t i = connection->views_begin; count < most; i++) {
    const output_view *view = i < connection->views_end ? &connection->views[i] : NULL;
    const size_t own = view ? (size_t)(view->at - at) : connection->output_end - begin;
    if (own) pieces[count++] = (struct iovec){connection->output + begin, own};
    if (!view) break;
    if (count < most) pieces[count++] = (struct iovec){(void *)view->data, view->size};
    begin += own;
    at += own;
  }
  return count;
}

const uint8_t *h2_output(h2_connection *connection, size_t *size) {
  struct iovec first = {connection->output, 0};
  h2_output_pieces(connection, &first, 1);
  *size = first.iov_len;
  return first.iov_base;
}

static void drop_own(h2_connection *connection, size_t size) {
  connection->output_begin += size;
  connection->output_dropped += size;
  if (connection->output_begin < connection->output_end) return;
  connection->output_begin = connection->output_end = 0;
  if (connection->output_room > KEPT_OUTPUT_BYTES) {
    free(connection->output);
    connection->output = NULL;
    connection->output_room = 0;
  }
}

/* Drops up to `size` bytes of the first view. Returns how many. */
static size_t drop_viewed(h2_connection *connection, size_t size) {
  output_view *view = &connection->views[connection->views_begin];
  if (size > view->size) size = view->size;
  view->data += size;
  view->size -= size;
  connection->viewed -= size;
  if (!view->size) connection->views_begin++;
  if (connection->views_begin == connection->views_end) connection->views_begin = connection->views_end = 0;
  return size;
}

void h2_sent(h2_connection *connection, size_t size) {
  const bool was_full = h2_full(connection);
  while (size) {
    size_t own = own_unsent(connection);
    if (connection->viewed) own = (size_t)(connection->views[connection->views_begin].at - connection->output_dropped);
    if (own > size) own = size;
    if (own) drop_own(connection, own);
    size -= own;
    if (size) size -= drop_viewed(connection, size);
  }
  if (was_full && !h2_full(connection)) {
    h2_begin_call(connection);
    h2_flush_all(connection);
    h2_end_call(connection);
  }
}
