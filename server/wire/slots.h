/* The slots of the tensor pool that no query holds: front/admission.py's FreeSlots for several threads. Half of them are
 * kept, in equal parts for each tenant, so that none takes all. */
#ifndef VELTAIR_SLOTS_H
#define VELTAIR_SLOTS_H

#include <stdint.h>

typedef struct slot_table slot_table;
slot_table *slots_new(int32_t tenants, int32_t slots);
void slots_free(slot_table *table);
/* A slot of the tenant's region, the one given back last; -1: there is none for the tenant. */
int32_t slots_take(slot_table *table, int32_t tenant);
void slots_give_back(slot_table *table, int32_t tenant, int32_t slot);
int32_t slots_taken(slot_table *table);

#endif
