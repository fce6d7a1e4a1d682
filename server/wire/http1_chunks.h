/* Bodies with Transfer-Encoding: chunked (RFC 9112, section 7.1): where their data lies among their framing. Pure.
 *
 * Extensions of chunks and trailers are read over, within a bound. What RFC 9112 does not allow is BROKEN: lenient
 * parsers differ about it, which lets one request be taken for two.
 */
#ifndef VELTAIR_HTTP1_CHUNKS_H
#define VELTAIR_HTTP1_CHUNKS_H

#include <stddef.h>
#include <stdint.h>

enum chunks_state { CHUNKS_GO_ON, CHUNKS_OVER, CHUNKS_BROKEN };

/* All zero before the first byte. */
typedef struct {
  uint64_t size;   /* of the chunk whose first line is being read */
  uint64_t left;   /* bytes of the present chunk's data that are still to come */
  uint64_t data;   /* bytes of data in all chunks so far, with those */
  uint32_t beside; /* bytes of extensions and trailers so far */
  uint8_t place;   /* in the framing; enum place in http1_chunks.c */
  uint8_t digits;  /* of the present chunk's size */
  uint8_t state;   /* enum chunks_state */
} chunks;

/* Reads framing up to the next byte of data, or to the end of the body or of these bytes. Returns how many bytes it
 * took. While `left` is not zero, the next bytes are data: the caller takes some, and subtracts them. BROKEN: it is no
 * framing, or has more than `most` bytes of extensions and trailers. */
size_t chunks_read(chunks *of, const uint8_t *bytes, size_t size, uint32_t most);

#endif
