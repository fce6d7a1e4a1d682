/* What Python calls (native.py), from its own threads. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "http1.h"
#include "python_calls.h"
#include "wire.h"

#define EXPORT __attribute__((visibility("default")))

typedef struct { /* native.Settings */
  int32_t threads, home;
  status outcome_status[OUTCOMES];
  uint64_t max_message_bytes, max_body_bytes;
  limits limits;
  const refusal *refusals;
  int32_t refusal_count;
  const char *infer_path, *tenant_header, *hosts;
  const uint8_t *head, *trailers;
  uint64_t head_bytes, trailers_bytes;
  const char *uvicorn_secret;
} settings;

typedef struct { /* native.Requester */
  const uint8_t *tenant;
  uint64_t tenant_bytes;
  const uint8_t *caller;
  uint64_t caller_bytes;
} requester;

/* Starts the threads, which do nothing yet. Everything that `given` points to stays valid until wire_stop. NULL where
 * the system gives no memory, descriptor or thread. */
EXPORT wire *wire_start(const settings *given) {
  wire *new = calloc(1, sizeof *new);
  if (!new || given->threads < 1 || given->threads > MOST_THREADS || given->trailers_bytes > MOST_TRAILERS) return NULL;
  new->listeners[GRPC] = (listener){&grpc_protocol, -1, NULL};
  new->listeners[HTTP] = new->listeners[ADMIN] = (listener){&http1_protocol, -1, NULL};
  new->home = given->home;
  new->max_message_bytes = given->max_message_bytes, new->max_body_bytes = given->max_body_bytes;
  new->refusals = given->refusals, new->refusal_count = given->refusal_count;
  new->budgets.most = given->limits;
  memcpy(new->outcome_status, given->outcome_status, sizeof new->outcome_status);
  new->infer_path = given->infer_path, new->tenant_header = given->tenant_header, new->hosts = given->hosts;
  new->head = given->head, new->head_bytes = given->head_bytes;
  new->trailers = given->trailers, new->trailers_bytes = given->trailers_bytes;
  new->uvicorn_secret = given->uvicorn_secret;
  atomic_init(&new->next_query, 1);
  new->last_event = &new->first_event;
  pthread_mutex_init(&new->lock, NULL);
  new->plans = plans_new();
  new->thread = calloc((size_t)given->threads, sizeof *new->thread);
  new->events = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (!new->plans || !new->thread || new->events < 0) return NULL;
  for (int i = 0; i < given->threads; i++) {
    if (!thread_start(new, i)) return NULL;
    new->threads++;
  }
  return new;
}

EXPORT int wire_events_fd(const wire *of) { return of->events; }

EXPORT int wire_wake_fd(const wire *of, int thread) { return of->thread[thread].wake; }

EXPORT uint64_t wire_next_query(wire *of) { return atomic_fetch_add(&of->next_query, 1); }

/* Accepts connections on `fd`, which is non-blocking and stays the caller's. */
EXPORT void wire_listen(wire *of, int protocol, int fd) {
  of->listeners[protocol].fd = fd;
  for (int i = 0; i < of->threads; i++) thread_listen(&of->thread[i], &of->listeners[protocol]);
}

/* New connections are encrypted from here on; `authorities` may be NULL. False: the files cannot be used, and all stays
 * as it was. */
EXPORT int wire_use_tls(wire *of, const char *certificate, const char *key, const char *authorities, const char *names) {
  tls_context *new[LISTENERS] = {
      [GRPC] = tls_context_new(certificate, key, authorities, "h2", names),
      [HTTP] = tls_context_new(certificate, key, authorities, "http/1.1", names),
  };
  new[ADMIN] = new[HTTP] ? tls_context_share(new[HTTP]) : NULL;
  const bool usable = new[GRPC] && new[HTTP];
  for (int i = 0; i < LISTENERS; i++) {
    pthread_mutex_lock(&of->lock);
    tls_context *const gone = usable ? of->listeners[i].tls : new[i];
    if (usable) of->listeners[i].tls = new[i];
    pthread_mutex_unlock(&of->lock);
    tls_context_release(gone);
  }
  return usable;
}

