#include "hpack.h"

#include <stdlib.h>
#include <string.h>

#include "hpack_huffman.h"

enum {
  TABLE_BYTES = 4096,    /* of the decoder's table: the protocol's default */
  ENDLESS_BYTES = 1 << 18, /* of a list that is read for the table's sake alone: a byte of a block may stand for 4 KB */
  FIELD_BYTES = 32, /* added for each field, as the protocol counts */
  MAX_FIELDS = HPACK_LIST_BYTES / FIELD_BYTES,
  MAX_ENTRIES = TABLE_BYTES / FIELD_BYTES,
  MAX_DIGITS = 4, /* of 7 bits in an integer; lengths and indices need two */
};

#define FIELD(name, value) {name, value, sizeof(name) - 1, sizeof(value) - 1}
#define NAME(name) FIELD(name, "")

/* RFC 7541, appendix A: the fields 1 … 61. */
static const hpack_field static_fields[] = {
    NAME(":authority"), FIELD(":method", "GET"), FIELD(":method", "POST"), FIELD(":path", "/"),
    FIELD(":path", "/index.html"), FIELD(":scheme", "http"), FIELD(":scheme", "https"), FIELD(":status", "200"),
    FIELD(":status", "204"), FIELD(":status", "206"), FIELD(":status", "304"), FIELD(":status", "400"),
    FIELD(":status", "404"), FIELD(":status", "500"), NAME("accept-charset"),
    FIELD("accept-encoding", "gzip, deflate"), NAME("accept-language"), NAME("accept-ranges"), NAME("accept"),
    NAME("access-control-allow-origin"), NAME("age"), NAME("allow"), NAME("authorization"), NAME("cache-control"),
    NAME("content-disposition"), NAME("content-encoding"), NAME("content-language"), NAME("content-length"),
    NAME("content-location"), NAME("content-range"), NAME("content-type"), NAME("cookie"), NAME("date"), NAME("etag"),
    NAME("expect"), NAME("expires"), NAME("from"), NAME("host"), NAME("if-match"), NAME("if-modified-since"),
    NAME("if-none-match"), NAME("if-range"), NAME("if-unmodified-since"), NAME("last-modified"), NAME("link"),
    NAME("location"), NAME("max-forwards"), NAME("proxy-authenticate"), NAME("proxy-authorization"), NAME("range"),
    NAME("referer"), NAME("refresh"), NAME("retry-after"), NAME("server"), NAME("set-cookie"),
    NAME("strict-transport-security"), NAME("transfer-encoding"), NAME("user-agent"), NAME("vary"), NAME("via"),
    NAME("www-authenticate"),
};
enum { STATIC_FIELDS = sizeof static_fields / sizeof *static_fields };

/* A field of the dynamic table: its value stands behind its name in `table`. */
typedef struct {
  uint32_t at, name_size, value_size;
} table_entry;

struct hpack_decoder {
  table_entry entries[MAX_ENTRIES]; /* a ring */
  uint32_t oldest, count;
  uint32_t bytes, max_bytes;   /* as the protocol counts */
  uint32_t table_end;          /* behind the newest entry's value */
  char table[2 * TABLE_BYTES]; /* entries in order; once it is full they move to its begin */
  uint32_t text_end;
  char *text; /* names and values of the present block: `own`, or memory for one that may need more */
  size_t text_room;
  char own[2 * HPACK_LIST_BYTES];
  hpack_field fields[MAX_FIELDS];
};

/* What of a block is not decoded yet. */
typedef struct {
  const uint8_t *at, *end;
} reader;

hpack_decoder *hpack_new(void) {
  hpack_decoder *decoder = malloc(sizeof *decoder);
  if (!decoder) return NULL;
  decoder->oldest = decoder->count = decoder->bytes = decoder->table_end = decoder->text_end = 0;
  decoder->max_bytes = TABLE_BYTES;
  decoder->text = decoder->own;
  decoder->text_room = sizeof decoder->own;
  return decoder;
}

