/* Bodies of inference over HTTP/1.1: the JSON of a request as a key, and the response of a plan. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "http1.h"

enum { MOST_LINES = 512 /* bytes of a response's head */, MOST_TEXT = 2048 /* of an error */ };

/* {"id":"…", at the beginning, as clients write it: the id is no part of the key. What follows begins with a quote, so
 * that no other JSON has the same key. */
static void strip_id(const uint8_t **json, const uint8_t *end, request *found) {
  const uint8_t *at = *json;
  if (!skip(&at, end, "{\"id\":")) return;
  skip(&at, end, " ");
  if (!skip(&at, end, "\"")) return;
  const uint8_t *const id = at;
  while (at < end && *at >= ' ' && *at < 0x7F && *at != '"' && *at != '\\') at++;
  const size_t size = (size_t)(at - id);
  if (!skip(&at, end, "\",")) return;
  const uint8_t *next = at;
  skip(&next, end, " ");
  if (!skip(&next, end, "\"")) return;
  found->id = id;
  found->id_bytes = size;
  *json = at;
}

bool http1_read_json(const uint8_t *json, size_t size, request *found) {
  if (!size || *json != '{') return false;
  const uint8_t *at = json, *const end = json + size;
  strip_id(&at, end, found);
  found->key.part[BEHIND_ID] = at;
  found->key.size[BEHIND_ID] = (size_t)(end - at);
  return true;
}

bool http1_request(const http1 *on, request *found) {
  const http1_head *head = &on->head;
  const uint8_t *const bytes = buffer_bytes(&on->in), *const body = bytes + head->bytes;
  *found = (request){
      .key = {.part = {[BEFORE_ID] = bytes + head->path.begin, [TENANT] = bytes + head->tenant.begin},
              .size = {[BEFORE_ID] = head->path.size, [TENANT] = head->tenant.size}},
      .tensors = body + head->json,
      .end = body + head->body,
  };
  const uint8_t *const authorization = head->has_authorization ? bytes + head->authorization.begin : NULL;
  query_name_caller(on->asker.connection, &found->key, authorization, head->authorization.size);
  return http1_read_json(body, (size_t)head->json, found);
}

bool http1_fill(const plan *plan, const request *from, uint8_t *slot) {
  const uint8_t *at = from->tensors;
  for (uint32_t i = 0; i < plan->inputs; i++) {
    const uint64_t size = plan->input[i].sent_bytes;
    if (size > (size_t)(from->end - at) || !plan_put(&plan->input[i], slot, at, (size_t)size)) return false;
    at += size;
  }
  return at == from->end;
}

/* Responses */

static const char *date(io_thread *thread) {
  static const char days[][4] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  static const char months[][4] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                   "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  const time_t now = time(NULL);
  struct tm t;
  if (now != thread->date_s && gmtime_r(&now, &t)) {
    thread->date_s = now;
    snprintf(thread->date, sizeof thread->date, "%s, %02d %s %04d %02d:%02d:%02d GMT", days[t.tm_wday % 7],
             t.tm_mday % 100, months[t.tm_mon % 12], (t.tm_year + 1900) % 10000, t.tm_hour % 100, t.tm_min % 100,
             t.tm_sec % 100);
  }
  return thread->date;
}

/* The head of a response as uvicorn writes it. Returns its size; `target` has MOST_LINES bytes. `json`: the bytes of the
 * body that are JSON, where tensors follow; `of`: the query that is answered. Either may be NULL. */
static size_t write_head(const http1 *on, uint8_t *target, int code, const char *phrase, uint64_t body,
                         const uint64_t *json, const query *of) {
  io_thread *thread = on->asker.connection->thread;
  char lines[192] = "";
  int used = 0;
  if (of) {
    char timing[MOST_TIMING];
    query_timing(timing, of);
    used = snprintf(lines, sizeof lines, "server-timing: %s\r\n", timing);
  }
  if (json) snprintf(lines + used, sizeof lines - (size_t)used, "inference-header-content-length: %llu\r\n",
                     (unsigned long long)*json);
  else if (code == 503) snprintf(lines, sizeof lines, "retry-after: 1\r\n");
  const int size = snprintf((char *)target, MOST_LINES,
                            "HTTP/1.1 %d %s\r\ndate: %s\r\n%s"
                            "content-length: %llu\r\ncontent-type: application/%s\r\n%s\r\n",
                            code, phrase, date(thread), lines, (unsigned long long)body, json ? "octet-stream" : "json",
                            on->head.closes || thread->left ? "connection: close\r\n" : "");
  return (size_t)size;
}

