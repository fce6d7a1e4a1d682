/* Requests with a plan: from the message to a slot and the engine, and from the engine's answer to the response. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

/* The fields of ModelInferRequest and ModelInferResponse, all length-delimited, as they stand on the wire. */
enum { TAG_ID = 0x1A, TAG_RAW_INPUT = 0x3A, TAG_RAW_OUTPUT = 0x32 };
enum { INVALID_ARGUMENT = 3 };
enum { PREFIX = 5 /* bytes of gRPC in front of each message */ };

typedef struct {
  const uint8_t *bytes;
  size_t size;
} part;

typedef struct {
  plan_key key;
  part id; /* with its tag and length */
  const uint8_t *raw, *end;
} head;

/* The length at *at, which is moved behind it; false when it is cut off, reaches too far or is longer than it has to be. */
static bool read_size(const uint8_t **at, const uint8_t *end, size_t *value) {
  *value = 0;
  for (int shift = 0; shift < 32 && *at < end; shift += 7) {
    const uint8_t byte = *(*at)++;
    *value |= (size_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return (byte || !shift) && *value <= (size_t)(end - *at);
  }
  return false;
}

/* Cuts a message into its head and its tensors. False for one that only Python can read. */
static bool split(const uint8_t *begin, size_t bytes, head *found) {
  const uint8_t *const end = begin + bytes, *at = begin;
  *found = (head){.end = end};
  const uint8_t *behind = begin;
  while (at < end && *at != TAG_RAW_INPUT) {
    const uint8_t *const field = at, tag = *at++;
    size_t size;
    if ((tag & 7) != 2 || tag >= 0x40 || !read_size(&at, end, &size)) return false;
    if (tag == TAG_ID) {
      if (found->id.bytes) return false;
      for (size_t i = 0; i < size; i++)
        if (at[i] >= 0x80) return false; /* it may be no UTF-8 */
      found->id = (part){field, size ? (size_t)(at + size - field) : 0}; /* an empty one is left out of a response */
      found->key.part[0] = begin;
      found->key.size[0] = (size_t)(field - begin);
      behind = at + size;
    }
    at += size;
  }
  found->key.part[1] = behind;
  found->key.size[1] = (size_t)(at - behind);
  found->raw = at;
  return true;
}

/* Whether nothing but tensors follows the head: any other field there would have a say in what the request means. */
static bool ends_with_tensors(const head *from) {
  for (const uint8_t *at = from->raw; at < from->end;) {
    size_t size;
    if (*at++ != TAG_RAW_INPUT || !read_size(&at, from->end, &size)) return false;
    at += size;
  }
  return true;
}

bool message_key(const uint8_t *message, size_t size, const uint8_t *tenant, size_t tenant_bytes, plan_key *key) {
  head found;
  if (!split(message, size, &found) || !ends_with_tensors(&found)) return false;
  *key = found.key;
  key->part[2] = tenant;
  key->size[2] = tenant_bytes;
  return true;
}

/* Copies the tensors into the slot. False when they do not fit the plan. */
static bool fill(const plan *plan, const head *from, uint8_t *slot) {
  const uint8_t *at = from->raw;
  for (uint32_t i = 0; i < plan->inputs; i++) {
    size_t size = 0;
    if (plan->input[i].file < 0 && (at == from->end || *at++ != TAG_RAW_INPUT || !read_size(&at, from->end, &size))) return false;
    if (!plan_put(&plan->input[i], slot, at, size)) return false;
    at += size;
  }
  return at == from->end;
}

static uint8_t *slot_of(const engine_link *link, int32_t tenant, int32_t slot) {
  return link->pool + link->region_offset[tenant] + (uint64_t)slot * link->slot_bytes[tenant];
}

static void keep(io_thread *thread, const ended_query *ended) {
  pthread_mutex_lock(&thread->lock);
  enum { ROOM = 1 << 16 };
  if (!thread->ended) thread->ended = malloc(ROOM * sizeof *thread->ended);
  if (thread->ended && thread->ended_count < ROOM) {
    thread->ended[thread->ended_count++] = *ended;
    thread->unsent++;
  }
  const bool half_full = thread->ended_count == ROOM / 2;
  pthread_mutex_unlock(&thread->lock);
  if (half_full) post_notice(thread->wire, NOTICE_COUNTS);
}

static void count(io_thread *thread, const plan *plan, int64_t arrival_ns, int outcome) {
  const int64_t now = now_ns();
  keep(thread, &(ended_query){.end_ns = now, .duration_ns = now - arrival_ns, .batch = plan->batch, .outcome = outcome,
                              .tenant = plan->tenant, .socket = -1});
}

/* As stages.stage_times. The answer is counted before the client can have it, and ends later, in queries_sent. */
static void count_answer(io_thread *thread, int socket, const query *q, const lane_end *end) {
  const int64_t now = now_ns();
  keep(thread, &(ended_query){
                   .end_ns = now,
                   .duration_ns = now - q->arrival_ns,
                   .stage_ns[STAGE_READ] = q->submitted_ns - q->arrival_ns,
                   .stage_ns[STAGE_HANDOFF] = end->taken_ns - q->submitted_ns,
                   .stage_ns[STAGE_WAIT] = end->begin_ns - end->taken_ns,
                   .stage_ns[STAGE_EXECUTE] = end->execute_ns,
                   .stage_ns[STAGE_GAP] = end->end_ns - end->begin_ns - end->execute_ns,
                   .stage_ns[STAGE_REPORT] = end->ended_ns - end->end_ns,
                   .stage_ns[STAGE_ANSWER] = now - end->ended_ns,
                   .batch = q->plan->batch,
                   .outcome = COUNTED_OK,
                   .tenant = q->plan->tenant,
                   .socket = socket,
               });
}

void queries_sent(connection *at) {
  io_thread *thread = at->thread;
  const int64_t now = now_ns();
  pthread_mutex_lock(&thread->lock);
  const uint32_t unsent = thread->unsent < thread->ended_count ? thread->unsent : thread->ended_count; /* less what Python took */
  for (ended_query *to = thread->ended + thread->ended_count - unsent; to < thread->ended + thread->ended_count; to++) {
    if (to->socket != at->fd) continue;
    to->stage_ns[STAGE_ANSWER] += now - to->end_ns;
    to->duration_ns += now - to->end_ns;
    to->end_ns = now;
    to->socket = -1;
  }
  pthread_mutex_unlock(&thread->lock);
}

static void refuse(call *call, const plan *plan, const refusal *why, int outcome) {
  count(call->connection->thread, plan, call->arrival_ns, outcome);
  grpc_finish(call, why->code, why->text, strlen(why->text));
}

static void unlink_query(io_thread *thread, query *q) {
  if (q->next) q->next->previous = q->previous;
  if (q->previous) q->previous->next = q->next;
  else thread->queries = q->next;
}

static void notify(const engine_link *link) {
  const uint64_t one = 1;
  if (write(link->bell, &one, sizeof one) < 0) return; /* it is full: the engine is awake */
}

static bool submit(call *call, plan *plan, const head *from, int32_t slot, int64_t deadline_ns) {
  io_thread *thread = call->connection->thread;
  engine_link *link = thread->link;
  query *q = malloc(sizeof *q + from->id.size);
  if (!q) return false;
  *q = (query){.call = call, .plan = plan, .slot = slot, .arrival_ns = call->arrival_ns, .deadline_ns = deadline_ns};
  q->id = atomic_fetch_add(&thread->wire->next_query, 1);
  q->id_bytes = (uint32_t)from->id.size;
  if (q->id_bytes) memcpy(q->request_id, from->id.bytes, q->id_bytes);
  q->submitted_ns = now_ns();
  const lane_query record = {.query = q->id, .kind = LANE_INFER, .tenant = plan->tenant, .slot = slot,
                             .batch = plan->batch, .arrival_ns = q->arrival_ns, .deadline_ns = deadline_ns};
  if (!lane_push(&link->lanes[thread->index], &record)) {
    free(q);
    return false;
  }
  q->next = thread->queries;
  if (q->next) q->next->previous = q;
  thread->queries = q;
  link->held[plan->tenant * link->slots + slot] = q;
  if (deadline_ns && deadline_ns < thread->next_deadline_ns) thread->next_deadline_ns = deadline_ns;
  call->query = q;
  call->state = QUERY;
  notify(link);
  return true;
}

bool query_begin(call *call, const uint8_t *message, size_t size) {
  io_thread *thread = call->connection->thread;
  wire *owner = thread->wire;
  engine_link *link = thread->link;
  head from;
  if (!link || !atomic_load(&owner->open) || !split(message, size, &from)) return false;
  from.key.part[2] = call->tenant;
  from.key.size[2] = call->tenant_bytes;
  plan *plan = plans_find(owner->plans, &from.key);
  if (!plan) return false;
  int64_t deadline_ns = plan->timeout_ns ? call->arrival_ns + plan->timeout_ns : 0;
  if (call->deadline_ns && (!deadline_ns || call->deadline_ns < deadline_ns)) deadline_ns = call->deadline_ns;
  bool handled = true;
  if (deadline_ns && deadline_ns <= now_ns()) {
    refuse(call, plan, &owner->read_late, COUNTED_DEADLINE);
  } else {
    const int32_t slot = slots_take(link->free, plan->tenant);
    if (slot < 0) {
      refuse(call, plan, &owner->full, COUNTED_OVERLOADED);
    } else if (fill(plan, &from, slot_of(link, plan->tenant, slot)) && submit(call, plan, &from, slot, deadline_ns)) {
      return true; /* the query has the reference */
    } else {
      slots_give_back(link->free, plan->tenant, slot);
      handled = false;
    }
  }
  plan_release(plan);
  return handled;
}

static uint8_t *write_size(uint8_t *at, uint64_t value) {
  for (; value >= 0x80; value >>= 7) *at++ = (uint8_t)(value | 0x80);
  *at++ = (uint8_t)value;
  return at;
}

static uint8_t *append(uint8_t *at, const void *bytes, size_t size) {
  if (size) memcpy(at, bytes, size);
  return at + size;
}

/* Writes outputs where the client wants them in its own memory. Returns the one whose memory is too short by now. */
static const plan_output *store(const plan *plan, const uint8_t *slot) {
  for (uint32_t i = 0; i < plan->outputs; i++) {
    const plan_output *output = &plan->output[i];
    if (output->file < 0) continue;
    struct stat found;
    if (fstat(output->file, &found) || (uint64_t)found.st_size < (uint64_t)output->file_offset + output->bytes) return output;
    for (uint64_t written = 0; written < output->bytes;) {
      const ssize_t put = pwrite(output->file, slot + output->offset + written, output->bytes - written,
                                 output->file_offset + (int64_t)written);
      if (put <= 0) return output;
      written += (uint64_t)put;
    }
  }
  return NULL;
}

/* Puts the response together behind its prefix, in the thread's scratch memory. Returns the size of both, 0 without
 * memory. */
static size_t respond(io_thread *thread, const query *q, const uint8_t *slot) {
  const plan *plan = q->plan;
  size_t most = PREFIX + plan->begin_bytes + q->id_bytes + plan->rest_bytes;
  for (uint32_t i = 0; i < plan->outputs; i++) most += 11 + (plan->output[i].file < 0 ? plan->output[i].bytes : 0);
  if (most > thread->scratch_bytes) {
    uint8_t *larger = realloc(thread->scratch, most);
    if (!larger) return 0;
    thread->scratch = larger, thread->scratch_bytes = most;
  }
  uint8_t *at = append(thread->scratch + PREFIX, plan->begin, plan->begin_bytes);
  at = append(at, q->request_id, q->id_bytes);
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

static const char CANCELLED_TEXT[] = "cancelled"; /* as EngineConnection says it */
static const int COUNTED[OUTCOMES] = {COUNTED_OK, COUNTED_OVERLOADED, COUNTED_DEADLINE, COUNTED_FAILED, COUNTED_FAILED};

static void answer(io_thread *thread, call *call, const query *q, const lane_end *end) {
  const uint8_t *slot = slot_of(thread->link, q->plan->tenant, q->slot);
  int outcome = end->outcome;
  const char *reason = end->reason;
  size_t reason_bytes = end->reason_bytes <= LANE_REASON ? end->reason_bytes : LANE_REASON, size = 0;
  if (outcome == DONE) {
    const plan_output *lost = store(q->plan, slot);
    if (lost) {
      refuse(call, q->plan, &(refusal){INVALID_ARGUMENT, lost->error}, COUNTED_INVALID);
      return;
    }
    size = respond(thread, q, slot);
    if (!size) outcome = FAILED, reason = "out of memory", reason_bytes = strlen(reason);
  }
  if (outcome == CANCELLED) reason = CANCELLED_TEXT, reason_bytes = sizeof CANCELLED_TEXT - 1;
  if (outcome == DONE) count_answer(thread, call->connection->fd, q, end);
  else count(thread, q->plan, q->arrival_ns, COUNTED[outcome]);
  if (outcome == DONE) grpc_answer(call, thread->scratch, size);
  else grpc_finish(call, thread->wire->outcome_code[outcome], reason, reason_bytes);
}

static void forget(query *q) {
  plan_release(q->plan);
  free(q);
}

static void leave_call(query *q) {
  if (q->call) {
    q->call->query = NULL;
    q->call = NULL;
  }
}

void queries_end(io_thread *thread) {
  engine_link *link = thread->link;
  lane_end end;
  while (link && lane_pop(&link->lanes[thread->index], &end)) {
    if (end.tenant < 0 || end.tenant >= link->tenants || end.slot < 0 || end.slot >= link->slots) continue;
    query **place = &link->held[end.tenant * link->slots + end.slot], *q = *place;
    if (!q || q->id != end.query || end.outcome < 0 || end.outcome >= OUTCOMES) continue;
    *place = NULL;
    unlink_query(thread, q);
    call *waiting = q->call;
    leave_call(q); /* the answer may end the call */
    if (waiting) answer(thread, waiting, q, &end);
    slots_give_back(link->free, end.tenant, end.slot);
    forget(q);
  }
}

static void abandon(query *q) {
  io_thread *thread = q->call->connection->thread;
  leave_call(q);
  if (q->aborted) return;
  q->aborted = true;
  const lane_query record = {.query = q->id, .kind = LANE_ABORT};
  if (lane_push(&thread->link->lanes[thread->index], &record)) notify(thread->link);
}

void query_abandon(query *q) {
  count(q->call->connection->thread, q->plan, q->arrival_ns, COUNTED_CANCELLED);
  abandon(q);
}

void queries_expire(io_thread *thread, int64_t now) {
  if (now < thread->next_deadline_ns) return;
  const refusal *why = &thread->wire->expired;
  int64_t earliest = INT64_MAX;
  for (query *next, *q = thread->queries; q; q = next) {
    next = q->next;
    if (!q->call || !q->deadline_ns) continue;
    if (q->deadline_ns > now) {
      if (q->deadline_ns < earliest) earliest = q->deadline_ns;
      continue;
    }
    call *late = q->call;
    abandon(q);
    refuse(late, q->plan, why, COUNTED_DEADLINE);
  }
  thread->next_deadline_ns = earliest;
}

void queries_fail(io_thread *thread, const char *text) {
  for (query *next, *q = thread->queries; q; q = next) {
    next = q->next;
    call *waiting = q->call;
    leave_call(q);
    if (waiting) refuse(waiting, q->plan, &(refusal){thread->wire->outcome_code[WORKER_DIED], text}, COUNTED_FAILED);
    forget(q); /* its slot goes with the link */
  }
  thread->queries = NULL;
  thread->next_deadline_ns = INT64_MAX;
}

void link_release(engine_link *link) {
  if (!link || atomic_fetch_sub(&link->references, 1) != 1) return;
  slots_free(link->free);
  free(link->held);
  free(link);
}