/* Where uvicorn listens: the name of a Unix socket, which may be an abstract one. Before wire_listen. */
EXPORT int wire_forward_to(wire *of, const char *name, uint64_t size) {
  of->uvicorn.sun_family = AF_UNIX;
  if (!size || size >= sizeof of->uvicorn.sun_path) return false;
  memcpy(of->uvicorn.sun_path, name, size);
  of->uvicorn_bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
  return true;
}

/* Whether queries are taken; while they are not, every request goes to Python, which says why. */
EXPORT void wire_open(wire *of, int open) { atomic_store(&of->open, open); }

/* The engine process, from its start on. `lanes`: one for each thread, one behind the other. `done`: of all slots.
 * `tenants`: their numbers are below this; `gates` has one for each of their levels, and none is
 * open. */
EXPORT engine_link *wire_link(wire *of, void *lanes, uint64_t records, uint8_t *done, uint8_t *standing,
                              gate *gates, int bell, int32_t tenants, int32_t slots) {
  engine_link *new = calloc(1, sizeof *new + (size_t)tenants * (sizeof *new->region + sizeof *new->slot_bytes));
  if (!new) return NULL;
  uint8_t **const regions = (uint8_t **)(void *)(new + 1);
  *new = (engine_link){.gates = gates, .standing = standing, .tenants = tenants, .slots = slots, .bell = bell,
                       .done = {done, (uint32_t)of->threads, (uint32_t)tenants * (uint32_t)slots},
                       .region = regions, .slot_bytes = (uint64_t *)(void *)(regions + tenants)};
  atomic_init(&new->references, 1);
  new->free = slots_new(tenants, slots);
  new->held = calloc((size_t)tenants * (size_t)slots, sizeof(query *));
  if (!new->free || !new->held) {
    free(new->held);
    if (new->free) slots_free(new->free);
    free(new);
    return NULL;
  }
  for (int i = 0; i < of->threads; i++) new->lanes[i] = lane_at((uint8_t *)lanes + (uint64_t)i * lane_bytes(records), records);
  return new;
}

/* Queries of this tenant may come; plans for it are added from here on. */
EXPORT void wire_open_tenant(engine_link *link, int32_t tenant, uint8_t *region, uint64_t slot_bytes,
                             const tenant_share *share) {
  link->region[tenant] = region, link->slot_bytes[tenant] = slot_bytes;
  slots_open(link->free, tenant, share);
}

/* No more of its queries begin. Those that have a slot end. */
EXPORT void wire_close_tenant(engine_link *link, int32_t tenant) { slots_close(link->free, tenant); }

EXPORT void wire_keep_slots(engine_link *link, const int32_t *kept) { slots_keep(link->free, kept); }

EXPORT int32_t wire_slots_held(engine_link *link, int32_t tenant) { return slots_held(link->free, tenant); }

EXPORT void wire_unlink(engine_link *link) { link_release(link); }

EXPORT uint64_t wire_lane_bytes(uint64_t records) { return lane_bytes(records); }

/* Has all threads use this engine, or none (NULL). Queries that wait for another fail with `text`, which stays valid.
 * No thread uses the last one's memory when it returns. */
EXPORT void wire_use(wire *of, engine_link *link, const char *text, int reason) {
  for (int i = 0; i < of->threads; i++) {
    io_thread *thread = &of->thread[i];
    if (link) atomic_fetch_add(&link->references, 1);
    pthread_mutex_lock(&thread->lock);
    thread->next_link = link;
    thread->link_text = text;
    thread->link_reason = reason;
    thread->link_changed = true;
    pthread_mutex_unlock(&thread->lock);
    thread_wake(thread);
  }
  for (int i = 0; i < of->threads; i++) {
    io_thread *thread = &of->thread[i];
    pthread_mutex_lock(&thread->lock);
    while (thread->link_changed) pthread_cond_wait(&thread->settled, &thread->lock);
    pthread_mutex_unlock(&thread->lock);
  }
}

