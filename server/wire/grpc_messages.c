/* Messages of gRPC: the parts of a ModelInferRequest, and a ModelInferResponse from a plan. */
#include <stdlib.h>
#include <string.h>

#include "buffer.h"
#include "wire.h"

/* The fields of ModelInferRequest and ModelInferResponse, all length-delimited, as they stand on the wire. */
enum { TAG_ID = 0x1A, TAG_RAW_INPUT = 0x3A, TAG_RAW_OUTPUT = 0x32 };
enum { PREFIX = 5 /* bytes of gRPC in front of each message */ };

/* The length at *at, which is moved behind it; false when it is cut off, reaches too far or is longer than it has to
 * be. */
static bool read_size(const uint8_t **at, const uint8_t *end, size_t *value) {
  *value = 0;
  for (int shift = 0; shift < 32 && *at < end; shift += 7) {
    const uint8_t byte = *(*at)++;
    *value |= (size_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return (byte || !shift) && *value <= (size_t)(end - *at);
  }
  return false;
}

bool grpc_request(const uint8_t *message, size_t size, request *found) {
  const uint8_t *const end = message + size, *at = message;
  *found = (request){.end = end};
  const uint8_t *behind = message;
  while (at < end && *at != TAG_RAW_INPUT) {
    const uint8_t *const field = at, tag = *at++;
    size_t length;
    if ((tag & 7) != 2 || tag >= 0x40 || !read_size(&at, end, &length)) return false;
    if (tag == TAG_ID) {
      if (found->id) return false;
      for (size_t i = 0; i < length; i++)
        if (at[i] >= 0x80) return false; /* it may be no UTF-8 */
      found->id = field; /* with its tag and length; an empty one is left out of a response */
      found->id_bytes = length ? (size_t)(at + length - field) : 0;
      found->key.part[BEFORE_ID] = message;
      found->key.size[BEFORE_ID] = (size_t)(field - message);
      behind = at + length;
    }
    at += length;
  }
  found->key.part[BEHIND_ID] = behind;
  found->key.size[BEHIND_ID] = (size_t)(at - behind);
  found->tensors = at;
  return true;
}

const uint8_t *grpc_id(const uint8_t *field, size_t field_bytes, size_t *size) {
  *size = 0;
  if (!field_bytes) return field;
  const uint8_t *at = field + 1, *const end = field + field_bytes;
  return read_size(&at, end, size) ? at : end;
}

bool grpc_plain(const request *from) {
  for (const uint8_t *at = from->tensors; at < from->end;) {
    size_t size;
    if (*at++ != TAG_RAW_INPUT || !read_size(&at, from->end, &size)) return false;
    at += size;
  }
  return true;
}

bool grpc_fill(const plan *plan, const request *from, uint8_t *slot) {
  const uint8_t *at = from->tensors;
  for (uint32_t i = 0; i < plan->inputs; i++) {
    size_t size = 0;
    const bool raw = plan->input[i].file < 0;
    if (raw && (at == from->end || *at++ != TAG_RAW_INPUT || !read_size(&at, from->end, &size))) return false;
    if (!plan_put(&plan->input[i], slot, at, size)) return false;
    at += size;
  }
  return at == from->end;
}

static uint8_t *write_size(uint8_t *at, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
  *at++ = (uint8_t)value;
  return at;
}

size_t grpc_response(io_thread *thread, const query *of, const uint8_t *slot) {
  const plan *plan = of->plan;
  size_t most = PREFIX + plan->begin_bytes + of->id_bytes + plan->rest_bytes;
  for (uint32_t i = 0; i < plan->outputs; i++) most += 11 + (plan->output[i].file < 0 ? plan->output[i].bytes : 0);
  if (most > thread->scratch_bytes) {
    uint8_t *larger = realloc(thread->scratch, most);
    if (!larger) return 0;
    thread->scratch = larger, thread->scratch_bytes = most;
  }
  uint8_t *at = append(thread->scratch + PREFIX, plan->begin, plan->begin_bytes);
  at = append(at, of->request_id, of->id_bytes);
  at = append(at, plan->rest, plan->rest_bytes);
  for (uint32_t i = 0; i < plan->outputs; i++) {
    const plan_output *output = &plan->output[i];
    const uint64_t size = output->file < 0 ? output->bytes : 0; /* clients expect one entry for each output */
    *at++ = TAG_RAW_OUTPUT;
    at = write_size(at, size);
    at = append(at, slot + output->offset, size);
  }
  const size_t size = (size_t)(at - thread->scratch);
  thread->scratch[0] = 0; /* not compressed */
  for (int i = 0; i < 4; i++) thread->scratch[1 + i] = (uint8_t)((size - PREFIX) >> (24 - 8 * i));
  return size;
}
