/* One end of a connection: its streams and their life, errors, settings of ours. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http2_internal.h"

enum { MAX_SPARES = 64, SETTING_BYTES = 6, ERROR_TEXT_BYTES = 80 };

/* Streams */

h2_stream *h2_find_stream(const h2_connection *connection, uint32_t number) {
  h2_stream *stream = connection->buckets[number / 2 % BUCKETS];
  while (stream && stream->number != number) stream = stream->in_bucket;
  return stream;
}

h2_stream *h2_add_stream(h2_connection *connection, uint32_t number) {
  h2_stream *stream = connection->spare;
  if (stream) {
    connection->spare = stream->in_bucket;
    connection->spares--;
  } else if (!(stream = malloc(sizeof *stream))) {
    return NULL;
  }
  h2_stream **bucket = &connection->buckets[number / 2 % BUCKETS];
  *stream = (h2_stream){
      .connection = connection,
      .number = number,
      .previous = connection->last,
      .in_bucket = *bucket,
      .remote_open = true,
      .local_open = true,
      .announced = -1,
      .receive_window = h2_granted_window(connection),
  };
  *bucket = stream;
  *(connection->last ? &connection->last->next : &connection->first) = stream;
  connection->last = stream;
  connection->streams++;
  return stream;
}

/* Takes a stream out of all lists but the loops over `next` that are under way. */
static void forget(h2_stream *stream) {
  h2_connection *connection = stream->connection;
  stream->closed = true;
  h2_drop_pending(stream);
  h2_stream **link = &connection->buckets[stream->number / 2 % BUCKETS];
  while (*link != stream) link = &(*link)->in_bucket;
  *link = stream->in_bucket;
  *(stream->previous ? &stream->previous->next : &connection->first) = stream->next;
  *(stream->next ? &stream->next->previous : &connection->last) = stream->previous;
  connection->streams--;
  connection->over[connection->overs++ % REMEMBERED] = 2 * stream->number + stream->reset;
  if (connection->data_stream == stream) {
    connection->data_stream = NULL;
    if (connection->direct) { /* a read into the message may be under way */
      connection->orphan = stream->message;
      connection->kept -= stream->message_size;
      stream->message = NULL;
    }
  }
  if (stream->message) {
    connection->kept -= stream->message_size;
    h2_free_message(stream->message);
  }
  stream->message = NULL;
  stream->in_bucket = connection->dead;
  connection->dead = stream;
}

void h2_drop(h2_stream *stream) {
  forget(stream);
  stream->connection->handler.closed(stream->connection->owner, stream);
}

void h2_abort(h2_stream *stream, int64_t code) {
  forget(stream);
  stream->connection->handler.aborted(stream->connection->owner, stream, code);
  stream->connection->handler.closed(stream->connection->owner, stream);
}

void h2_half_closed(h2_stream *stream) {
  h2_connection *connection = stream->connection;
  if (stream->closed || stream->local_open) return;
  h2_calm(connection, 1);
  if (!stream->remote_open) {
    h2_drop(stream);
  } else if (connection->server) {
    h2_reset(stream, NO_ERROR);
  }
}

void h2_reset(h2_stream *stream, uint32_t code) {
  if (stream->closed) return;
  h2_connection *connection = stream->connection;
  h2_begin_call(connection);
  stream->reset = true;
  if (!connection->failed && stream->known) h2_write_word(connection, RST_STREAM, stream->number, code);
  h2_drop(stream);
  h2_end_call(connection);
}

void h2_stream_error(h2_stream *stream, uint32_t code) {
  h2_connection *connection = stream->connection;
  if (stream->closed) return;
  stream->reset = true;
  h2_write_word(connection, RST_STREAM, stream->number, code);
  h2_abort(stream, code);
  h2_glitch(connection);
}

bool h2_refuse_stream(h2_connection *connection, uint32_t number, uint32_t code) {
  uint8_t payload[4];
  write_word(payload, code);
  connection->over[connection->overs++ % REMEMBERED] = 2 * number + true;
  return h2_reply(connection, RST_STREAM, 0, number, payload, sizeof payload) && h2_glitch(connection);
}

enum stream_end h2_stream_end(const h2_connection *connection, uint32_t number) {
  const uint32_t count = connection->overs < REMEMBERED ? connection->overs : REMEMBERED;
  for (uint32_t i = 1; i <= count; i++) { /* the newest first */
    const uint32_t entry = connection->over[(connection->overs - i) % REMEMBERED];
    if (entry / 2 == number) return entry % 2 ? RESET_BY_US : ENDED;
  }
  return NEVER_OPEN;
}

bool h2_glitch(h2_connection *connection) {
  if (connection->failed) return false;
  return ++connection->glitches <= MAX_GLITCHES ||
         h2_fail(connection, ENHANCE_YOUR_CALM, "too many frames that bring nothing");
}

void h2_calm(h2_connection *connection, int frames) {
  connection->glitches = connection->glitches > frames ? connection->glitches - frames : 0;
}

static void abort_all(h2_connection *connection) {
  while (connection->first) h2_abort(connection->first, -1);
}

/* Calls and errors */

void h2_begin_call(h2_connection *connection) { connection->depth++; }

