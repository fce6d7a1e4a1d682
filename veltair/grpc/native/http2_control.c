/* Incoming frames other than data: headers, settings, windows, resets. */
#include <stdlib.h>
#include <string.h>

#include "http2_internal.h"

enum { SETTING_BYTES = 6, PRIORITY_BYTES = 5, PING_BYTES = 8, WORD_BYTES = 4 };

static bool read_whole_word(h2_connection *connection, const uint8_t *payload, size_t size, uint32_t *word) {
  if (size != WORD_BYTES) return h2_fail(connection, FRAME_SIZE_ERROR, "a frame that is too short or too long");
  *word = read_word(payload);
  return true;
}

/* The head of a request on a stream that is not open. */
static bool request_received(h2_connection *connection, uint32_t number, const hpack_field *fields, int count) {
  const bool ends_stream = connection->block_ends_stream;
  int64_t announced = -1;
  if (number <= connection->last_stream) {
    const enum stream_end end = h2_stream_end(connection, number);
    if (end == RESET_BY_US) return true; /* trailers that were on their way */
    return h2_fail(connection, end == ENDED ? STREAM_CLOSED : PROTOCOL_ERROR, "headers of stream %u, which is over", number);
  }
  if (number % 2 == 0) return h2_fail(connection, PROTOCOL_ERROR, "stream %u is the server's", number);
  connection->last_stream = number;
  const bool is_long = count == HPACK_LONG;
  if (is_long ? !connection->handler.long_head : !h2_valid_request(fields, count, &announced))
    return h2_refuse_stream(connection, number, is_long ? ENHANCE_YOUR_CALM : PROTOCOL_ERROR);
  h2_stream *stream = NULL;
  if (!connection->leaving && connection->streams < connection->limits.streams) stream = h2_add_stream(connection, number);
  if (!stream) return h2_refuse_stream(connection, number, REFUSED_STREAM);
  stream->known = true;
  stream->announced = announced;
  if (is_long) connection->handler.long_head(connection->owner, stream);
  else connection->handler.headers(connection->owner, stream, fields, count);
  if (ends_stream) h2_end_received(stream);
  return true;
}

/* A header list; `count` may be HPACK_LONG. */
static bool list_received(h2_connection *connection, uint32_t number, const hpack_field *fields, int count) {
  const bool ends_stream = connection->block_ends_stream;
  h2_stream *stream = h2_find_stream(connection, number);
  if (!stream) return !connection->server || request_received(connection, number, fields, count);
  if (!stream->remote_open) return h2_fail(connection, STREAM_CLOSED, "headers of stream %u behind its end", number);
  if (count == HPACK_LONG || (connection->server && !(ends_stream && h2_valid_trailers(fields, count)))) {
    h2_stream_error(stream, count == HPACK_LONG ? ENHANCE_YOUR_CALM : PROTOCOL_ERROR);
    return !connection->failed;
  }
  connection->handler.headers(connection->owner, stream, fields, count);
  if (ends_stream) h2_end_received(stream);
  return true;
}

/* A complete header block. */
static bool block_received(h2_connection *connection, uint32_t number, const uint8_t *block, size_t size) {
  const hpack_field *fields;
  bool ok;
  connection->in_block = false;
  const int count = hpack_decode(connection->decoder, block, size, connection->limits.header_bytes, &fields);
  if (count == HPACK_BROKEN) ok = h2_fail(connection, COMPRESSION_ERROR, "a header block that cannot be decoded");
  else if (count == HPACK_ENDLESS) ok = h2_fail(connection, ENHANCE_YOUR_CALM, "a header list that is too large");
  else ok = list_received(connection, number, fields, count);
  hpack_forget(connection->decoder);
  free(connection->block);
  connection->block = NULL;
  return ok;
}

static bool depends_on_itself(const uint8_t *priority, uint32_t number) {
  return (read_word(priority) & INT32_MAX) == number;
}

/* Priorities mean nothing to us, but have to be well-formed. */
static bool priority_received(h2_connection *connection, uint32_t number, const uint8_t *payload, size_t size) {
  if (number == NO_STREAM) return h2_fail(connection, PROTOCOL_ERROR, "a priority of no stream");
  if (size != PRIORITY_BYTES) return h2_fail(connection, FRAME_SIZE_ERROR, "a frame that is too short or too long");
  if (depends_on_itself(payload, number))
    return h2_fail(connection, PROTOCOL_ERROR, "stream %u depends on itself", number);
  return h2_glitch(connection);
}

