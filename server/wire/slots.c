#include "slots.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct slot_table {
  pthread_mutex_t lock;
  int32_t tenants, slots, taken;
  int32_t kept;   /* of the slots for each tenant alone */
  int32_t shared; /* of the others, taken */
  int32_t *count; /* of free slots, by tenant */
  int32_t *free;  /* of tenant t from free[t * slots] on; the last one is taken first */
};

slot_table *slots_new(int32_t tenants, int32_t slots) {
  slot_table *table = calloc(1, sizeof *table);
  if (!table) return NULL;
  *table = (slot_table){.tenants = tenants, .slots = slots, .kept = slots / (2 * tenants)};
  table->count = malloc(sizeof *table->count * (size_t)tenants);
  table->free = malloc(sizeof *table->free * (size_t)tenants * (size_t)slots);
  if (!table->count || !table->free) {
    slots_free(table);
    return NULL;
  }
  pthread_mutex_init(&table->lock, NULL);
  for (int32_t tenant = 0; tenant < tenants; tenant++) {
    table->count[tenant] = slots;
    for (int32_t slot = 0; slot < slots; slot++) table->free[tenant * slots + slot] = slots - 1 - slot;
  }
  return table;
}

void slots_free(slot_table *table) {
  free(table->count);
  free(table->free);
  free(table);
}

int32_t slots_take(slot_table *table, int32_t tenant) {
  int32_t slot = -1;
  pthread_mutex_lock(&table->lock);
  const bool own = table->slots - table->count[tenant] < table->kept;
  if (own || table->shared < table->slots - table->tenants * table->kept) {
    table->taken++;
    table->shared += !own;
    slot = table->free[tenant * table->slots + --table->count[tenant]];
  }
  pthread_mutex_unlock(&table->lock);
  return slot;
}

void slots_give_back(slot_table *table, int32_t tenant, int32_t slot) {
  pthread_mutex_lock(&table->lock);
  table->taken--;
  table->shared -= table->slots - table->count[tenant] > table->kept;
  table->free[tenant * table->slots + table->count[tenant]++] = slot;
  pthread_mutex_unlock(&table->lock);
}

int32_t slots_taken(slot_table *table) {
  pthread_mutex_lock(&table->lock);
  const int32_t taken = table->taken;
  pthread_mutex_unlock(&table->lock);
  return taken;
}
