#include "slots.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

/* repository/free_slots.py */
enum { THRESHOLD = 2 /* times the slots that are free, for a tenant with the least weight */ };
static const int64_t WANTED_NS = 1000000000; /* who was refused a slot so long ago still wants it */
static const int64_t NEVER = INT64_MIN / 2;

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
  int32_t common;   /* those that are kept for nobody */
  int32_t shared;   /* of these, free */
  int32_t least;    /* that is kept for a tenant: the unit of their weights */
  int32_t refused;  /* the tenant that was last refused one of these, */
  int64_t refused_ns, other_ns; /* when, and when another was */
  tenant *tenant;
  int32_t *free;    /* of tenant t from free[t * slots] on; the last one is taken first */
};

slot_table *slots_new(int32_t tenants, int32_t slots) {
  slot_table *table = calloc(1, sizeof *table);
  if (!table) return NULL;
  *table = (slot_table){.tenants = tenants, .slots = slots, .common = slots, .shared = slots, .least = 1,
                         .refused_ns = NEVER, .other_ns = NEVER};
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
  table->common = table->shared = table->least = table->slots;
  for (int32_t i = 0; i < table->tenants; i++) {
    const int32_t held = table->slots - table->tenant[i].free;
    table->tenant[i].share.kept = kept[i];
    table->common -= kept[i];
    table->shared -= held > kept[i] ? held : kept[i];
    if (kept[i] && kept[i] < table->least) table->least = kept[i];
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

/* Whether the tenant may take one of the slots that are kept for nobody. Alone it may take all of them. Where another has
 * some, or wants some, each may have a multiple of what is free, by weight (dynamic thresholds, Choudhury and Hahne 1998):
 * who has too many waits until the others have theirs, whoever asks more often. */
static bool may_share(const slot_table *table, const tenant *of, int32_t held, int64_t now_ns) {
  if (table->shared <= 0) return false;
  const int64_t own = held - of->share.kept, others = table->common - table->shared - own;
  const int64_t wanted_ns = &table->tenant[table->refused] == of ? table->other_ns : table->refused_ns;
  const int64_t weight = of->share.kept ? of->share.kept : 1;
  const bool alone = others <= 0 && now_ns - wanted_ns > WANTED_NS;
  return alone || own * table->least < THRESHOLD * weight * table->shared;
}

static void note_refused(slot_table *table, const tenant *of, int64_t now_ns) {
  const int32_t number = (int32_t)(of - table->tenant);
  if (number != table->refused) table->other_ns = table->refused_ns;
  table->refused = number;
  table->refused_ns = now_ns;
}

static int32_t refusal(slot_table *table, tenant *of, int64_t now_ns) {
  if (!of->open) return CLOSED;
  const int32_t held = table->slots - of->free;
  if (!of->free || held >= of->share.most) return NO_SLOT;
  if (held >= of->share.kept && !may_share(table, of, held, now_ns)) {
    note_refused(table, of, now_ns);
    return NO_SLOT;
  }
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
