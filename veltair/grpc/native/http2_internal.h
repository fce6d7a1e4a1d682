/* What the parts of an HTTP/2 connection share. */
#ifndef VELTAIR_HTTP2_INTERNAL_H
#define VELTAIR_HTTP2_INTERNAL_H

#include "http2.h"

enum { DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION };
enum { END_STREAM = 0x1, END_HEADERS = 0x4, PADDED = 0x8, HAS_PRIORITY = 0x20, ACK = 0x1 };
enum {
  NO_ERROR = 0x0,
  PROTOCOL_ERROR = 0x1,
  INTERNAL_ERROR = 0x2,
  FLOW_CONTROL_ERROR = 0x3,
  STREAM_CLOSED = 0x5,
  FRAME_SIZE_ERROR = 0x6,
  REFUSED_STREAM = 0x7,
  COMPRESSION_ERROR = 0x9,
  ENHANCE_YOUR_CALM = 0xb,
};
enum { ENABLE_PUSH = 2, MAX_CONCURRENT_STREAMS = 3, INITIAL_WINDOW_SIZE = 4, MAX_FRAME_SIZE = 5, MAX_HEADER_LIST_SIZE = 6 };

enum {
  DEFAULT_WINDOW_BYTES = 65535,
  DEFAULT_FRAME_BYTES = 16384,
  LARGEST_WINDOW_BYTES = INT32_MAX,
  DATA_FRAME_BYTES = 1 << 20,        /* the largest data frame that the other side may send */
  CONTROL_BYTES = DEFAULT_FRAME_BYTES, /* its largest other frame, except for headers */
  REQUEST_WINDOW_BYTES = DEFAULT_WINDOW_BYTES, /* of a request: the rest of a message may come once it is wanted */
  ANSWER_WINDOW_BYTES = 1 << 23,     /* of an answer, ahead of its reader */
  CONNECTION_WINDOW_BYTES = 1 << 30, /* streams bound the memory in use, so this window does not */
  MAX_GLITCHES = 1000,       /* frames that cost more than they bring, beyond the calls that end normally */
  SMALL_FRAME_BYTES = 256,   /* a part of a message that is cut smaller for lack of window is a glitch */
  REMEMBERED = 256,          /* streams that are over, whose late frames are told from those of others */
  MAX_UNREAD_REPLIES = 500,  /* answers to control frames that may wait behind a full output */
  SCRATCH_BYTES = 1 << 16,   /* one read; a message that misses more than a quarter of it is read in place */
  BLOCK_BYTES = 1 << 16,     /* of a header block: its list may be too large without harm to other streams */
  OUTPUT_BYTES = 1 << 20,    /* unsent; above it nothing is added but answers to control frames */
  FRAME_HEAD_BYTES = 9,
  MESSAGE_PREFIX_BYTES = 5,
  BUCKETS = 1024,
  NO_STREAM = 0, /* in frames of the whole connection */
};

#define PREFACE "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" /* the first bytes of a client */
enum { PREFACE_BYTES = sizeof PREFACE - 1 };

/* A frame, or the rest of one, that waits for windows or the output. */
typedef struct pending_frame {
  struct pending_frame *next;
  const uint8_t *data; /* `bytes`, or the caller's, who keeps them */
  size_t size, sent;
  uint8_t kind;
  bool end, kept;
  uint8_t bytes[];
} pending_frame;

/* Bytes that their owner keeps, in the output behind its own bytes before `at`, which counts from the connection's begin. */
typedef struct {
  uint64_t at;
  const uint8_t *data;
  size_t size;
} output_view;

struct h2_stream {
  h2_connection *connection;
  /* Open streams by number. `next` stays as it was once the stream is closed, so that a loop over them can go on. */
  h2_stream *next, *previous;
  h2_stream *in_bucket; /* of open streams; then the next one of those that are closed or spare */
  void *context;
  uint32_t number;
  bool closed;                  /* it neither sends nor receives any more */
  bool remote_open, local_open; /* the other side, and this one, may still send */
  bool end_queued, held;
  bool known; /* the other side has, or is to get, a frame of it: a client's stream without any was never open */
  bool reset; /* by us */
  bool refused;                     /* a message was too large: further data is dropped */
  bool wanted;                      /* the rest of the message may come */
  bool in_flushed, flushed_again;   /* `flushed` runs; it has been due once more meanwhile */
  int64_t send_window;              /* bytes that may be sent, beyond the connection's first_window */
  int64_t announced, received;      /* bytes of data: by content-length (-1: it says nothing), and so far */
  int32_t receive_window;           /* bytes that the other side may send */
  pending_frame *first, *last;      /* frames to send */
  uint8_t *message;                 /* being received */
  uint32_t message_size, filled;
  uint8_t prefix[MESSAGE_PREFIX_BYTES], prefix_size;
};

struct h2_connection {
  h2_handler handler;
  void *owner;
  bool server, failed, leaving;
  h2_limits limits;
  int depth; /* of calls that may call the handler: closed streams are freed behind the outermost */

  h2_stream *buckets[BUCKETS], *first, *last; /* open streams */
  h2_stream *dead, *spare;                    /* closed ones not yet freed; ones to use again */
  size_t streams, spares, waiting;            /* open; spare; open with pending frames */
  uint32_t last_stream;                       /* greatest number of a stream so far */
  uint32_t max_streams;                       /* at the same time, by the other side's settings */
  int glitches;                               /* less the calls that ended normally; h2_calm */
  uint32_t over[REMEMBERED], overs;           /* the last streams that are over: 2 * number + whether we reset it */

