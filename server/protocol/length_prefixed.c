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
