#include "http1_chunks.h"

#include "http1_head.h"

enum place { SIZE, EXTENSION, SIZE_END, DATA_BEGINS, DATA_END, DATA_LINE_END, TRAILER, NAME, VALUE, VALUE_END, LAST_END };
enum { MOST_DIGITS = 15 /* so that no sum of sizes overflows before a body is far too large */ };

static int digit(uint8_t byte) {
  if (byte >= '0' && byte <= '9') return byte - '0';
  if (byte >= 'a' && byte <= 'f') return byte - 'a' + 10;
  return byte >= 'A' && byte <= 'F' ? byte - 'A' + 10 : -1;
}

/* Of a field's value or an extension. */
static bool is_text(uint8_t byte) { return byte == '\t' || (byte >= ' ' && byte != 0x7F); }

/* Where the next byte stands. Returns false where it may not be this one. */
static bool step(chunks *of, uint8_t byte) {
  switch (of->place) {
    case SIZE: {
      const int value = digit(byte);
      if (value >= 0 && of->digits < MOST_DIGITS) {
        of->size = of->size << 4 | (uint64_t)value;
        of->digits++;
        return true;
      }
      if (value >= 0 || !of->digits || (byte != ';' && byte != '\r')) return false;
      of->place = byte == ';' ? EXTENSION : SIZE_END;
      return true;
    }
    case EXTENSION:
      if (byte == '\r') of->place = SIZE_END;
      return byte == '\r' || is_text(byte);
    case SIZE_END:
      of->place = of->size ? DATA_BEGINS : TRAILER;
      of->left = byte == '\n' ? of->size : 0;
      of->data += of->left;
      of->size = of->digits = 0;
      return byte == '\n';
    case DATA_END:
      of->place = DATA_LINE_END;
      return byte == '\r';
    case DATA_LINE_END:
      of->place = SIZE;
      return byte == '\n';
    case TRAILER:
      of->place = byte == '\r' ? LAST_END : NAME;
      return byte == '\r' || http1_is_token(byte);
    case NAME:
      if (byte == ':') of->place = VALUE;
      return byte == ':' || http1_is_token(byte);
    case VALUE:
      if (byte == '\r') of->place = VALUE_END;
      return byte == '\r' || is_text(byte);
    case VALUE_END:
      of->place = TRAILER;
      return byte == '\n';
    default: /* LAST_END */
      of->state = CHUNKS_OVER;
      return byte == '\n';
  }
}

static bool is_beside(const chunks *of) { return of->place == EXTENSION || of->place >= TRAILER; }

size_t chunks_read(chunks *of, const uint8_t *bytes, size_t size, uint32_t most) {
  size_t at = 0;
  if (of->place == DATA_BEGINS && !of->left) of->place = DATA_END;
  while (at < size && of->state == CHUNKS_GO_ON && of->place != DATA_BEGINS) {
    if (!step(of, bytes[at]) || (is_beside(of) && ++of->beside > most)) of->state = CHUNKS_BROKEN;
    at++;
  }
  return at;
}
