/* Bytes in order: appended at the end, taken from the front. */
#ifndef VELTAIR_BUFFER_H
#define VELTAIR_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
  uint8_t *memory;
  size_t begin, end, room; /* memory[begin] to memory[end - 1] of `room` bytes */
} buffer;

/* Where `size` more bytes go, which buffer_add counts; NULL without memory. May move what is there. */
uint8_t *buffer_reserve(buffer *to, size_t size);
void buffer_add(buffer *to, size_t size);
bool buffer_append(buffer *to, const void *bytes, size_t size); /* false without memory */
void buffer_drop(buffer *from, size_t size);                    /* its first bytes */
bool buffer_move(buffer *to, buffer *from, size_t size);        /* the first bytes of one behind those of another */
void buffer_free(buffer *used);

/* Copies bytes to memory that has room for them. Returns where the next ones go. */
static inline uint8_t *append(uint8_t *at, const void *bytes, size_t size) {
  if (size) memcpy(at, bytes, size);
  return at + size;
}

static inline size_t buffer_size(const buffer *of) { return of->end - of->begin; }
static inline const uint8_t *buffer_bytes(const buffer *of) { return of->memory + of->begin; }

#endif
