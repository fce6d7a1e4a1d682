/* Header compression (RFC 7541): decodes header blocks, and encodes without a table, as http2/hpack.py does. */
#ifndef VELTAIR_HPACK_H
#define VELTAIR_HPACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct {
  const char *name, *value; /* not terminated */
  uint32_t name_size, value_size;
} hpack_field;

typedef struct hpack_decoder hpack_decoder;

/* NULL when there is no memory. */
hpack_decoder *hpack_new(void);
void hpack_free(hpack_decoder *decoder);

/* Decodes a complete header block. The fields are valid until the next call. Returns their number, or -1 for a block
 * that breaks the RFC, or that is larger decoded than CONTROL_BYTES: the connection has to end with `*error`. */
int hpack_decode(hpack_decoder *decoder, const uint8_t *block, size_t size, const hpack_field **fields, int *error);

/* Appends one field to `target`, which has room for 2 * 6 + name + value bytes: by its index where the static table has
 * it, else literal and without indexing. Texts have less than 2^28 bytes. Returns how many bytes it wrote. */
size_t hpack_encode(uint8_t *target, const hpack_field *field);

#endif