void hpack_free(hpack_decoder *decoder) {
  hpack_forget(decoder);
  free(decoder);
}

static uint32_t text_size(const table_entry *entry) { return entry->name_size + entry->value_size; }

/* The entry of this age: 0 is the newest. */
static const table_entry *find_entry(const hpack_decoder *decoder, uint32_t age) {
  return &decoder->entries[(decoder->oldest + decoder->count - 1 - age) % MAX_ENTRIES];
}

static void evict(hpack_decoder *decoder, uint32_t max_bytes) {
  while (decoder->bytes > max_bytes) {
    decoder->bytes -= text_size(&decoder->entries[decoder->oldest]) + FIELD_BYTES;
    decoder->oldest = (decoder->oldest + 1) % MAX_ENTRIES;
    decoder->count--;
  }
}

/* Adds a field to the dynamic table. A field that is larger than the table empties it. */
static void keep_field(hpack_decoder *decoder, const hpack_field *field) {
  const uint32_t size = field->name_size + field->value_size;
  if (size + FIELD_BYTES > decoder->max_bytes) {
    evict(decoder, 0);
    return;
  }
  evict(decoder, decoder->max_bytes - size - FIELD_BYTES);
  if (size > sizeof decoder->table - decoder->table_end) {
    const uint32_t begin = decoder->count ? decoder->entries[decoder->oldest].at : decoder->table_end;
    memmove(decoder->table, decoder->table + begin, decoder->table_end - begin);
    decoder->table_end -= begin;
    for (uint32_t i = 0; i < decoder->count; i++) decoder->entries[(decoder->oldest + i) % MAX_ENTRIES].at -= begin;
  }
  decoder->entries[(decoder->oldest + decoder->count++) % MAX_ENTRIES] =
      (table_entry){decoder->table_end, field->name_size, field->value_size};
  memcpy(decoder->table + decoder->table_end, field->name, field->name_size);
  memcpy(decoder->table + decoder->table_end + field->name_size, field->value, field->value_size);
  decoder->table_end += size;
  decoder->bytes += size + FIELD_BYTES;
}

/* The number that begins in the bits of `mask`. There is at least one byte. */
static bool read_integer(reader *from, uint8_t mask, uint32_t *value) {
  *value = *from->at++ & mask;
  if (*value < mask) return true;
  for (int digit = 0; digit < MAX_DIGITS && from->at < from->end; digit++) {
    const uint8_t byte = *from->at++;
    *value += (uint32_t)(byte & 0x7f) << 7 * digit;
    if (byte < 0x80) return true;
  }
  return false;
}

static bool read_text(hpack_decoder *decoder, reader *from, const char **text, uint32_t *size) {
  uint32_t packed_size;
  if (from->at == from->end) return false;
  const bool packed = *from->at & 0x80;
  if (!read_integer(from, 0x7f, &packed_size) || packed_size > (size_t)(from->end - from->at)) return false;
  char *target = decoder->text + decoder->text_end;
  const size_t room = decoder->text_room - decoder->text_end;
  if (packed) {
    const ptrdiff_t found = hpack_huffman_decode(from->at, packed_size, target, room);
    if (found < 0) return false;
    *size = (uint32_t)found;
  } else {
    if (packed_size > room) return false;
    memcpy(target, from->at, packed_size);
    *size = packed_size;
  }
  from->at += packed_size;
  decoder->text_end += *size;
  *text = target;
  return true;
}

/* The field of this index, or its name alone. What stands in the dynamic table is copied, as it may leave the table
 * before the block ends. */
static bool find_field(hpack_decoder *decoder, uint32_t index, bool name_only, hpack_field *field) {
  if (index == 0 || index > STATIC_FIELDS + decoder->count) return false;
  if (index <= STATIC_FIELDS) {
    *field = static_fields[index - 1];
    return true;
  }
  const table_entry *entry = find_entry(decoder, index - STATIC_FIELDS - 1);
  const uint32_t size = name_only ? entry->name_size : text_size(entry);
  if (size > decoder->text_room - decoder->text_end) return false;
  char *text = memcpy(decoder->text + decoder->text_end, decoder->table + entry->at, size);
  decoder->text_end += size;
  *field = (hpack_field){text, text + entry->name_size, entry->name_size, size - entry->name_size};
  return true;
}

