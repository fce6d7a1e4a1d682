/* Requests with a plan: into a slot and to the engine, and from the engine's answer to the response. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "wire.h"

static const status INVALID = {.grpc = 3, .http = 400};

static uint8_t *slot_of(const engine_link *link, int32_t tenant, int32_t slot) {
  return link->region[tenant] + (uint64_t)slot * link->slot_bytes[tenant];
}

static gate *gate_of(const engine_link *link, const plan *plan) {
  return &link->gates[plan->tenant * PRIORITY_LEVELS + plan->priority_level - 1];
}

/* As its client gave it. */
static ended_id shown_id(const protocol *protocol, const uint8_t *id, size_t id_bytes) {
  if (protocol == &grpc_protocol) id = grpc_id(id, id_bytes, &id_bytes);
  ended_id shown = {.size = (uint8_t)(id_bytes < sizeof shown.text ? id_bytes : sizeof shown.text)};
  if (shown.size) memcpy(shown.text, id, shown.size);
  return shown;
}

/* `id`: the request's, for the access log, if there is one, and for its trace. */
static void keep(io_thread *thread, const protocol *protocol, const ended_query *ended, const uint8_t *id, size_t id_bytes,
                 const trace_context *trace) {
  pthread_mutex_lock(&thread->lock);
  enum { ROOM = 1 << 16 };
  if (!thread->ended) thread->ended = malloc(ROOM * sizeof *thread->ended);
  if (thread->ended && thread->ended_count < ROOM) {
    if (atomic_load_explicit(&thread->wire->keeps_ids, memory_order_relaxed)) {
      if (!thread->ended_ids) thread->ended_ids = calloc(ROOM, sizeof *thread->ended_ids);
      if (thread->ended_ids) thread->ended_ids[thread->ended_count] = shown_id(protocol, id, id_bytes);
    }
    thread->ended[thread->ended_count++] = *ended;
    thread->unsent++;
  }
  if (trace->sampled) {
    const ended_trace traced = {.ended = *ended, .id = shown_id(protocol, id, id_bytes), .trace = *trace,
                                .protocol = protocol == &grpc_protocol ? GRPC : HTTP};
    trace_keep(thread, &traced);
  }
  const bool half_full = thread->ended_count == ROOM / 2;
  pthread_mutex_unlock(&thread->lock);
  if (half_full) post_notice(thread->wire, NOTICE_COUNTS);
}

/* `reason`: of a refusal or a failure. */
static void count(const asker *asker, const plan *plan, const uint8_t *id, size_t id_bytes, int outcome, int reason) {
  const int64_t now = now_ns();
  const ended_query ended = {.end_ns = now, .duration_ns = now - asker->arrival_ns, .batch = plan->batch,
                             .outcome = outcome, .reason = reason, .tenant = plan->tenant, .socket = -1};
  keep(asker->connection->thread, asker->connection->protocol, &ended, id, id_bytes, &asker->trace);
}

/* As stages.stage_times. The answer is counted before the client can have it, and ends later, in queries_sent. */
static void count_answer(io_thread *thread, const protocol *protocol, int socket, const query *q, const lane_end *end) {
  const int64_t now = now_ns();
  const ended_query ended = {
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
  };
  keep(thread, protocol, &ended, q->request_id, q->id_bytes, &q->trace);
}

