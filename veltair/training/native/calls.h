/* What a call of each operator has, as Python fills it in (`native_calls.py`). All arrays are dense; `real` is float or
 * double. Ids and offsets were checked by `check_ids` and `check_offsets`. */
#ifndef VELTAIR_TRAINING_CALLS_H
#define VELTAIR_TRAINING_CALLS_H
#include <stdint.h>

enum { NO_PADDING = -1, ABSENT = -1 };

typedef struct {
  int64_t bags, ids_count, rows, dim, padding; /* padding: the row that counts nowhere, or NO_PADDING */
  int64_t mean, threads;
  const int64_t *ids, *offsets; /* offsets (bags + 1) */
  const void *sample_weights;   /* (ids_count), or null */
  void *table;                  /* (rows, dim); the update changes it, or where a gradient goes */
  void *out;                    /* (bags, dim): sums, or their gradient */
  void *moments;                /* (rows): sums of squares of row-wise Adagrad, or null: `table` takes the gradient */
  double rate, epsilon;         /* of row-wise Adagrad */
  void *scratch;                /* a row for each task of the update */
  void *sample_gradient;        /* (ids_count): gradient of sample_weights */
  const uint64_t *sorted;       /* row << 32 | position, rising */
  const uint32_t *bag_of;       /* (ids_count) */
  const double *scales;         /* (bags): `bag_scale` of each, or null where all are 1 */
  int64_t tasks;
} bag_call;

/* The factor of each row in bag `b`: with `mean`, one through the count of those that are no padding. */
static inline double bag_scale(const bag_call *c, int64_t b) {
  if (!c->mean) return 1;
  int64_t count = c->offsets[b + 1] - c->offsets[b];
  if (c->padding != NO_PADDING)
    for (int64_t i = c->offsets[b]; i < c->offsets[b + 1]; i++) count -= c->ids[i] == c->padding;
  return count > 0 ? 1.0 / (double)count : 0;
}

typedef struct {
  int64_t samples, width, classes, threads, tasks;
  const int64_t *ids; /* (samples, width), or ABSENT */
  const void *weights; /* (samples, width), or null */
  void *counts;       /* (samples, classes) */
  void *gradient;     /* (samples, width): of weights */
} one_hot_call;

typedef struct {
  int64_t outer, inner, count, threads, tasks;
  const void *const *parts; /* each (outer, lengths[i], inner) */
  const int64_t *lengths;
  void *out; /* (outer, inner) */
} concat_call;

typedef struct {
  int64_t rows, steps, hidden, reset_after, threads, tiles;
  const void *gates;       /* (rows, steps, 3 hidden): inputs times their weights, of reset, update and candidate */
  const void *scores;      /* (rows, steps) attention that weakens the update gate, or null */
  const void *first;       /* (rows, hidden) */
  const void *weights;     /* (3 hidden, hidden); in the gradient transposed: (hidden, 3 hidden) */
  const void *bias;        /* (3 hidden) of the recurrent products, or null */
  void *states;            /* (rows, steps, hidden) */
  void *kept;              /* (tiles, steps, 5 hidden) vectors: what the gradient needs */
  const void *states_gradient; /* (rows, steps, hidden) */
  void *gates_gradient;    /* (rows, steps, 3 hidden) */
  void *other;             /* (rows, steps, hidden): reset_after: gradient of the candidate's recurrent product, else
                              reset gate times state, which that product reads */
  void *scores_gradient;   /* (rows, steps), or null */
  void *first_gradient;    /* (rows, hidden) */
} recurrent_call;

#endif