  /* Incoming */
  bool expects_preface, settled; /* settled: the other side's first frame has come, which is of settings */
  uint8_t *direct;        /* memory of a message that the next read goes to instead of the scratch */
  uint32_t direct_room;   /* bytes of it */
  uint8_t *orphan;        /* the message of `direct`, when its stream was closed before that read */
  h2_stream *data_stream; /* whose data frame is being read; NULL: the data is thrown away */
  uint32_t left, padding; /* bytes of that frame that are still to come */
  bool data_ends_stream;
  uint32_t unacknowledged; /* bytes received since the last update of the connection's window */
  hpack_decoder *decoder;
  bool in_block, block_ends_stream; /* a header block goes on; no other frame may come before its rest */
  uint32_t block_stream;
  uint8_t *block; /* BLOCK_BYTES while a block goes on, else NULL */
  size_t block_size;
  size_t held; /* bytes in `scratch` */

  /* Outgoing */
  int64_t window;       /* bytes that may be sent */
  int64_t first_window; /* of a new stream */
  size_t kept;          /* bytes of messages that are being received, and of frames that wait */
  size_t frame_bytes;   /* largest data frame that may be sent */
  int unread_replies;   /* answers to control frames since the output is full */
  uint8_t *output;
  size_t output_begin, output_end, output_room;
  uint64_t output_dropped; /* bytes that have been in front of output_begin since the connection began */
  output_view *views;
  size_t views_begin, views_end, views_room;
  size_t viewed; /* bytes of all views */

  uint8_t scratch[SCRATCH_BYTES];
};

static inline uint32_t read_word(const uint8_t *from) {
  return (uint32_t)from[0] << 24 | (uint32_t)from[1] << 16 | (uint32_t)from[2] << 8 | from[3];
}

static inline void write_word(uint8_t *target, uint32_t word) {
  for (int i = 0; i < 4; i++) target[i] = (uint8_t)(word >> (24 - 8 * i));
}

/* http2_connection.c */

/* Around everything that may call the handler. */
void h2_begin_call(h2_connection *connection);
void h2_end_call(h2_connection *connection);
/* The other side broke the protocol. Returns false. */
__attribute__((format(printf, 3, 4))) bool h2_fail(h2_connection *connection, uint32_t code, const char *format, ...);
h2_stream *h2_find_stream(const h2_connection *connection, uint32_t number);
h2_stream *h2_add_stream(h2_connection *connection, uint32_t number);
/* Both forget an open stream, and call `closed`; h2_abort calls `aborted` before. */
void h2_drop(h2_stream *stream);
void h2_abort(h2_stream *stream, int64_t code);
/* One side has ended. After both the stream is over; a client that still sends gets a reset. */
void h2_half_closed(h2_stream *stream);
/* The other side broke the protocol on one stream, which is reset and aborted. */
void h2_stream_error(h2_stream *stream, uint32_t code);
/* The same for a stream that is not open. False: the connection has failed. */
bool h2_refuse_stream(h2_connection *connection, uint32_t number, uint32_t code);
/* A frame that cost more than it brought. False when there were too many: the connection has failed. */
bool h2_glitch(h2_connection *connection);
/* How a stream that is not open, but once may have been, ended. */
enum stream_end { NEVER_OPEN, ENDED, RESET_BY_US };
enum stream_end h2_stream_end(const h2_connection *connection, uint32_t number);

/* http2_control.c: a complete frame other than data. False when the connection has failed. */
bool h2_handle_control(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const uint8_t *payload,
                       size_t size);
/* http2_frames.c: the other side sends no more on this stream. */
void h2_end_received(h2_stream *stream);

/* http2_fields.c: what RFC 9113, 8.2 and 8.3, asks of header lists. `announced`: content-length, -1 where it is not
 * given. */
bool h2_valid_request(const hpack_field *fields, int count, int64_t *announced);
bool h2_valid_trailers(const hpack_field *fields, int count);

/* http2_messages.c */
void h2_feed(h2_stream *stream, const uint8_t *data, size_t size);
void h2_message_filled(h2_stream *stream, size_t size);
bool h2_count_data(h2_stream *stream, uint32_t size);
int32_t h2_granted_window(const h2_connection *connection); /* what the other side may send on a new stream */
/* Lets it send the rest of a message that is wanted and a window beyond, where that is worth a frame. */
void h2_extend_window(h2_stream *stream);

/* http2_output.c: a connection whose output cannot grow has failed */
void h2_write(h2_connection *connection, const void *bytes, size_t size);
void h2_write_frame(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
                    size_t size);
void h2_write_word(h2_connection *connection, uint8_t kind, uint32_t number, uint32_t word);
/* A frame that answers one of the other side's: false when too many of them are not read. */
bool h2_reply(h2_connection *connection, uint8_t kind, uint8_t flags, uint32_t number, const void *payload,
              size_t size);
bool h2_full(const h2_connection *connection); /* nothing is added to the output but answers to control frames */
void h2_flush(h2_stream *stream);
void h2_flush_all(h2_connection *connection);
void h2_drop_pending(h2_stream *stream);

#endif