/* A block in one frame is decoded where it is; one of several is put together first. */
static bool headers_received(h2_connection *connection, uint8_t flags, uint32_t number, const uint8_t *payload,
                             size_t size) {
  size_t skipped = 0, padding = 0;
  if (flags & PADDED) {
    skipped = 1;
    padding = size ? payload[0] : 0;
  }
  if (flags & HAS_PRIORITY) skipped += PRIORITY_BYTES;
  if (skipped + padding > size)
    return h2_fail(connection, PROTOCOL_ERROR, "a frame with more padding than bytes");
  if (number == NO_STREAM) return h2_fail(connection, PROTOCOL_ERROR, "headers of no stream");
  if (flags & HAS_PRIORITY && depends_on_itself(payload + (flags & PADDED ? 1 : 0), number))
    return h2_fail(connection, PROTOCOL_ERROR, "stream %u depends on itself", number);
  connection->block_ends_stream = flags & END_STREAM;
  payload += skipped;
  size -= skipped + padding;
  if (flags & END_HEADERS) return block_received(connection, number, payload, size);
  if (!(connection->block = malloc(BLOCK_BYTES))) return h2_fail(connection, INTERNAL_ERROR, "no memory");
  memcpy(connection->block, payload, size);
  connection->block_size = size;
  connection->block_stream = number;
  connection->in_block = true;
  return true;
}

static bool continuation_received(h2_connection *connection, uint8_t flags, uint32_t number, const uint8_t *payload,
                                  size_t size) {
  if (!connection->in_block) return h2_fail(connection, PROTOCOL_ERROR, "a continuation of nothing");
  if (!h2_glitch(connection)) return false;
  if (size + connection->block_size > BLOCK_BYTES)
    return h2_fail(connection, ENHANCE_YOUR_CALM, "a header block that is too large");
  memcpy(connection->block + connection->block_size, payload, size);
  connection->block_size += size;
  return !(flags & END_HEADERS) || block_received(connection, number, connection->block, connection->block_size);
}

static bool window_update_received(h2_connection *connection, uint32_t number, const uint8_t *payload, size_t size) {
  uint32_t more = 0;
  if (!read_whole_word(connection, payload, size, &more)) return false;
  more &= LARGEST_WINDOW_BYTES;
  if ((!more && number == NO_STREAM) || number > connection->last_stream)
    return h2_fail(connection, PROTOCOL_ERROR, "the window of stream %u cannot grow by %u", number, more);
  h2_stream *stream = number == NO_STREAM ? NULL : h2_find_stream(connection, number);
  if (!more) { /* of a stream, which is its alone (RFC 9113, 6.9) */
    if (!stream) return h2_glitch(connection);
    h2_stream_error(stream, PROTOCOL_ERROR);
    return !connection->failed;
  }
  const int64_t before = connection->window;
  const bool waiting = connection->waiting;
  if (number == NO_STREAM) {
    if ((connection->window += more) > LARGEST_WINDOW_BYTES)
      return h2_fail(connection, FLOW_CONTROL_ERROR, "a window that is too large");
    h2_flush_all(connection);
    const bool useless = waiting && connection->window == before + more && !h2_full(connection);
    if (useless && !h2_glitch(connection)) return false;
  } else if (stream) {
    if ((stream->send_window += more) + connection->first_window > LARGEST_WINDOW_BYTES)
      h2_stream_error(stream, FLOW_CONTROL_ERROR);
    else
      h2_flush(stream);
  }
  return !connection->failed;
}

static bool reset_received(h2_connection *connection, uint32_t number, const uint8_t *payload, size_t size) {
  uint32_t code = 0;
  if (!read_whole_word(connection, payload, size, &code)) return false;
  if (number == NO_STREAM || number > connection->last_stream)
    return h2_fail(connection, PROTOCOL_ERROR, "stream %u is not open", number);
  h2_stream *stream = h2_find_stream(connection, number);
  if (stream) h2_abort(stream, code);
  return h2_glitch(connection);
}

