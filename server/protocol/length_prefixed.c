/* Converts strings between the protocol's form, each behind its length (u32, little-endian), and Arrow's form.
 *
 * Plain C without headers of Python or TVM: the front loads it, and loads no TVM. */
#include <stdint.h>
#include <string.h>

#define PREFIX ((int64_t)sizeof(uint32_t))
#define EXPORT __attribute__((visibility("default")))

/* Writes the strings of source[0, size) one after the other into `letters` (`size` bytes), and where the first `count`
 * of them end into offsets[1 … count]; offsets[0] is 0. Returns how many strings there are, further ones included, or
 * -1 - p when the string at byte p, or its length, is incomplete. */
EXPORT int64_t unprefix(const uint8_t *source, int64_t size, int64_t count, int32_t *offsets, uint8_t *letters) {
  int64_t found = 0, end = 0;
  offsets[0] = 0;
  for (int64_t at = 0; at < size; found++) {
    uint32_t length;
    if (size - at < PREFIX) return -1 - at;
    memcpy(&length, source + at, sizeof length);
    if (length > size - at - PREFIX) return -1 - at;
    memcpy(letters + end, source + at + PREFIX, length);
    at += PREFIX + length;
    end += length;
    if (found < count) offsets[found + 1] = (int32_t)end;
  }
  return found;
}

/* The inverse: `target` holds all letters and `count` lengths. */
EXPORT void prefix(const uint8_t *letters, const int32_t *offsets, int64_t count, uint8_t *target) {
  for (int64_t i = 0; i < count; i++) {
    const uint32_t length = (uint32_t)(offsets[i + 1] - offsets[i]);
    memcpy(target, &length, sizeof length);
    memcpy(target + PREFIX, letters + offsets[i], length);
    target += PREFIX + length;
  }
}

/* The number at *at, which is moved behind it. False: it is cut off. */
static int read_varint(const uint8_t *source, int64_t size, int64_t *at, uint64_t *value) {
  *value = 0;
  for (int shift = 0; shift < 64 && *at < size; shift += 7) {
    const uint8_t byte = source[(*at)++];
    *value |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return 1;
  }
  return 0;
}

/* Bytes of a message of protobuf but those of the length-delimited fields of one number: what it costs to parse it, where
 * that field is copied only. All of them where the message is not valid, or has groups. */
EXPORT int64_t bytes_beside_field(const uint8_t *source, int64_t size, uint32_t number) {
  enum { VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 5 };
  int64_t beside = 0;
  for (int64_t at = 0; at < size;) {
    const int64_t begin = at;
    uint64_t tag, value;
    if (!read_varint(source, size, &at, &tag)) return size;
    switch (tag & 7) {
      case VARINT:
        if (!read_varint(source, size, &at, &value)) return size;
        break;
      case FIXED64: at += 8; break;
      case FIXED32: at += 4; break;
      case LENGTH_DELIMITED:
        if (!read_varint(source, size, &at, &value) || value > (uint64_t)(size - at)) return size;
        at += (int64_t)value;
        break;
      default: return size;
    }
    if (tag != ((uint64_t)number << 3 | LENGTH_DELIMITED)) beside += at - begin;
  }
  return beside;
}
