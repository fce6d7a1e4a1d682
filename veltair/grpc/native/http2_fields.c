/* What the protocol asks of the header lists of a request. */
#include <string.h>

#include "http2_internal.h"

static bool is(const char *text, uint32_t size, const char *name) { return size == strlen(name) && !memcmp(text, name, size); }

static bool valid_name(const hpack_field *field) {
  if (!field->name_size) return false;
  for (uint32_t i = field->name[0] == ':' ? 1 : 0; i < field->name_size; i++) {
    const char byte = field->name[i];
    if (byte <= ' ' || byte >= 0x7F || byte == ':' || (byte >= 'A' && byte <= 'Z')) return false;
  }
  return true;
}

static bool valid_value(const hpack_field *field) {
  return !memchr(field->value, '\0', field->value_size) && !memchr(field->value, '\r', field->value_size) &&
         !memchr(field->value, '\n', field->value_size);
}

/* A field of HTTP/1.1 alone. */
static bool of_connection(const hpack_field *field) {
  static const char *const names[] = {"connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (is(field->name, field->name_size, names[i])) return true;
  return is(field->name, field->name_size, "te") && !is(field->value, field->value_size, "trailers");
}

static bool valid_regular(const hpack_field *field) {
  return field->name_size && field->name[0] != ':' && valid_name(field) && valid_value(field) && !of_connection(field);
}

static bool read_length(const hpack_field *field, int64_t *announced) {
  if (!field->value_size || field->value_size > 18) return false;
  int64_t length = 0;
  for (uint32_t i = 0; i < field->value_size; i++) {
    if (field->value[i] < '0' || field->value[i] > '9') return false;
    length = 10 * length + (field->value[i] - '0');
  }
  if (*announced >= 0 && *announced != length) return false;
  *announced = length;
  return true;
}

static char lower(char byte) { return byte >= 'A' && byte <= 'Z' ? (char)(byte | 0x20) : byte; }

/* Whether a request goes to one server, and names no user of it (RFC 9113, section 8.3.1). `authority`: NULL for none. */
static bool names_one_server(const hpack_field *authority, const hpack_field *host) {
  const hpack_field *const names[] = {authority, host};
  for (size_t i = 0; i < 2; i++)
    if (names[i] && memchr(names[i]->value, '@', names[i]->value_size)) return false;
  if (!authority || !host) return true;
  if (authority->value_size != host->value_size) return false;
  for (uint32_t i = 0; i < host->value_size; i++)
    if (lower(authority->value[i]) != lower(host->value[i])) return false;
  return true;
}

bool h2_valid_request(const hpack_field *fields, int count, int64_t *announced) {
  static const char *const pseudo[] = {":method", ":scheme", ":path", ":authority"};
  enum { PSEUDO = sizeof pseudo / sizeof *pseudo, PATH = 2, AUTHORITY = 3 };
  const hpack_field *found[PSEUDO] = {NULL}, *host = NULL;
  int at = 0;
  *announced = -1;
  for (; at < count && fields[at].name_size && fields[at].name[0] == ':'; at++) {
    int which = 0;
    while (which < PSEUDO && !is(fields[at].name, fields[at].name_size, pseudo[which])) which++;
    if (which == PSEUDO || found[which] || !valid_value(&fields[at]) || (which == PATH && !fields[at].value_size)) return false;
    found[which] = &fields[at];
  }
  for (; at < count; at++) {
    if (!valid_regular(&fields[at])) return false;
    if (is(fields[at].name, fields[at].name_size, "content-length") && !read_length(&fields[at], announced)) return false;
    if (!is(fields[at].name, fields[at].name_size, "host")) continue;
    if (host) return false;
    host = &fields[at];
  }
  return found[0] && found[1] && found[PATH] && names_one_server(found[AUTHORITY], host);
}

bool h2_valid_trailers(const hpack_field *fields, int count) {
  for (int i = 0; i < count; i++)
    if (!valid_regular(&fields[i])) return false;
  return true;
}
