/* What wire.c shares with python_calls.c. */
#ifndef VELTAIR_PYTHON_CALLS_H
#define VELTAIR_PYTHON_CALLS_H

#include "wire.h"

enum { EVENT_OPEN = NOTICE_FAILED + 1, EVENT_MESSAGE, EVENT_END, EVENT_ABORTED, EVENT_FLUSHED };
enum { COMMAND_HEADERS, COMMAND_DATA, COMMAND_TELL_FLUSHED /* of the next command */, COMMAND_TAKEN, COMMAND_RESET };

struct call_event { /* native.CallEvent */
  call_event *next;
  uint64_t call; /* of a failure: the query */
  int64_t code;  /* of a message: whether it is compressed; of an aborted call: why; of a failure: the tenant */
  uint8_t *data;
  size_t size;
  int32_t kind;
};

struct command {
  command *next;
  uint64_t call;
  size_t size;
  int32_t kind;
  bool last; /* the call sends nothing behind it */
  uint8_t data[];
};

call_event *event_next(wire *owner); /* NULL when there is none; free with event_free */
void event_free(call_event *event);
bool command_post(wire *owner, uint64_t number, int kind, bool last, const uint8_t *data, size_t size);

#endif
