#include "buffer.h"

#include <stdlib.h>
#include <string.h>

enum { KEPT = 1 << 14 /* bytes of memory that an empty buffer keeps at most */ };

uint8_t *buffer_reserve(buffer *to, size_t size) {
  if (to->memory && to->room - to->end >= size) return to->memory + to->end;
  const size_t used = buffer_size(to);
  if (size > SIZE_MAX / 4 || used > SIZE_MAX / 4) return NULL;
  if (to->memory && to->room >= used + size && to->begin >= used) { /* moved in whole, less often than it is filled */
    memcpy(to->memory, to->memory + to->begin, used);
  } else {
    size_t room = used + size < 2 * used ? 2 * used : used + size;
    room = (room + 63) & ~(size_t)63;
    uint8_t *memory = malloc(room);
    if (!memory) return NULL;
    if (used) memcpy(memory, to->memory + to->begin, used);
    free(to->memory);
    to->memory = memory;
    to->room = room;
  }
  to->begin = 0;
  to->end = used;
  return to->memory + used;
}

void buffer_add(buffer *to, size_t size) { to->end += size; }

bool buffer_append(buffer *to, const void *bytes, size_t size) {
  if (!size) return true;
  uint8_t *target = buffer_reserve(to, size);
  if (!target) return false;
  memcpy(target, bytes, size);
  to->end += size;
  return true;
}

void buffer_drop(buffer *from, size_t size) {
  from->begin += size;
  if (from->begin < from->end) return;
  if (from->room > KEPT) buffer_free(from);
  from->begin = from->end = 0;
}

bool buffer_move(buffer *to, buffer *from, size_t size) {
  if (!size) return true;
  if (!buffer_append(to, buffer_bytes(from), size)) return false;
  buffer_drop(from, size);
  return true;
}

void buffer_free(buffer *used) {
  free(used->memory);
  *used = (buffer){0};
}