static bool read_literal(hpack_decoder *decoder, reader *from, hpack_field *field) {
  const bool keep = *from->at & 0x40;
  uint32_t index;
  if (!read_integer(from, keep ? 0x3f : 0x0f, &index)) return false;
  if (!(index ? find_field(decoder, index, true, field) : read_text(decoder, from, &field->name, &field->name_size)))
    return false;
  if (!read_text(decoder, from, &field->value, &field->value_size)) return false;
  if (keep) keep_field(decoder, field);
  return true;
}

/* Returns what hpack_decode does. */
static int read_fields(hpack_decoder *decoder, reader from, uint32_t most) {
  int count = 0;
  uint32_t total = 0, index;
  decoder->text_end = 0;
  while (from.at < from.end) {
    hpack_field field;
    if (*from.at & 0x80) {
      if (!read_integer(&from, 0x7f, &index) || !find_field(decoder, index, false, &field)) return HPACK_BROKEN;
    } else if ((*from.at & 0xe0) == 0x20) {
      if (!read_integer(&from, 0x1f, &decoder->max_bytes) || decoder->max_bytes > TABLE_BYTES || total)
        return HPACK_BROKEN;
      evict(decoder, decoder->max_bytes);
      continue;
    } else if (!read_literal(decoder, &from, &field)) {
      return HPACK_BROKEN;
    }
    total += field.name_size + field.value_size + FIELD_BYTES;
    if (total > ENDLESS_BYTES) return HPACK_ENDLESS;
    if (total > most) decoder->text_end = 0; /* nobody reads the fields */
    else decoder->fields[count++] = field;
  }
  return total > most ? HPACK_LONG : count;
}

int hpack_decode(hpack_decoder *decoder, const uint8_t *block, size_t size, uint32_t most, const hpack_field **fields) {
  /* Those that fit, and one that does not: at most a name of the table and all of the block without compression. */
  const size_t room = HPACK_LIST_BYTES + TABLE_BYTES + 2 * size;
  hpack_forget(decoder);
  if (room > sizeof decoder->own) {
    if (!(decoder->text = malloc(room))) return HPACK_ENDLESS;
    decoder->text_room = room;
  }
  *fields = decoder->fields;
  return read_fields(decoder, (reader){block, block + size}, most);
}

void hpack_forget(hpack_decoder *decoder) {
  if (decoder->text != decoder->own) free(decoder->text);
  decoder->text = decoder->own;
  decoder->text_room = sizeof decoder->own;
}

static size_t encode_text(uint8_t *target, const char *text, uint32_t size) {
  size_t at = 0;
  if (size < 0x7f) {
    target[at++] = (uint8_t)size;
  } else {
    uint32_t rest = size - 0x7f;
    for (target[at++] = 0x7f; rest >= 0x80; rest >>= 7) target[at++] = (uint8_t)(rest | 0x80);
    target[at++] = (uint8_t)rest;
  }
  memcpy(target + at, text, size);
  return at + size;
}

static bool same_text(const char *a, uint32_t a_size, const char *b, uint32_t b_size) {
  return a_size == b_size && memcmp(a, b, a_size) == 0;
}

size_t hpack_encode(uint8_t *target, const hpack_field *field) {
  for (uint8_t i = 0; i < STATIC_FIELDS; i++) {
    const hpack_field *known = &static_fields[i];
    if (same_text(field->name, field->name_size, known->name, known->name_size) &&
        same_text(field->value, field->value_size, known->value, known->value_size)) {
      *target = 0x80 | (i + 1);
      return 1;
    }
  }
  *target = 0;
  const size_t name_end = 1 + encode_text(target + 1, field->name, field->name_size);
  return name_end + encode_text(target + name_end, field->value, field->value_size);
}