EXPORT int32_t wire_take_slot(engine_link *link, int32_t tenant, int64_t now_ns) {
  return slots_take(link->free, tenant, now_ns);
}

EXPORT void wire_give_back_slot(engine_link *link, int32_t tenant, int32_t slot) { slots_give_back(link->free, tenant, slot); }

EXPORT int32_t wire_slots_taken(engine_link *link) { return slots_taken(link->free); }

static int add_plan(wire *of, plan_key *key, const requester *by, const plan *values) {
  key->part[TENANT] = by->tenant, key->size[TENANT] = by->tenant_bytes;
  key->part[CALLER] = by->caller, key->size[CALLER] = by->caller_bytes;
  plan *new = plan_new(key, values);
  if (!new) return false;
  plans_add(of->plans, new);
  return true;
}

/* Adds a plan for requests with the head of `message`. Returns whether such requests can have one. */
EXPORT int wire_add_grpc_plan(wire *of, const uint8_t *message, uint64_t size, const requester *by, const plan *values) {
  request found;
  return grpc_request(message, size, &found) && grpc_plain(&found) && add_plan(of, &found.key, by, values);
}

/* Likewise for requests to `path` that begin with this JSON. */
EXPORT int wire_add_http_plan(wire *of, const uint8_t *path, uint64_t path_bytes, const uint8_t *json,
                              uint64_t json_bytes, const requester *by, const plan *values) {
  request found = {.key = {.part = {[BEFORE_ID] = path}, .size = {[BEFORE_ID] = path_bytes}}};
  return http1_read_json(json, json_bytes, &found) && add_plan(of, &found.key, by, values);
}

/* The bytes at the beginning of this JSON that give an id which is no part of a key; 0: none are. */
EXPORT uint64_t wire_id_bytes(const uint8_t *json, uint64_t json_bytes) {
  request found = {0};
  return http1_read_json(json, json_bytes, &found) ? json_bytes - found.key.size[BEHIND_ID] : 0;
}

EXPORT void wire_clear_plans(wire *of) { plans_clear(of->plans); }
EXPORT void wire_clear_plans_of(wire *of, int32_t tenant) { plans_clear_tenant(of->plans, tenant); }

/* Whether every request with a plan has to say who asks, as the one did by which the plan was learnt. */
EXPORT void wire_name_callers(wire *of, int names) { atomic_store(&of->names_callers, names); }

/* From here on the ids of requests are kept beside their counts. */
EXPORT void wire_keep_ids(wire *of) { atomic_store(&of->keeps_ids, true); }

/* Moves the first `count` of `all` records into `target`. */
static void move_first(void *target, void *records, uint32_t count, uint32_t all, size_t size) {
  memcpy(target, records, count * size);
  memmove(records, (char *)records + count * size, (all - count) * size);
}

/* Moves up to `most` counts into `target`, and the ids beside them into `ids`, which may be NULL. Returns how many. */
EXPORT uint32_t wire_take_counts(wire *of, int thread, ended_query *target, ended_id *ids, uint32_t most) {
  io_thread *from = &of->thread[thread];
  pthread_mutex_lock(&from->lock);
  const uint32_t count = from->ended_count < most ? from->ended_count : most;
  if (count) {
    move_first(target, from->ended, count, from->ended_count, sizeof *target);
    if (ids) memset(ids, 0, count * sizeof *ids);
    if (from->ended_ids) {
      if (ids) memcpy(ids, from->ended_ids, count * sizeof *ids);
      memmove(from->ended_ids, from->ended_ids + count, (from->ended_count - count) * sizeof *from->ended_ids);
    }
    from->ended_count -= count;
  }
  pthread_mutex_unlock(&from->lock);
  return count;
}

