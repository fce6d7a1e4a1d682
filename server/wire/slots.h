/* The slots of the tensor pool that no query holds: front/admission.py's FreeSlots for several threads. Half of them are
 * kept for the tenants, so that none takes all, and a tenant may have a bound and a rate of its own. */
#ifndef VELTAIR_SLOTS_H
#define VELTAIR_SLOTS_H

#include <stdint.h>

/* ipc/tenant_share.py */
typedef struct {
  double rate, burst;    /* queries a second (0: any), and at once after a pause */
  int32_t kept, most;    /* slots that no other tenant takes; slots that it may hold */
} tenant_share;

enum { NO_SLOT = -1, RATE_SPENT = -2, CLOSED = -3 /* the tenant is not served, or not by this number any more */ };

typedef struct slot_table slot_table;
slot_table *slots_new(int32_t tenants, int32_t slots); /* all closed */
void slots_free(slot_table *table);
void slots_open(slot_table *table, int32_t tenant, const tenant_share *share);
void slots_close(slot_table *table, int32_t tenant); /* slots that are held stay so */
void slots_keep(slot_table *table, const int32_t *kept); /* of every tenant: tenant_share.kept */
int32_t slots_held(slot_table *table, int32_t tenant);
/* A slot of the tenant's region, the one given back last; below 0: why there is none for the tenant. */
int32_t slots_take(slot_table *table, int32_t tenant, int64_t now_ns);
/* Why the next query of the tenant would get none, or 0. */
int32_t slots_refusal(slot_table *table, int32_t tenant, int64_t now_ns);
void slots_give_back(slot_table *table, int32_t tenant, int32_t slot);
int32_t slots_taken(slot_table *table);

#endif
