/* Requests with a body in chunks, passed on to uvicorn in chunks of our own. */
#include "http1.h"

enum { SIZE_LINE = 10 /* eight digits and the end of the line */ };

static size_t smaller(uint64_t a, size_t b) { return a < b ? (size_t)a : b; }

static void write_size(uint8_t *line, size_t size) {
  for (int i = 0; i < 8; i++) line[i] = (uint8_t) "0123456789abcdef"[size >> (28 - 4 * i) & 15];
}

/* The data that goes on, up to `room` bytes. Of a body that is too large uvicorn gets one byte more than is allowed, by
 * which it knows. Returns how many bytes; -1 without memory. */
static ptrdiff_t pass_data(http1 *on, size_t room) {
  const wire *owner = on->asker.connection->thread->wire;
  size_t passed = 0;
  while (passed < room && buffer_size(&on->in) && on->chunks.state == CHUNKS_GO_ON) {
    const size_t size = buffer_size(&on->in);
    buffer_drop(&on->in, chunks_read(&on->chunks, buffer_bytes(&on->in), size, owner->budgets.most.header_bytes));
    const size_t part = smaller(on->chunks.left, smaller(buffer_size(&on->in), room - passed));
    if (!part) continue;
    const uint64_t before = on->chunks.data - on->chunks.left, allowed = owner->max_body_bytes + 1;
    const size_t wanted = on->deaf || before >= allowed ? 0 : smaller(allowed - before, part);
    if (!buffer_append(&on->up, buffer_bytes(&on->in), wanted)) return -1;
    buffer_drop(&on->in, part);
    on->chunks.left -= part;
    passed += wanted;
  }
  return (ptrdiff_t)passed;
}

bool http1_pass_chunks(http1 *on, size_t room) {
  const size_t begin = buffer_size(&on->up);
  if (!room) return true;
  if (!buffer_append(&on->up, "00000000\r\n", SIZE_LINE)) return false;
  const ptrdiff_t passed = pass_data(on, room);
  if (passed < 0) return false;
  if (passed) write_size(on->up.memory + on->up.begin + begin, (size_t)passed);
  else on->up.end -= SIZE_LINE;
  if (passed && !buffer_append(&on->up, "\r\n", 2)) return false;
  return on->deaf || on->chunks.state != CHUNKS_OVER || buffer_append(&on->up, "0\r\n\r\n", 5);
}
