#include "slots.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct {
  tenant_share share;
  bool open;
  int32_t free;   /* slots of its region */
  double tokens;  /* queries that its rate lets pass now, as of `at_ns` */
  int64_t at_ns;
} tenant;

struct slot_table {
  pthread_mutex_t lock;
  int32_t tenants, slots, taken;
  int32_t shared;   /* of those that are kept for nobody, free */
  tenant *tenant;
  int32_t *free;    /* of tenant t from free[t * slots] on; the last one is taken first */
};

slot_table *slots_new(int32_t tenants, int32_t slots) {
  slot_table *table = calloc(1, sizeof *table);
  if (!table) return NULL;
  *table = (slot_table){.tenants = tenants, .slots = slots, .shared = slots};
  table->tenant = calloc((size_t)tenants, sizeof *table->tenant);
  table->free = malloc(sizeof *table->free * (size_t)tenants * (size_t)slots);
  if (!table->tenant || !table->free) {
    slots_free(table);
    return NULL;
  }
  pthread_mutex_init(&table->lock, NULL);
  for (int32_t i = 0; i < tenants; i++) {
    table->tenant[i].free = slots;
    for (int32_t slot = 0; slot < slots; slot++) table->free[i * slots + slot] = slots - 1 - slot;
  }
  return table;
}

void slots_free(slot_table *table) {
  free(table->tenant);
  free(table->free);
  free(table);
}

void slots_open(slot_table *table, int32_t number, const tenant_share *share) {
  pthread_mutex_lock(&table->lock);
  tenant *of = &table->tenant[number];
  *of = (tenant){.share = *share, .open = true, .free = of->free, .tokens = share->burst};
  pthread_mutex_unlock(&table->lock);
}

void slots_close(slot_table *table, int32_t number) {
  pthread_mutex_lock(&table->lock);
  table->tenant[number].open = false;
  pthread_mutex_unlock(&table->lock);
}

void slots_keep(slot_table *table, const int32_t *kept) {
  pthread_mutex_lock(&table->lock);
  table->shared = table->slots;
  for (int32_t i = 0; i < table->tenants; i++) {
    const int32_t held = table->slots - table->tenant[i].free;
    table->tenant[i].share.kept = kept[i];
    table->shared -= held > kept[i] ? held : kept[i];
  }
  pthread_mutex_unlock(&table->lock);
}

int32_t slots_held(slot_table *table, int32_t number) {
  pthread_mutex_lock(&table->lock);
  const int32_t held = table->slots - table->tenant[number].free;
  pthread_mutex_unlock(&table->lock);
  return held;
}

/* Whether the tenant's rate lets a query pass. */
static bool has_token(tenant *of, int64_t now_ns) {
  if (of->share.rate == 0) return true;
  if (now_ns > of->at_ns) {
    of->tokens += of->share.rate * (double)(now_ns - of->at_ns) / 1e9;
    if (of->tokens > of->share.burst) of->tokens = of->share.burst;
    of->at_ns = now_ns;
  }
  return of->tokens >= 1;
}

static int32_t refusal(const slot_table *table, tenant *of, int64_t now_ns) {
  if (!of->open) return CLOSED;
  const int32_t held = table->slots - of->free;
  if (!of->free || held >= of->share.most || (held >= of->share.kept && table->shared <= 0)) return NO_SLOT;
  return has_token(of, now_ns) ? 0 : RATE_SPENT;
}

int32_t slots_refusal(slot_table *table, int32_t tenant, int64_t now_ns) {
  pthread_mutex_lock(&table->lock);
  const int32_t found = refusal(table, &table->tenant[tenant], now_ns);
  pthread_mutex_unlock(&table->lock);
  return found;
}

int32_t slots_take(slot_table *table, int32_t number, int64_t now_ns) {
  pthread_mutex_lock(&table->lock);
  tenant *of = &table->tenant[number];
  int32_t slot = refusal(table, of, now_ns);
  if (!slot) {
    table->taken++;
    table->shared -= table->slots - of->free >= of->share.kept;
    if (of->share.rate != 0) of->tokens -= 1;
    slot = table->free[number * table->slots + --of->free];
  }
  pthread_mutex_unlock(&table->lock);
  return slot;
}

void slots_give_back(slot_table *table, int32_t number, int32_t slot) {
  pthread_mutex_lock(&table->lock);
  tenant *of = &table->tenant[number];
  table->taken--;
  table->shared += table->slots - of->free > of->share.kept;
  table->free[number * table->slots + of->free++] = slot;
  pthread_mutex_unlock(&table->lock);
}

int32_t slots_taken(slot_table *table) {
  pthread_mutex_lock(&table->lock);
  const int32_t taken = table->taken;
  pthread_mutex_unlock(&table->lock);
  return taken;
}
