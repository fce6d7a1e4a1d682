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

enum {
  HPACK_BROKEN = -1,  /* the block breaks the RFC: nobody knows the table any more, so the connection has to end */
  HPACK_LONG = -2,    /* more fields than `most` bytes, as the protocol counts; the table is as it should be */
  HPACK_ENDLESS = -3, /* so many that decoding was given up, which leaves the table unknown */
};
enum { HPACK_LIST_BYTES = 1 << 14 /* the largest `most` */ };

/* Decodes a complete header block. The fields are valid until hpack_forget. Returns their number, or one of the above. */
int hpack_decode(hpack_decoder *decoder, const uint8_t *block, size_t size, uint32_t most, const hpack_field **fields);
void hpack_forget(hpack_decoder *decoder);

/* Appends one field to `target`, which has room for 2 * 6 + name + value bytes: by its index where the static table has
 * it, else literal and without indexing. Texts have less than 2^28 bytes. Returns how many bytes it wrote. */
size_t hpack_encode(uint8_t *target, const hpack_field *field);

#endif
