#define _GNU_SOURCE
#include "plans.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BUCKETS = 4096, MOST_PLANS = 4096, MOST_BYTES = 64 << 20 };

struct plan_table {
  pthread_mutex_t lock;
  plan *bucket[BUCKETS];
  size_t plans, bytes; /* bytes of keys and responses, which clients decide */
};

static uint64_t mix(uint64_t state, uint64_t word) {
  const __uint128_t product = (__uint128_t)(state ^ word) * UINT64_C(0x9E3779B97F4A7C15);
  return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t hash_of(const plan_key *key) {
  uint64_t state = UINT64_C(0x243F6A8885A308D3);
  for (int i = 0; i < KEY_PARTS; i++) {
    const uint8_t *at = key->part[i];
    size_t left = key->size[i];
    uint64_t word = 0;
    for (; left >= sizeof word; left -= sizeof word, at += sizeof word) {
      memcpy(&word, at, sizeof word);
      state = mix(state, word);
    }
    word = 0;
    if (left) memcpy(&word, at, left);
    state = mix(state, word ^ (uint64_t)key->size[i] << 56);
  }
  return state;
}

static size_t bytes_of_key(const plan_key *key) {
  size_t bytes = 0;
  for (int i = 0; i < KEY_PARTS; i++) bytes += key->size[i];
  return bytes;
}

static bool matches(const plan *found, const plan_key *key) {
  if (found->key_bytes != bytes_of_key(key)) return false;
  if (found->tenant_bytes != key->size[TENANT] || found->caller_bytes != key->size[CALLER]) return false;
  const uint8_t *at = found->key;
  for (int i = 0; i < KEY_PARTS; at += key->size[i], i++)
    if (key->size[i] && memcmp(at, key->part[i], key->size[i])) return false;
  return true;
}

plan_table *plans_new(void) {
  plan_table *table = calloc(1, sizeof *table);
  if (table) pthread_mutex_init(&table->lock, NULL);
  return table;
}

static size_t bytes_of(const plan *p) {
  return sizeof *p + p->key_bytes + p->begin_bytes + p->rest_bytes + p->inputs * sizeof *p->input + p->outputs * sizeof *p->output;
}

/* Takes a plan out of its bucket: `*at` is the next one afterwards. */
static void drop(plan_table *table, plan **at) {
  plan *old = *at;
  *at = old->next;
  table->plans--;
  table->bytes -= bytes_of(old);
  plan_release(old);
}

static void drop_all(plan_table *table) {
  for (int i = 0; i < BUCKETS; i++)
    while (table->bucket[i]) drop(table, &table->bucket[i]);
}

void plans_free(plan_table *table) {
  drop_all(table);
  pthread_mutex_destroy(&table->lock);
  free(table);
}

plan *plans_find(plan_table *table, const plan_key *key) {
  const uint64_t hash = hash_of(key);
  pthread_mutex_lock(&table->lock);
  plan *at = table->bucket[hash % BUCKETS];
  while (at && (at->hash != hash || !matches(at, key))) at = at->next;
  if (at) atomic_fetch_add_explicit(&at->references, 1, memory_order_relaxed);
  pthread_mutex_unlock(&table->lock);
  return at;
}

void plans_add(plan_table *table, plan *added) {
  const uint8_t *const caller = added->key + added->key_bytes - added->caller_bytes, *const tenant = caller - added->tenant_bytes;
  const plan_key key = {.part = {added->key, NULL, tenant, caller},
                        .size = {(size_t)(tenant - added->key), 0, added->tenant_bytes, added->caller_bytes}};
  pthread_mutex_lock(&table->lock);
  plan **at = &table->bucket[added->hash % BUCKETS];
  while (*at && ((*at)->hash != added->hash || !matches(*at, &key))) at = &(*at)->next;
  if (*at) {
    drop(table, at);
  } else if (table->plans >= MOST_PLANS || table->bytes + bytes_of(added) > MOST_BYTES) {
    drop_all(table); /* heads that are in use come back with their next request */
  }
  plan **head = &table->bucket[added->hash % BUCKETS];
  added->next = *head;
  *head = added;
  table->plans++;
  table->bytes += bytes_of(added);
  pthread_mutex_unlock(&table->lock);
}

void plans_clear(plan_table *table) {
  pthread_mutex_lock(&table->lock);
  drop_all(table);
  pthread_mutex_unlock(&table->lock);
}

void plans_clear_tenant(plan_table *table, int32_t tenant) {
  pthread_mutex_lock(&table->lock);
  for (int i = 0; i < BUCKETS; i++)
    for (plan **at = &table->bucket[i]; *at;)
      if ((*at)->tenant == tenant)
        drop(table, at);
      else
        at = &(*at)->next;
  pthread_mutex_unlock(&table->lock);
}

static void *copied(const void *source, size_t size) {
  void *copy = malloc(size ? size : 1);
  if (copy && size) memcpy(copy, source, size);
  return copy;
}

static bool own_file(int32_t *file) {
  if (*file < 0) return true;
  *file = fcntl(*file, F_DUPFD_CLOEXEC, 0);
  return *file >= 0;
}

plan *plan_new(const plan_key *key, const plan *values) {
  plan *made = malloc(sizeof *made);
  if (!made) return NULL;
  *made = *values;
  atomic_init(&made->references, 1);
  made->hash = hash_of(key);
  made->key_bytes = bytes_of_key(key);
  made->tenant_bytes = key->size[TENANT], made->caller_bytes = key->size[CALLER];
  made->key = malloc(made->key_bytes ? made->key_bytes : 1);
  made->begin = copied(values->begin, values->begin_bytes);
  made->rest = copied(values->rest, values->rest_bytes);
  made->input = copied(values->input, values->inputs * sizeof *values->input);
  made->output = copied(values->output, values->outputs * sizeof *values->output);
  bool complete = made->key && made->begin && made->rest && made->input && made->output;
  if (!complete) made->inputs = made->outputs = 0;
  for (uint32_t i = 0; i < made->inputs; i++) complete = own_file(&made->input[i].file) && complete;
  for (uint32_t i = 0; i < made->outputs; i++) complete = own_file(&made->output[i].file) && complete;
  if (!complete) {
    plan_release(made);
    return NULL;
  }
  uint8_t *at = made->key;
  for (int i = 0; i < KEY_PARTS; at += key->size[i], i++)
    if (key->size[i]) memcpy(at, key->part[i], key->size[i]);
  return made;
}

void plan_release(plan *used) {
  if (atomic_fetch_sub_explicit(&used->references, 1, memory_order_acq_rel) != 1) return;
  for (uint32_t i = 0; i < used->inputs; i++)
    if (used->input[i].file >= 0) close(used->input[i].file);
  for (uint32_t i = 0; i < used->outputs; i++)
    if (used->output[i].file >= 0) close(used->output[i].file);
  free(used->key);
  free(used->begin);
  free(used->rest);
  free(used->input);
  free(used->output);
  free(used);
}

/* A slot begins at a page and tensors in it at 64 bytes, but packed features at any element. */
#define IN_RANGE(type)                                                     \
  {                                                                        \
    const type low = (type)input->low, high = (type)input->high;           \
    bool outside = false;                                                  \
    for (size_t at = 0; at < input->bytes; at += sizeof(type)) {           \
      type value;                                                          \
      memcpy(&value, bytes + at, sizeof value);                            \
      outside |= value < low || value > high;                              \
    }                                                                      \
    return !outside;                                                       \
  }

static bool in_range(const plan_input *input, const uint8_t *bytes) {
  switch (input->element) {
    case ANY_BYTES: return true;
    case INT8: IN_RANGE(int8_t)
    case INT16: IN_RANGE(int16_t)
    case INT32: IN_RANGE(int32_t)
    case INT64: IN_RANGE(int64_t)
    case UINT8: IN_RANGE(uint8_t)
    case UINT16: IN_RANGE(uint16_t)
    case UINT32: IN_RANGE(uint32_t)
    case UINT64: IN_RANGE(uint64_t)
    default: return false;
  }
}

static bool put_strings(const plan_input *input, uint8_t *slot, const uint8_t *bytes, size_t size) {
  uint8_t *ends = slot + input->offset, *text = slot + input->text_offset;
  uint32_t length, used = 0;
  for (uint64_t i = 0; i < input->bytes; i++) {
    if (size < sizeof length) return false;
    memcpy(&length, bytes, sizeof length);
    bytes += sizeof length, size -= sizeof length;
    if (length > size || length > input->text_bytes - used) return false;
    memcpy(text + used, bytes, length);
    bytes += length, size -= length, used += length;
    memcpy(ends + i * sizeof used, &used, sizeof used);
  }
  return size == 0;
}

bool plan_put(const plan_input *input, uint8_t *slot, const uint8_t *bytes, size_t size) {
  if (input->element == STRINGS) return put_strings(input, slot, bytes, size);
  uint8_t *target = slot + input->offset;
  if (input->file < 0) {
    if (size != input->bytes) return false;
    memcpy(target, bytes, size);
  } else { /* the client may cut its file while it is read: it is read, never mapped */
    for (uint64_t filled = 0; filled < input->bytes;) {
      const ssize_t got = pread(input->file, target + filled, input->bytes - filled, input->file_offset + (int64_t)filled);
      if (got <= 0) return false;
      filled += (uint64_t)got;
    }
  }
  return in_range(input, target);
}