bool http1_respond(asker *to, const query *of, const uint8_t *slot) {
  static const char begin_id[] = "\"id\":\"", end_id[] = "\",";
  http1 *on = (http1 *)to;
  const plan *plan = of->plan;
  const size_t around = of->id_bytes ? sizeof begin_id + sizeof end_id - 2 : 0;
  const uint64_t json = plan->begin_bytes + around + of->id_bytes + plan->rest_bytes;
  uint64_t body = json;
  bool tensors = false;
  for (uint32_t i = 0; i < plan->outputs; i++) {
    if (plan->output[i].file >= 0) continue;
    tensors = true;
    body += plan->output[i].bytes;
  }
  uint8_t *const target = buffer_reserve(&on->out, MOST_LINES + body);
  if (!target) return false;
  uint8_t *at = target + write_head(on, target, 200, "OK", body, tensors ? &json : NULL, of);
  at = append(at, plan->begin, plan->begin_bytes);
  if (of->id_bytes) {
    at = append(at, begin_id, sizeof begin_id - 1);
    at = append(at, of->request_id, of->id_bytes);
    at = append(at, end_id, sizeof end_id - 1);
  }
  at = append(at, plan->rest, plan->rest_bytes);
  for (uint32_t i = 0; i < plan->outputs; i++)
    if (plan->output[i].file < 0) at = append(at, slot + plan->output[i].offset, plan->output[i].bytes);
  buffer_add(&on->out, (size_t)(at - target));
  http1_answered(on);
  return true;
}

/* Escapes a text for JSON as msgspec does. Returns the size; `target` has six times the room. */
static size_t escape(char *target, const char *text, size_t size) {
  static const char letters[] = "btn\0fr", digits[] = "0123456789abcdef"; /* of 8 to 13 */
  char *at = target;
  for (size_t i = 0; i < size; i++) {
    const uint8_t byte = (uint8_t)text[i];
    if (byte >= ' ' && byte != '"' && byte != '\\') {
      *at++ = (char)byte;
      continue;
    }
    *at++ = '\\';
    if (byte >= ' ') *at++ = (char)byte;
    else if (byte >= 8 && byte < 14 && byte != 11) *at++ = letters[byte - 8];
    else at += sprintf(at, "u00%c%c", digits[byte >> 4], digits[byte & 15]);
  }
  return (size_t)(at - target);
}

static const char *phrase_of(int code) {
  switch (code) {
    case 400: return "Bad Request";
    case 408: return "Request Timeout";
    case 431: return "Request Header Fields Too Large";
    case 503: return "Service Unavailable";
    case 504: return "Gateway Timeout";
    default: return "Internal Server Error";
  }
}

void http1_refuse(asker *to, status status, const char *text, size_t size) {
  static const char before[] = "{\"error\":\"", behind[] = "\"}";
  http1 *on = (http1 *)to;
  char escaped[6 * MOST_TEXT];
  const size_t used = escape(escaped, text, size < MOST_TEXT ? size : MOST_TEXT);
  const size_t body = sizeof before + sizeof behind - 2 + used;
  uint8_t *const target = buffer_reserve(&on->out, MOST_LINES + body);
  if (target) {
    uint8_t *at = target + write_head(on, target, status.http, phrase_of(status.http), body, NULL, NULL);
    at = append(at, before, sizeof before - 1);
    at = append(at, escaped, used);
    at = append(at, behind, sizeof behind - 1);
    buffer_add(&on->out, (size_t)(at - target));
  } else {
    to->connection->broken = true;
  }
  http1_answered(on);
}