static bool setting_received(h2_connection *connection, unsigned key, uint32_t value) {
  if (key == INITIAL_WINDOW_SIZE) {
    bool fits = value <= LARGEST_WINDOW_BYTES;
    for (const h2_stream *stream = connection->first; stream && fits; stream = stream->next)
      fits = stream->send_window + value <= LARGEST_WINDOW_BYTES;
    if (!fits) return h2_fail(connection, FLOW_CONTROL_ERROR, "a window that is too large");
    connection->first_window = value;
  } else if (key == MAX_FRAME_SIZE) {
    if (value < DEFAULT_FRAME_BYTES || value >= 1 << 24)
      return h2_fail(connection, PROTOCOL_ERROR, "frames of %u bytes", value);
    connection->frame_bytes = value;
  } else if (key == ENABLE_PUSH) {
    if (value > 1) return h2_fail(connection, PROTOCOL_ERROR, "a setting of %u for pushes", value);
  } else if (key == MAX_CONCURRENT_STREAMS) {
    connection->max_streams = value;
  }
  return true;
}

static bool settings_received(h2_connection *connection, uint8_t flags, const uint8_t *payload, size_t size) {
  if (flags & ACK) return size ? h2_fail(connection, FRAME_SIZE_ERROR, "settings in an acknowledgement") : true;
  if (size % SETTING_BYTES) return h2_fail(connection, FRAME_SIZE_ERROR, "settings of odd length");
  for (size_t at = 0; at < size; at += SETTING_BYTES) {
    const unsigned key = (unsigned)payload[at] << 8 | payload[at + 1];
    if (!setting_received(connection, key, read_word(payload + at + 2)) || !h2_glitch(connection)) return false;
  }
  if (!h2_reply(connection, SETTINGS, ACK, NO_STREAM, NULL, 0)) return false;
  if (connection->handler.ready) connection->handler.ready(connection->owner);
  h2_flush_all(connection);
  return true;
}

static bool ping_received(h2_connection *connection, uint8_t flags, const uint8_t *payload, size_t size) {
  if (size != PING_BYTES) return h2_fail(connection, FRAME_SIZE_ERROR, "a frame that is too short or too long");
  if (flags & ACK) return h2_glitch(connection); /* of no ping of ours */
  return h2_reply(connection, PING, ACK, NO_STREAM, payload, size) && h2_glitch(connection);
}

void h2_ping(h2_connection *connection) {
  const uint8_t nothing[PING_BYTES] = {0};
  h2_reply(connection, PING, 0, NO_STREAM, nothing, sizeof nothing);
}

/* The other side leaves; it has not processed our streams above the number it says. */
static bool goaway_received(h2_connection *connection, const uint8_t *payload, size_t size) {
  uint32_t last = 0;
  if (!read_whole_word(connection, payload, size < WORD_BYTES ? size : WORD_BYTES, &last)) return false;
  last &= INT32_MAX;
  connection->leaving = true;
  for (h2_stream *stream = connection->first; stream && !connection->server; stream = stream->next)
    if (!stream->closed && stream->number > last) h2_abort(stream, REFUSED_STREAM);
  return true;
}

bool h2_handle_control(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const uint8_t *payload,
                       size_t size) {
  if (!connection->settled) {
    if (kind != SETTINGS || flags & ACK) return h2_fail(connection, PROTOCOL_ERROR, "a frame before the settings");
    connection->settled = true;
  }
  if (number != NO_STREAM && (kind == SETTINGS || kind == PING || kind == GOAWAY))
    return h2_fail(connection, PROTOCOL_ERROR, "a frame of the connection on stream %u", number);
  if (connection->in_block && (kind != CONTINUATION || number != connection->block_stream))
    return h2_fail(connection, PROTOCOL_ERROR, "a header block that is cut off");
  switch (kind) {
    case HEADERS: return headers_received(connection, flags, number, payload, size);
    case CONTINUATION: return continuation_received(connection, flags, number, payload, size);
    case WINDOW_UPDATE: return window_update_received(connection, number, payload, size);
    case RST_STREAM: return reset_received(connection, number, payload, size);
    case SETTINGS: return settings_received(connection, flags, payload, size);
    case PING: return ping_received(connection, flags, payload, size);
    case PRIORITY: return priority_received(connection, number, payload, size);
    case GOAWAY: return goaway_received(connection, payload, size);
    case PUSH_PROMISE: return h2_fail(connection, PROTOCOL_ERROR, "a pushed response");
    default: return h2_glitch(connection);
  }
}