/* From here on queries are traced where their clients say so, and of those without a context so many of 2^64. */
EXPORT void wire_trace(wire *of, uint64_t below) {
  atomic_store(&of->trace_below, below);
  atomic_store(&of->traces, true);
}

/* Moves up to `most` ended queries that were traced into `target`, and adds to `lost` how many there was no room for.
 * Returns how many. */
EXPORT uint32_t wire_take_traces(wire *of, int thread, ended_trace *target, uint32_t most, uint64_t *lost) {
  io_thread *from = &of->thread[thread];
  pthread_mutex_lock(&from->lock);
  const uint32_t count = from->trace_count < most ? from->trace_count : most;
  if (count) {
    move_first(target, from->traces, count, from->trace_count, sizeof *target);
    from->trace_count -= count;
  }
  *lost += from->traces_lost;
  from->traces_lost = 0;
  pthread_mutex_unlock(&from->lock);
  return count;
}

/* Of now: connections, bytes held; so far: connections refused for their number, and cut off for their slowness. */
EXPORT void wire_budget_counts(const wire *of, uint64_t counts[4]) {
  const budgets *all = &of->budgets;
  counts[0] = atomic_load(&all->connections), counts[1] = atomic_load(&all->memory);
  counts[2] = atomic_load(&all->refused_connections), counts[3] = atomic_load(&all->expired_connections);
}

/* Requests refused before their tenant was known, so far, by RefusalReason.number below `size`. */
EXPORT void wire_refusal_counts(const wire *of, uint64_t *counts, uint32_t size) {
  for (uint32_t i = 0; i < size && i < REASONS; i++) counts[i] = atomic_load(&of->budgets.refused[i]);
}

EXPORT call_event *wire_next_event(wire *of) { return event_next(of); }

EXPORT void wire_free_event(call_event *event) { event_free(event); }

EXPORT int wire_command(wire *of, uint64_t call, int kind, int last, const uint8_t *data, uint64_t size) {
  return command_post(of, call, kind, last, data, size);
}

/* Accepts no more calls, and tells clients so; NOTICE_IDLE comes from each thread once it has none. */
EXPORT void wire_leave(wire *of) {
  for (int i = 0; i < of->threads; i++) {
    io_thread *thread = &of->thread[i];
    pthread_mutex_lock(&thread->lock);
    thread->leaving = true;
    pthread_mutex_unlock(&thread->lock);
    thread_wake(thread);
  }
}

EXPORT int wire_idle(wire *of) {
  bool idle = true;
  for (int i = 0; i < of->threads; i++) {
    pthread_mutex_lock(&of->thread[i].lock);
    idle = idle && of->thread[i].idle;
    pthread_mutex_unlock(&of->thread[i].lock);
  }
  return idle;
}

/* Ends the threads and closes all connections. */
EXPORT void wire_stop(wire *of) {
  for (int i = 0; i < of->threads; i++) {
    io_thread *thread = &of->thread[i];
    pthread_mutex_lock(&thread->lock);
    thread->stopping = true;
    pthread_mutex_unlock(&thread->lock);
    thread_wake(thread);
  }
  for (int i = 0; i < of->threads; i++) {
    io_thread *thread = &of->thread[i];
    pthread_join(thread->thread, NULL);
    commands_drop(thread);
    close(thread->epoll);
    close(thread->wake);
    free(thread->calls);
    free(thread->generation);
    free(thread->free_call);
    free(thread->ended);
    free(thread->ended_ids);
    free(thread->traces);
    free(thread->states);
    free(thread->scratch);
    pthread_mutex_destroy(&thread->lock);
    pthread_cond_destroy(&thread->settled);
  }
  for (int i = 0; i < LISTENERS; i++) tls_context_release(of->listeners[i].tls);
  for (call_event *event; (event = event_next(of));) event_free(event);
  plans_free(of->plans);
  pthread_mutex_destroy(&of->lock);
  close(of->events);
  free(of->thread);
  free(of);
}
