/* Plans: what a request with a certain head becomes, so that a request whose head was seen before needs no parsing.
 *
 * The head of a request is all of it but the id and the tensors' bytes: names, types, shapes and parameters. Clients
 * send the same head again and again. Python decodes and validates the first one, and writes down what it means as a
 * plan: which bytes go where in a slot, which ranges ids must have, how the response begins. Whatever a plan does not
 * fit goes to Python again, so that there is one place that decides what is valid.
 */
#ifndef VELTAIR_PLANS_H
#define VELTAIR_PLANS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum element { ANY_BYTES, INT8, INT16, INT32, INT64, UINT8, UINT16, UINT32, UINT64, STRINGS };

typedef struct {
  uint64_t bytes;   /* of the tensor, exactly; of STRINGS: how many there are */
  uint64_t offset;  /* in the slot; of STRINGS: where the array of their ends (int32) lies */
  int32_t element;  /* enum element; ANY_BYTES has no range */
  int32_t file;     /* descriptor of the client's shared memory, -1: the bytes come with the request */
  int64_t file_offset;
  int64_t low, high; /* of every element, inclusive; of unsigned ones as their bits */
  uint64_t text_offset, text_bytes; /* in the slot: the space for the bytes of STRINGS */
  uint64_t sent_bytes; /* that came with the request; over HTTP its JSON says how many */
} plan_input; /* plan.INPUT */

typedef struct {
  uint64_t bytes, offset; /* in the slot */
  int64_t file_offset;
  int32_t file; /* where the output is stored instead, -1: it comes with the response */
  int32_t unused;
  char error[160]; /* what the client reads when it cannot be stored */
} plan_output; /* plan.OUTPUT */

typedef struct plan {
  atomic_int references;
  uint64_t hash;
  struct plan *next; /* in its bucket */
  int32_t tenant, batch;
  int32_t priority_level, unused;
  int64_t timeout_ns; /* the request's own, from its arrival; 0: none */
  uint32_t inputs, outputs;
  plan_input *input;
  plan_output *output;
  size_t key_bytes, tenant_bytes, caller_bytes, begin_bytes, rest_bytes; /* two of them the key's last parts */
  uint8_t *key;
  uint8_t *begin; /* of the response, up to its id */
  uint8_t *rest;  /* of the response, from behind its id up to the first tensor's bytes */
} plan;

/* The head of one request, in parts that need not lie side by side: what stands before its id, what behind, and what the
 * transport says besides, which is the tenant's name and by what the caller is known. */
enum { BEFORE_ID, BEHIND_ID, TENANT, CALLER, KEY_PARTS };
typedef struct {
  const uint8_t *part[KEY_PARTS];
  size_t size[KEY_PARTS];
} plan_key;

typedef struct plan_table plan_table;
plan_table *plans_new(void);
void plans_free(plan_table *table);
/* The plan for this head, with a reference for the caller; NULL when there is none. */
plan *plans_find(plan_table *table, const plan_key *key);
/* Adds a plan, whose reference becomes the table's, in place of one with the same key. */
void plans_add(plan_table *table, plan *added);
void plans_clear(plan_table *table);
/* Those for the tenant with this number alone. */
void plans_clear_tenant(plan_table *table, int32_t tenant);

/* A plan with copies of everything; NULL without memory. Descriptors are duplicated, and closed with the plan. */
plan *plan_new(const plan_key *key, const plan *values);
void plan_release(plan *used);

/* Copies one tensor to its place in the slot and checks its range there; strings come each behind its length (u32,
 * little-endian). False: it does not fit the plan. */
bool plan_put(const plan_input *input, uint8_t *slot, const uint8_t *bytes, size_t size);

#endif
