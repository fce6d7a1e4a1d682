#include "http1_head.h"

#include <string.h>

enum { LONGEST_LINE = 8192 /* the first one of a request */, LONGEST_NAME = 256 /* of a header */ };

typedef struct {
  const uint8_t *bytes;
  size_t size;
} text;

bool http1_is_token(uint8_t byte) {
  return (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
         (byte && byte < 0x80 && strchr("!#$%&'*+-.^_`|~", byte));
}

static uint8_t lower(uint8_t byte) { return byte >= 'A' && byte <= 'Z' ? (uint8_t)(byte | 0x20) : byte; }

static bool same(text found, const char *name) {
  size_t i = 0;
  while (i < found.size && name[i] && lower(found.bytes[i]) == (uint8_t)name[i]) i++;
  return i == found.size && !name[i];
}

/* One element of a list that is separated by commas. */
static bool lists(text list, const char *name) {
  for (size_t begin = 0, at = 0; at <= list.size; at++) {
    if (at < list.size && list.bytes[at] != ',') continue;
    size_t first = begin, last = at;
    while (first < last && (list.bytes[first] == ' ' || list.bytes[first] == '\t')) first++;
    while (last > first && (list.bytes[last - 1] == ' ' || list.bytes[last - 1] == '\t')) last--;
    if (same((text){list.bytes + first, last - first}, name)) return true;
    begin = at + 1;
  }
  return false;
}

static bool read_number(text digits, uint64_t *value) {
  if (!digits.size || digits.size > 18) return false;
  *value = 0;
  for (size_t i = 0; i < digits.size; i++) {
    if (digits.bytes[i] < '0' || digits.bytes[i] > '9') return false;
    *value = *value * 10 + (digits.bytes[i] - '0');
  }
  return true;
}

/* The next complete line, without its end. HEAD_PARTIAL: there is none yet. */
static enum head_state next_line(http1_head *head, const uint8_t *bytes, size_t size, text *line) {
  const uint8_t *end = size > head->searched ? memchr(bytes + head->searched, '\n', size - head->searched) : NULL;
  if (!end) {
    head->searched = (uint32_t)size;
    return HEAD_PARTIAL;
  }
  *line = (text){bytes + head->line, (size_t)(end - bytes) - head->line};
  if (!line->size || line->bytes[line->size - 1] != '\r') return HEAD_STRANGE;
  line->size--;
  head->line = head->searched = (uint32_t)(end - bytes) + 1;
  return HEAD_COMPLETE;
}

/* Splits a header line into its name and its value without the space around it. */
static bool split(text line, text *name, text *value) {
  size_t colon = 0;
  while (colon < line.size && http1_is_token(line.bytes[colon])) colon++;
  if (!colon || colon > LONGEST_NAME || colon == line.size || line.bytes[colon] != ':') return false;
  size_t begin = colon + 1, end = line.size;
  for (size_t i = begin; i < end; i++)
    if ((line.bytes[i] < 0x20 && line.bytes[i] != '\t') || line.bytes[i] == 0x7F) return false;
  while (begin < end && (line.bytes[begin] == ' ' || line.bytes[begin] == '\t')) begin++;
  while (end > begin && line.bytes[end - 1] == ' ') end--;
  if (end > begin && line.bytes[end - 1] == '\t') return false; /* parsers differ */
  *name = (text){line.bytes, colon};
  *value = (text){line.bytes + begin, end - begin};
  return true;
}

/* Whether an incomplete header line may still become a valid one; its bytes before `fresh` have been looked at. */
static bool may_become_line(text line, size_t fresh) {
  if (!line.size || line.bytes[0] == '\r') return line.size <= 1;
  size_t at = 0;
  while (at < line.size && http1_is_token(line.bytes[at])) at++;
  if (at > LONGEST_NAME) return false;
  if (at == line.size) return true;
  if (!at || line.bytes[at] != ':') return false;
  for (at = fresh > at + 1 ? fresh - 1 : at; at < line.size; at++) {
    const uint8_t byte = line.bytes[at];
    if (byte == 0x7F || (byte < 0x20 && byte != '\t' && (byte != '\r' || at + 1 < line.size))) return false;
  }
  return true;
}

/* What decides where a message ends. False: it cannot be told. */
static bool read_framing(http1_head *head, const uint8_t *bytes, text name, text value) {
  if (same(name, "content-length")) {
    if (head->has_body || !read_number(value, &head->body)) return false;
    head->has_body = true;
  } else if (same(name, "transfer-encoding")) {
    head->opaque = head->opaque || head->chunked || !same(value, "chunked");
    head->chunked = true;
  } else if (same(name, "connection")) {
    head->closes = head->closes || lists(value, "close");
    if (lists(value, "upgrade")) {
      head->opaque = head->opaque || head->upgrade.size; /* only one is taken away */
      head->upgrade = (head_part){(uint32_t)(value.bytes - bytes), (uint32_t)value.size};
    }
  }
  return true;
}

/* Requests */

static bool plain_segment(const uint8_t **at, const uint8_t *end) {
  const uint8_t *begin = *at;
  while (*at < end && **at != '/') {
    const uint8_t byte = *(*at)++;
    if (!((byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z') || (byte >= '0' && byte <= '9') ||
          byte == '-' || byte == '.' || byte == '_' || byte == '~' || byte == '%'))
      return false;
  }
  return *at > begin;
}

/* /v2/models/MODEL/infer or /v2/models/MODEL/versions/VERSION/infer */
static bool is_infer(text path) {
  const uint8_t *at = path.bytes, *const end = path.bytes + path.size;
  if (!skip(&at, end, "/v2/models/") || !plain_segment(&at, end)) return false;
  if (skip(&at, end, "/versions/") && !plain_segment(&at, end)) return false;
  return skip(&at, end, "/infer") && at == end;
}

/* Whether these letters are a method, or the beginning of one. */
static bool is_method(text letters, bool complete) {
  static const char methods[][8] = {"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"};
  for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
    const size_t size = strlen(methods[i]);
    if (complete ? letters.size != size : letters.size > size) continue;
    if (!memcmp(letters.bytes, methods[i], letters.size)) return true;
  }
  return false;
}

/* METHOD SP TARGET SP HTTP/1.x, or so far as it has come. */
static bool request_line(http1_head *head, const uint8_t *bytes, text line, bool complete) {
  static const char version[] = "HTTP/1.";
  size_t at = 0, target;
  while (at < line.size && line.bytes[at] >= 'A' && line.bytes[at] <= 'Z') at++;
  if (!is_method((text){line.bytes, at}, at < line.size)) return false;
  if (at == line.size) return !complete;
  if (line.bytes[at] != ' ') return false;
  const text method = {line.bytes, at};
  target = ++at;
  if (at < line.size && line.bytes[at] != '/') return false; /* a proxy's form, which only uvicorn reads */
  while (at < line.size && line.bytes[at] > ' ' && line.bytes[at] < 0x7F) at++;
  if (at == line.size) return !complete;
  if (at == target || line.bytes[at] != ' ') return false;
  const text path = {line.bytes + target, at - target};
  at++;
  for (size_t i = 0; i < sizeof version - 1; i++, at++) {
    if (at == line.size) return !complete;
    if (line.bytes[at] != (uint8_t)version[i]) return false;
  }
  if (!complete) return line.size - at <= 2;
  if (line.size != at + 1 || (line.bytes[at] != '0' && line.bytes[at] != '1')) return false;
  head->closes = head->old = line.bytes[at] == '0';
  head->to_head = same(method, "head");
  head->path = (head_part){(uint32_t)(path.bytes - bytes), (uint32_t)path.size};
  head->infers = head->answerable = same(method, "post") && is_infer(path);
  return true;
}

/* What is usual in names of hosts; Python decides about others. */
static bool may_be_in_name(uint8_t byte) {
  return (byte >= '0' && byte <= '9') || (lower(byte) >= 'a' && lower(byte) <= 'z') || byte == '.' || byte == '-' || byte == '_';
}

/* Nothing, or a colon and a number, which may be missing. */
static bool is_port(text port) {
  enum { LAST = 65535 };
  uint64_t number = 0;
  if (port.size > 1 && !read_number((text){port.bytes + 1, port.size - 1}, &number)) return false;
  return !port.size || (port.bytes[0] == ':' && number <= LAST);
}

/* Whether a Host header plainly names this server: an address, one of these names, or a name without a dot, which nobody
 * outside can make lead here (origin_check.py). Python decides about others. */
static bool names_us(text host, const char *hosts) {
  text name = {host.bytes, 0};
  while (name.size < host.size && may_be_in_name(host.bytes[name.size])) name.size++;
  if (!name.size || !is_port((text){host.bytes + name.size, host.size - name.size})) return false;
  bool address = true, any = false;
  for (size_t i = 0; i < name.size && address; i++)
    address = (name.bytes[i] >= '0' && name.bytes[i] <= '9') || name.bytes[i] == '.';
  for (const char *at = hosts; *at && !any;) {
    const size_t size = strcspn(at, ",");
    any = size == 1 && *at == '*';
    size_t i = 0;
    while (i < size && i < name.size && lower(name.bytes[i]) == (uint8_t)at[i]) i++;
    any = any || (size == name.size && i == size);
    at += size + (at[size] == ',');
  }
  return any || address || !memchr(name.bytes, '.', name.size);
}

static bool request_field(http1_head *head, const uint8_t *bytes, text name, text value, const char *tenant,
                          const char *hosts) {
  if (!read_framing(head, bytes, name, value)) return false;
  if (same(name, "inference-header-content-length")) {
    if (head->has_json || !read_number(value, &head->json)) head->answerable = false;
    head->has_json = true;
  } else if (same(name, tenant)) {
    if (head->has_tenant) head->answerable = false;
    head->has_tenant = true;
    head->tenant = (head_part){(uint32_t)(value.bytes - bytes), (uint32_t)value.size};
  } else if (same(name, "authorization")) {
    if (head->has_authorization) head->answerable = false;
    head->has_authorization = true;
    head->authorization = (head_part){(uint32_t)(value.bytes - bytes), (uint32_t)value.size};
  } else if (same(name, "content-encoding") || same(name, "expect") || same(name, "origin") ||
             same(name, "sec-fetch-site")) {
    head->answerable = false;
  } else if (same(name, "host")) {
    if (head->has_host || !names_us(value, hosts)) head->answerable = false;
    head->has_host = true;
  } else if (same(name, "accept-encoding")) { /* compressed_body.response_coding */
    if (same(value, "gzip") || same(value, "deflate")) head->answerable = false;
  }
  return true;
}

enum head_state http1_read_request(http1_head *head, const uint8_t *bytes, size_t size, const char *tenant,
                                   const char *hosts) {
  for (text line, name, value;;) {
    const uint32_t searched = head->searched;
    const enum head_state state = next_line(head, bytes, size, &line);
    if (state == HEAD_STRANGE) return HEAD_STRANGE;
    if (state == HEAD_PARTIAL) { /* a mistake is told at once */
      line = (text){bytes + head->line, size - head->line};
      const bool valid = head->begun ? may_become_line(line, searched - head->line)
                                     : size <= LONGEST_LINE + 1 && request_line(head, bytes, line, false);
      return valid ? HEAD_PARTIAL : HEAD_STRANGE;
    }
    if (!head->begun) {
      if (line.size > LONGEST_LINE || !request_line(head, bytes, line, true)) return HEAD_STRANGE;
      head->begun = true;
    } else if (line.size) {
      if (!split(line, &name, &value) || !request_field(head, bytes, name, value, tenant, hosts)) return HEAD_STRANGE;
    } else {
      head->bytes = head->line;
      /* Whose end is told in two ways, or in a way that its version does not know, may be taken for another. */
      head->opaque = head->opaque || (head->chunked && (head->has_body || head->old));
      head->answerable = head->answerable && head->has_body && head->body && !head->opaque && (head->has_host || head->old);
      if (head->has_json && head->json > head->body) head->answerable = false;
      if (!head->has_json) head->json = head->body;
      return HEAD_COMPLETE;
    }
  }
}

/* Responses */

static bool status_line(http1_head *head, text line) {
  const uint8_t *at = line.bytes, *const end = line.bytes + line.size;
  uint64_t status;
  if (!skip(&at, end, "HTTP/1.") || end - at < 5 || (*at != '0' && *at != '1') || at[1] != ' ') return false;
  head->closes = *at == '0';
  if (!read_number((text){at + 2, 3}, &status)) return false;
  head->status = (int)status;
  return true;
}

enum head_state http1_read_response(http1_head *head, const uint8_t *bytes, size_t size) {
  for (text line, name, value;;) {
    const enum head_state state = next_line(head, bytes, size, &line);
    if (state != HEAD_COMPLETE) return state;
    if (!head->begun) {
      if (!status_line(head, line)) return HEAD_STRANGE;
      head->begun = true;
    } else if (line.size) {
      if (!split(line, &name, &value) || !read_framing(head, bytes, name, value)) return HEAD_STRANGE;
    } else {
      head->bytes = head->line;
      head->opaque = head->opaque || head->chunked;
      return HEAD_COMPLETE;
    }
  }
}
