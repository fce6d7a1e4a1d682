/* Reads requests of inference from a file, damaged or not, as an I/O thread does: the head of a ModelInferRequest, and
 * its tensors by a plan into a slot. Each lies in memory of its own that ends with it, and the slot has what its plan
 * says, so that the address sanitizer sees what goes beyond. Prints how many fitted the plan.
 *
 * grpc_fuzz FILE ROUNDS; the file has records of size (u32) and bytes. With LIBFUZZER defined it is a target of
 * libFuzzer instead. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "http1.h"

enum { SUMS, IDS, WORDS, INPUTS };
enum { X_BYTES = 16, IDS_BYTES = 16, STRINGS_SENT = 2, TEXT_BYTES = 40, SLOT_BYTES = X_BYTES + IDS_BYTES + 16 + TEXT_BYTES };

/* x: 4 floats; ids: 2 integers from 0 to 99; words: 2 strings, where the plan has them. */
static plan_input inputs[INPUTS] = {
    {.bytes = X_BYTES, .file = -1, .sent_bytes = X_BYTES},
    {.bytes = IDS_BYTES, .offset = X_BYTES, .element = INT64, .file = -1, .low = 0, .high = 99, .sent_bytes = IDS_BYTES},
    {.bytes = STRINGS_SENT, .offset = X_BYTES + IDS_BYTES, .element = STRINGS, .file = -1, .text_bytes = TEXT_BYTES,
     .text_offset = X_BYTES + IDS_BYTES + 16, .sent_bytes = 20},
};

static void check_part(const uint8_t *part, size_t size, const uint8_t *message, size_t whole) {
  if (size && (part < message || part + size > message + whole)) abort();
}

/* Returns whether it fits a plan. */
static bool examine(const uint8_t *bytes, size_t size) {
  uint8_t *const message = malloc(size ? size : 1), *const slot = malloc(SLOT_BYTES);
  if (size) memcpy(message, bytes, size);
  request found;
  bool fits = false;
  if (grpc_request(message, size, &found)) {
    for (int i = BEFORE_ID; i <= BEHIND_ID; i++) check_part(found.key.part[i], found.key.size[i], message, size);
    check_part(found.tensors, (size_t)(found.end - found.tensors), message, size);
    check_part(found.id, found.id_bytes, message, size);
    grpc_plain(&found);
    for (uint32_t count = 1; count <= INPUTS; count++)
      fits = grpc_fill(&(plan){.inputs = count, .input = inputs}, &found, slot) || fits;
    if (found.id_bytes) {
      uint8_t *const field = malloc(found.id_bytes);
      size_t id_bytes;
      memcpy(field, found.id, found.id_bytes);
      const uint8_t *const id = grpc_id(field, found.id_bytes, &id_bytes);
      check_part(id, id_bytes, field, found.id_bytes);
      if (id_bytes >= found.id_bytes) abort();
      free(field);
    }
  }
  found = (request){.tensors = message, .end = message + size};
  for (uint32_t count = 1; count <= INPUTS; count++) http1_fill(&(plan){.inputs = count, .input = inputs}, &found, slot);
  free(message);
  free(slot);
  return fits;
}

#ifdef LIBFUZZER

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
  examine(bytes, size);
  return 0;
}

#else

int main(int count, char **arguments) {
  if (count != 3) return 2;
  FILE *file = fopen(arguments[1], "rb");
  const int rounds = atoi(arguments[2]);
  size_t fitting = 0;
  srand(1);
  for (uint32_t size; file && fread(&size, sizeof size, 1, file) == 1;) {
    uint8_t *const bytes = malloc(size ? size : 1), *const damaged = malloc(size ? size : 1);
    if (fread(bytes, 1, size, file) != size) return 2;
    for (int round = 0; round < rounds; round++) {
      memcpy(damaged, bytes, size);
      for (int i = round ? rand() % 4 : 0; size && i--;) damaged[(uint32_t)rand() % size] = (uint8_t)rand();
      fitting += examine(damaged, size - (round ? (uint32_t)rand() % (size / 8 + 1) : 0));
    }
    free(bytes);
    free(damaged);
  }
  printf("%zu\n", fitting);
  return 0;
}

#endif
