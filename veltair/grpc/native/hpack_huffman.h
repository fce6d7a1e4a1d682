/* The Huffman code of header compression (RFC 7541, section 5.2). */
#ifndef VELTAIR_HPACK_HUFFMAN_H
#define VELTAIR_HPACK_HUFFMAN_H

#include <stddef.h>
#include <stdint.h>

/* Decodes `size` bytes into `target`, which has room for `room`. Returns how many bytes that gives, or -1 for a string
 * that ends within a character, has the end symbol inside, or does not fit. */
ptrdiff_t hpack_huffman_decode(const uint8_t *source, size_t size, char *target, size_t room);

#endif
