/* Copies the rows of several queries between their slots and one batch.
 *
 * Plain C without headers of Python or TVM. */
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

typedef struct {
  uint8_t *slots; /* the tensor in slot 0 */
  uint8_t *batch;
  int64_t row_bytes;
} field; /* batch_buffers.FIELD */

typedef struct {
  uint32_t slot, samples;
} member; /* of a batch, as in a worker's cell */

enum { NO_SLOT = -1, NO_BATCH = -2 };

/* The samples of all members; NO_SLOT for a slot that does not exist, NO_BATCH for too many samples or too few. */
EXPORT int64_t count_samples(const member *members, int64_t count, int64_t slots, int64_t most) {
  int64_t samples = 0;
  for (int64_t i = 0; i < count; i++) {
    if (members[i].slot >= slots) return NO_SLOT;
    if (members[i].samples == 0) return NO_BATCH;
    samples += members[i].samples;
  }
  return samples > most ? NO_BATCH : samples;
}

static void copy(const field *of, int64_t slot_bytes, const member *members, int64_t count, int to_slots) {
  uint8_t *batch = of->batch;
  for (int64_t i = 0; i < count; i++) {
    uint8_t *slot = of->slots + members[i].slot * slot_bytes;
    const size_t bytes = (size_t)(members[i].samples * of->row_bytes);
    if (to_slots)
      memcpy(slot, batch, bytes);
    else
      memcpy(batch, slot, bytes);
    batch += bytes;
  }
}

/* Row after row, member after member, for each field: from the slots to the batch, or back. */
EXPORT void gather(const field *fields, int64_t many, int64_t slot_bytes, const member *members, int64_t count) {
  for (int64_t i = 0; i < many; i++) copy(&fields[i], slot_bytes, members, count, 0);
}

EXPORT void scatter(const field *fields, int64_t many, int64_t slot_bytes, const member *members, int64_t count) {
  for (int64_t i = 0; i < many; i++) copy(&fields[i], slot_bytes, members, count, 1);
}