uint32_t query_timing(char *target, const query *of) {
  const int64_t queue_us = of->queue_ns > 0 ? of->queue_ns / 1000 : 0;
  const int64_t compute_us = of->compute_ns > 0 ? of->compute_ns / 1000 : 0;
  return (uint32_t)snprintf(target, MOST_TIMING, "queue;dur=%lld.%03d, compute;dur=%lld.%03d", (long long)(queue_us / 1000),
                            (int)(queue_us % 1000), (long long)(compute_us / 1000), (int)(compute_us % 1000));
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

static void fail(asker *asker, const query *q, int outcome, int reason, status status, const char *text) {
  count(asker, q->plan, q->request_id, q->id_bytes, outcome, reason);
  asker->connection->protocol->refuse(asker, status, text, strlen(text));
}

/* `number`: of why; `id`: the request's, as far as it is known. */
static void refuse(asker *asker, const plan *plan, const uint8_t *id, size_t id_bytes, int number) {
  const wire *owner = asker->connection->thread->wire;
  const refusal *why = &owner->refusals[number < owner->refusal_count ? number : NO_REFUSAL];
  const bool late = number == LATE_ON_ARRIVAL || number == DEADLINE;
  if (number == OVERLOAD) asker->connection->thread->refused++;
  count(asker, plan, id, id_bytes, late ? COUNTED_DEADLINE : COUNTED_OVERLOADED, number);
  asker->connection->protocol->refuse(asker, why->status, why->text, strlen(why->text));
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

/* What waits is short, and so is what it waits for; else the engine takes both. */
enum { LOOK_NS = 20000000 };

/* Has a worker run it without the engine where that allows it. */
static enum claimed order(io_thread *thread, const query *q) {
  const engine_link *link = thread->link;
  const lane *to = &link->lanes[thread->index];
  if (q->trace.sampled || lane_unread(to) > to->records / 2) return ENGINE_DECIDES;
  const caller of = {.query = q->id, .taken_ns = q->submitted_ns, .lane = (uint32_t)thread->index,
                     .place = (uint32_t)(q->plan->tenant * link->slots + q->slot)};
  const standing_claim wanted = {.caller = of, .slot = (uint32_t)q->slot, .arrival_ns = q->arrival_ns,
                                 .deadline_ns = q->deadline_ns, .priority_level = q->plan->priority_level};
  const enum claimed claimed = standing_orders_claim(link->standing, link->done.lanes, wanted.caller.lane, &wanted,
                                                     q->plan->tenant, q->plan->batch);
  if (claimed == CLAIM_WAITS && thread->next_look_ns == INT64_MAX) thread->next_look_ns = now_ns() + LOOK_NS;
  return claimed;
}

/* The engine reads it when it wakes for something else; it has other things to do than to hear of each by itself. */
static void report_ran(io_thread *thread, const query *q, const lane_end *end) {
  lane *to = &thread->link->lanes[thread->index];
  const lane_query record = {.query = q->id, .kind = LANE_RAN, .tenant = q->plan->tenant, .slot = q->slot,
                             .batch = q->plan->batch, .arrival_ns = q->arrival_ns, .left = !q->asker,
                             .refused = end->outcome == REJECTED,
                             .begin_ns = end->begin_ns, .end_ns = end->end_ns, .ended_ns = end->ended_ns};
  lane_push(to, &record); /* there was room for half of all records when it began, and others are as many as slots at most */
  if (lane_unread(to) > to->records / 4) notify(thread->link);
}

/* As the engine gets it. */
static lane_query record_of(const query *q, int32_t kind) {
  return (lane_query){.query = q->id, .kind = kind, .tenant = q->plan->tenant, .slot = q->slot, .batch = q->plan->batch,
                      .arrival_ns = q->arrival_ns, .deadline_ns = q->deadline_ns,
                      .priority_level = q->plan->priority_level, .traced = q->trace.sampled};
}

enum submitted { NOT_SUBMITTED, SUBMITTED, NO_ROOM };

static enum submitted submit(asker *from, plan *plan, const request *request, int32_t slot, int64_t deadline_ns) {
  io_thread *thread = from->connection->thread;
  engine_link *link = thread->link;
  query *q = malloc(sizeof *q + request->id_bytes);
  if (!q) return NOT_SUBMITTED;
  *q = (query){.asker = from, .plan = plan, .slot = slot, .arrival_ns = from->arrival_ns, .deadline_ns = deadline_ns};
  q->id = from->trace.query = atomic_fetch_add(&thread->wire->next_query, 1);
  q->trace = from->trace;
  q->id_bytes = (uint32_t)request->id_bytes;
  if (q->id_bytes) memcpy(q->request_id, request->id, q->id_bytes);
  q->submitted_ns = now_ns();
  const lane_query record = record_of(q, LANE_INFER);
  const enum claimed claimed = order(thread, q);
  const bool ordered = claimed != ENGINE_DECIDES;
  if (claimed == CLAIM_REFUSED || (!ordered && !lane_push(&link->lanes[thread->index], &record))) {
    free(q);
    return ordered ? NO_ROOM : NOT_SUBMITTED;
  }
  q->next = thread->queries;
  if (q->next) q->next->previous = q;
  thread->queries = q;
  link->held[plan->tenant * link->slots + slot] = q;
  if (deadline_ns && deadline_ns < thread->next_deadline_ns) thread->next_deadline_ns = deadline_ns;
  from->query = q;
  if (!ordered) notify(link);
  return SUBMITTED;
}

void query_name_caller(const connection *on, plan_key *key, const uint8_t *authorization, size_t size) {
  if (!atomic_load(&on->thread->wire->names_callers)) return;
  key->part[CALLER] = authorization ? authorization : (const uint8_t *)on->certificate;
  key->size[CALLER] = authorization ? size : strlen(on->certificate);
}

/* The plan for a head, with a reference, where queries are taken. */
static plan *find(const asker *from, const plan_key *key) {
  const io_thread *thread = from->connection->thread;
  wire *owner = thread->wire;
  if (!thread->link || !atomic_load(&owner->open)) return NULL;
  if (atomic_load(&owner->names_callers) && !key->size[CALLER]) return NULL;
  return plans_find(owner->plans, key);
}

static int why_no_slot(int32_t slot) { return slot == RATE_SPENT ? RATE : slot < 0 ? SLOTS : NO_REFUSAL; }

enum foreseen query_foresee(asker *from, const plan_key *key, uint64_t more) {
  plan *plan = find(from, key);
  if (!plan) return UNPLANNED;
  const engine_link *link = from->connection->thread->link;
  const int64_t now = now_ns();
  const int32_t slot = slots_refusal(link->free, plan->tenant, now);
  if (slot == CLOSED) {
    plan_release(plan);
    return UNPLANNED;
  }
  gate *const gate = gate_of(link, plan);
  int why = gate_refuses(gate, plan->batch, now) ? OVERLOAD : NO_REFUSAL;
  if (!why) why = why_no_slot(slot);
  if (!why && more && !may_hold(from->connection, more)) why = MEMORY;
  if (why) {
    gate_count(gate, more); /* it comes all the same, and is dropped */
    refuse(from, plan, NULL, 0, why);
  }
  plan_release(plan);
  return why ? REFUSED : PLANNED;
}

bool query_begin(asker *from, const request *request) {
  plan *plan = find(from, &request->key);
  if (!plan) return false;
  engine_link *link = from->connection->thread->link;
  int64_t deadline_ns = plan->timeout_ns ? from->arrival_ns + plan->timeout_ns : 0;
  if (from->deadline_ns && (!deadline_ns || from->deadline_ns < deadline_ns)) deadline_ns = from->deadline_ns;
  bool handled = true;
  const int64_t now = now_ns();
  gate *const gate = gate_of(link, plan);
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < plan->inputs; i++) bytes += plan->input[i].sent_bytes;
  gate_count(gate, bytes);
  if (deadline_ns && deadline_ns <= now) {
    refuse(from, plan, request->id, request->id_bytes, LATE_ON_ARRIVAL);
  } else if (!gate_pass(gate, plan->batch, now)) {
    refuse(from, plan, request->id, request->id_bytes, OVERLOAD);
  } else {
    const int32_t slot = slots_take(link->free, plan->tenant, now);
    if (slot == CLOSED) {
      handled = false; /* Python knows by which number the tenant is served now */
    } else if (slot < 0) {
      refuse(from, plan, request->id, request->id_bytes, why_no_slot(slot));
    } else {
      enum submitted submitted = NOT_SUBMITTED;
      if (from->connection->protocol->fill(plan, request, slot_of(link, plan->tenant, slot)))
        submitted = submit(from, plan, request, slot, deadline_ns);
      if (submitted == SUBMITTED) {
        from->connection->thread->passed++;
        return true; /* the query has the reference */
      }
      if (submitted == NO_ROOM) {
        gate_fill(gate, plan->batch, now + standing_orders_pause(link->standing, link->done.lanes, plan->tenant, plan->batch));
        refuse(from, plan, request->id, request->id_bytes, OVERLOAD);
      }
      slots_give_back(link->free, plan->tenant, slot);
      handled = submitted == NO_ROOM;
    }
  }
  plan_release(plan);
  return handled;
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

static void answer(asker *asker, query *q, const lane_end *end) {
  io_thread *thread = asker->connection->thread;
  const protocol *protocol = asker->connection->protocol;
  const int socket = asker->connection->fd;
  const uint8_t *slot = slot_of(thread->link, q->plan->tenant, q->slot);
  int outcome = end->outcome;
  const char *reason = end->reason;
  size_t reason_bytes = end->reason_bytes <= LANE_REASON ? end->reason_bytes : LANE_REASON;
  int failure = outcome == WORKER_DIED ? WORKER_FAILURE : KERNEL_FAILURE;
  if (outcome == DONE) {
    const plan_output *lost = store(q->plan, slot);
    if (lost) {
      fail(asker, q, COUNTED_INVALID, NO_FAILURE, INVALID, lost->error);
      return;
    }
    q->queue_ns = end->begin_ns - q->arrival_ns;
    q->compute_ns = end->execute_ns;
    if (!protocol->respond(asker, q, slot)) {
      outcome = FAILED, failure = INTERNAL_FAILURE;
      reason = "out of memory", reason_bytes = strlen(reason);
    }
  }
  if (outcome == DONE) {
    count_answer(thread, protocol, socket, q, end);
  } else if (outcome == REJECTED || outcome == CANCELLED) {
    refuse(asker, q->plan, q->request_id, q->id_bytes, outcome == REJECTED ? end->refusal : DEADLINE);
  } else {
    count(asker, q->plan, q->request_id, q->id_bytes, COUNTED_FAILED, failure);
    post_failure(asker, q, reason, reason_bytes);
    protocol->refuse(asker, thread->wire->outcome_status[outcome], reason, reason_bytes);
  }
}

static void forget(query *q) {
  plan_release(q->plan);
  free(q);
}

static void leave_asker(query *q) {
  if (q->asker) {
    q->asker->query = NULL;
    q->asker = NULL;
  }
}

/* `unasked`: the engine has not been told of it. */
static void end_query(io_thread *thread, const lane_end *end, bool unasked) {
  engine_link *link = thread->link;
  query **place = &link->held[end->tenant * link->slots + end->slot], *q = *place;
  if (!q || q->id != end->query) return; /* it has ended: a worker may tell so, and die before the engine knows */
  *place = NULL;
  unlink_query(thread, q);
  asker *waiting = q->asker;
  if (unasked) report_ran(thread, q, end);
  leave_asker(q); /* it may ask again while it is answered */
  if (waiting) answer(waiting, q, end);
  slots_give_back(link->free, end->tenant, end->slot);
  forget(q);
}

/* What workers told. */
static void end_done(io_thread *thread) {
  const engine_link *link = thread->link;
  uint32_t next = done_queries_take(&link->done, (uint32_t)thread->index);
  /* Workers run what tenants sent, and write these lists. */
  for (uint32_t left = link->done.places; next && next <= link->done.places && left; left--) {
    const int32_t place = (int32_t)next - 1;
    const done_query done = *done_queries_at(&link->done, next - 1); /* its slot may get another query */
    next = done.next;
    const lane_end end = {.query = done.query, .tenant = place / link->slots, .slot = place % link->slots,
                          .outcome = done.refused ? REJECTED : DONE, .refusal = OVERLOAD,
                          .execute_ns = done.execute_ns, .taken_ns = done.taken_ns, .begin_ns = done.begin_ns,
                          .end_ns = done.end_ns, .ended_ns = done.ended_ns};
    end_query(thread, &end, done.unasked);
  }
}

/* The engine cannot believe the claims that it shares with workers: it gets all queries from who waits for them. */
static void tell_held(io_thread *thread, uint64_t recalls) {
  lane *to = &thread->link->lanes[thread->index];
  for (const query *q = thread->queries; q; q = q->next) {
    const lane_query held = record_of(q, LANE_HELD), aborted = {.query = q->id, .kind = LANE_ABORT};
    lane_push(to, &held);
    if (q->aborted) lane_push(to, &aborted);
  }
  const lane_query all = {.kind = LANE_ALL};
  if (lane_push(to, &all)) to->recalled = recalls;
  notify(thread->link);
}

/* First what workers told before the engine told any of this: it gives no slot to another query while a list has it. */
void queries_end(io_thread *thread) {
  engine_link *link = thread->link;
  if (!link) return;
  lane *from = &link->lanes[thread->index];
  const uint64_t recalls = lane_recalls(from), ends = lane_ends(from); /* what had ended when it asked is not told of again */
  end_done(thread);
  lane_end end;
  while (lane_pop(from, ends, &end)) {
    const bool known = end.tenant >= 0 && end.tenant < link->tenants && end.slot >= 0 && end.slot < link->slots &&
                       end.outcome < OUTCOMES;
    if (known) end_query(thread, &end, false);
  }
  if (recalls != from->recalled) tell_held(thread, recalls);
}

static void abandon(query *q) {
  io_thread *thread = q->asker->connection->thread;
  leave_asker(q);
  if (q->aborted) return;
  q->aborted = true;
  const lane_query record = {.query = q->id, .kind = LANE_ABORT};
  if (lane_push(&thread->link->lanes[thread->index], &record)) notify(thread->link);
}

enum { HELD_UP_NS = 10000000 };

/* As admission.gives_up_at_deadline. */
static bool gives_up_at_deadline(const query *q) {
  int64_t whole = q->deadline_ns - q->arrival_ns, early = whole / 100;
  if (early < HELD_UP_NS) early = HELD_UP_NS;
  if (early > whole / 10) early = whole / 10;
  return q->deadline_ns && now_ns() >= q->deadline_ns - early;
}

void query_abandon(query *q) {
  const bool late = gives_up_at_deadline(q);
  count(q->asker, q->plan, q->request_id, q->id_bytes, late ? COUNTED_DEADLINE : COUNTED_CANCELLED, late ? DEADLINE : NO_REFUSAL);
  abandon(q);
}

void queries_expire(io_thread *thread, int64_t now) {
  if (now < thread->next_deadline_ns) return;
  int64_t earliest = INT64_MAX;
  for (query *next, *q = thread->queries; q; q = next) {
    next = q->next;
    if (!q->asker || !q->deadline_ns) continue;
    if (q->deadline_ns > now) {
      if (q->deadline_ns < earliest) earliest = q->deadline_ns;
      continue;
    }
    asker *late = q->asker;
    abandon(q);
    refuse(late, q->plan, q->request_id, q->id_bytes, DEADLINE);
  }
  thread->next_deadline_ns = earliest;
}

void queries_look(io_thread *thread, int64_t now) {
  thread->next_look_ns = thread->queries ? now + LOOK_NS : INT64_MAX;
  if (thread->queries) notify(thread->link);
}

void queries_fail(io_thread *thread, int reason, const char *text) {
  for (query *next, *q = thread->queries; q; q = next) {
    next = q->next;
    asker *waiting = q->asker;
    leave_asker(q);
    if (waiting) {
      post_failure(waiting, q, text, strlen(text));
      fail(waiting, q, COUNTED_FAILED, reason, thread->wire->outcome_status[WORKER_DIED], text);
    }
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