static void free_dead(h2_connection *connection) {
  for (h2_stream *stream; (stream = connection->dead);) {
    connection->dead = stream->in_bucket;
    if (connection->spares < MAX_SPARES) {
      stream->in_bucket = connection->spare;
      connection->spare = stream;
      connection->spares++;
    } else {
      free(stream);
    }
  }
}

void h2_end_call(h2_connection *connection) {
  if (connection->depth == 1) {
    if (connection->failed) abort_all(connection);
    free_dead(connection);
  }
  connection->depth--;
}

static void write_goaway(h2_connection *connection, uint32_t code, const char *text, size_t size) {
  uint8_t payload[8 + ERROR_TEXT_BYTES];
  write_word(payload, connection->last_stream);
  write_word(payload + 4, code);
  memcpy(payload + 8, text, size);
  h2_write_frame(connection, GOAWAY, 0, NO_STREAM, payload, 8 + size);
}

bool h2_fail(h2_connection *connection, uint32_t code, const char *format, ...) {
  char text[ERROR_TEXT_BYTES];
  va_list arguments;
  va_start(arguments, format);
  const int size = vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  write_goaway(connection, code, text, size < ERROR_TEXT_BYTES ? (size_t)size : ERROR_TEXT_BYTES - 1);
  connection->failed = connection->leaving = true;
  return false;
}

/* The connection */

static void write_settings(h2_connection *connection) {
  const uint32_t settings[][2] = {
      {MAX_CONCURRENT_STREAMS, connection->limits.streams},
      {INITIAL_WINDOW_SIZE, (uint32_t)h2_granted_window(connection)},
      {MAX_FRAME_SIZE, DATA_FRAME_BYTES},
      {MAX_HEADER_LIST_SIZE, connection->limits.header_bytes},
  };
  uint8_t payload[SETTING_BYTES * sizeof settings / sizeof *settings], *at = payload;
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++, at += SETTING_BYTES) {
    at[0] = 0;
    at[1] = (uint8_t)settings[i][0];
    write_word(at + 2, settings[i][1]);
  }
  h2_write_frame(connection, SETTINGS, 0, NO_STREAM, payload, sizeof payload);
  h2_write_word(connection, WINDOW_UPDATE, NO_STREAM, CONNECTION_WINDOW_BYTES - DEFAULT_WINDOW_BYTES);
}

h2_connection *h2_new(bool server, const h2_limits *limits, const h2_handler *handler, void *owner) {
  h2_connection *connection = calloc(1, sizeof *connection);
  if (!connection) return NULL;
  connection->handler = *handler;
  connection->owner = owner;
  connection->server = connection->expects_preface = server;
  connection->limits = *limits;
  connection->max_streams = H2_STREAMS;
  connection->window = connection->first_window = DEFAULT_WINDOW_BYTES;
  connection->frame_bytes = DEFAULT_FRAME_BYTES;
  connection->decoder = hpack_new();
  if (!server) h2_write(connection, PREFACE, PREFACE_BYTES);
  write_settings(connection);
  if (!connection->decoder || connection->failed) {
    h2_free(connection);
    return NULL;
  }
  return connection;
}

void h2_free(h2_connection *connection) {
  connection->failed = connection->leaving = true;
  h2_begin_call(connection);
  h2_end_call(connection);
  for (h2_stream *stream; (stream = connection->spare);) {
    connection->spare = stream->in_bucket;
    free(stream);
  }
  if (connection->orphan) h2_free_message(connection->orphan);
  if (connection->decoder) hpack_free(connection->decoder);
  free(connection->block);
  free(connection->output);
  free(connection->views);
  free(connection);
}

bool h2_failed(const h2_connection *connection) { return connection->failed; }

bool h2_leaving(const h2_connection *connection) { return connection->leaving; }

void h2_leave(h2_connection *connection) {
  if (connection->leaving) return;
  connection->leaving = true;
  write_goaway(connection, NO_ERROR, "", 0);
}

size_t h2_streams(const h2_connection *connection) { return connection->streams; }

h2_stream *h2_first(const h2_connection *connection) { return connection->first; }

h2_stream *h2_next(const h2_stream *stream) { return stream->next; }

size_t h2_memory(const h2_connection *connection) {
  return sizeof *connection + connection->kept + connection->output_room + (connection->block ? BLOCK_BYTES : 0) +
         connection->streams * sizeof(h2_stream);
}

bool h2_midway(const h2_connection *connection) {
  return connection->expects_preface || !connection->settled || connection->in_block ||
         (connection->held && !connection->left && !connection->padding);
}

uint32_t h2_max_streams(const h2_connection *connection) { return connection->max_streams; }

h2_stream *h2_open(h2_connection *connection) {
  if (connection->leaving || connection->last_stream >= INT32_MAX - 1) return NULL;
  const uint32_t number = connection->last_stream ? connection->last_stream + 2 : 1;
  h2_stream *stream = h2_add_stream(connection, number);
  if (stream) connection->last_stream = number;
  return stream;
}

bool h2_remote_open(const h2_stream *stream) { return stream->remote_open; }

uint32_t h2_number(const h2_stream *stream) { return stream->number; }

void h2_set_context(h2_stream *stream, void *context) { stream->context = context; }

void *h2_context(const h2_stream *stream) { return stream->context; }
