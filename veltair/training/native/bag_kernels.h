/* Embedding bags: sums of rows of a table, and their gradients. Included for each type. */
enum { NAME(LANES) = VECTOR_BYTES / sizeof(REAL) };
typedef REAL NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef REAL NAME(loaded) __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(REAL)), may_alias));

enum { NAME(AHEAD) = 8 }; /* ids whose rows are prefetched */

/* Bags whose rows are `vectors` whole vectors: sums stay in registers. */
static inline __attribute__((always_inline)) void NAME(sum_vectors)(const bag_call *c, int64_t b, int vectors) {
  const REAL *table = c->table, *weights = c->sample_weights;
  const int64_t dim = (int64_t)vectors * NAME(LANES);
  NAME(vector) sums[16] = {0};
  for (int64_t i = c->offsets[b]; i < c->offsets[b + 1]; i++) {
    if (i + NAME(AHEAD) < c->ids_count) {
      const char *next = (const char *)(table + c->ids[i + NAME(AHEAD)] * dim);
      for (int64_t at = 0; at < dim * (int64_t)sizeof(REAL); at += 64) __builtin_prefetch(next + at);
    }
    if (c->ids[i] == c->padding) continue;
    const NAME(loaded) *row = (const NAME(loaded) *)(table + c->ids[i] * dim);
    const REAL by = weights ? weights[i] : 1;
#pragma GCC unroll 16
    for (int v = 0; v < vectors; v++) sums[v] += row[v] * by;
  }
  const REAL scale = (REAL)bag_scale(c, b);
  NAME(loaded) *out = (NAME(loaded) *)((REAL *)c->out + b * dim);
#pragma GCC unroll 16
  for (int v = 0; v < vectors; v++) out[v] = sums[v] * scale;
}

static inline void NAME(sum_any)(const bag_call *c, int64_t b) {
  const REAL *table = c->table, *weights = c->sample_weights;
  REAL *restrict out = (REAL *)c->out + b * c->dim;
  for (int64_t d = 0; d < c->dim; d++) out[d] = 0;
  for (int64_t i = c->offsets[b]; i < c->offsets[b + 1]; i++) {
    if (i + NAME(AHEAD) < c->ids_count) __builtin_prefetch(table + c->ids[i + NAME(AHEAD)] * c->dim);
    if (c->ids[i] == c->padding) continue;
    const REAL *restrict row = table + c->ids[i] * c->dim;
    const REAL by = weights ? weights[i] : 1;
    for (int64_t d = 0; d < c->dim; d++) out[d] += row[d] * by;
  }
  const REAL scale = (REAL)bag_scale(c, b);
  for (int64_t d = 0; d < c->dim; d++) out[d] *= scale;
}

void NAME(bag_forward)(const void *call, int64_t task) {
  const bag_call *c = call;
  const int64_t end = c->bags * (task + 1) / c->tasks;
  const int64_t vectors = c->dim % NAME(LANES) == 0 ? c->dim / NAME(LANES) : 0;
  for (int64_t b = c->bags * task / c->tasks; b < end; b++) switch (vectors) {
      case 1: NAME(sum_vectors)(c, b, 1); break;
      case 2: NAME(sum_vectors)(c, b, 2); break;
      case 4: NAME(sum_vectors)(c, b, 4); break;
      case 8: NAME(sum_vectors)(c, b, 8); break;
      case 16: NAME(sum_vectors)(c, b, 16); break;
      default: NAME(sum_any)(c, b);
    }
}

/* The gradient of each weight is the product of its row and its bag's gradient. */
void NAME(bag_weights_backward)(const void *call, int64_t task) {
  const bag_call *c = call;
  const int64_t end = c->bags * (task + 1) / c->tasks;
  for (int64_t b = c->bags * task / c->tasks; b < end; b++)
    for (int64_t i = c->offsets[b]; i < c->offsets[b + 1]; i++) {
      const REAL *row = (const REAL *)c->table + c->ids[i] * c->dim, *given = (const REAL *)c->out + b * c->dim;
      REAL sum = 0;
      if (c->ids[i] != c->padding)
        for (int64_t d = 0; d < c->dim; d++) sum += row[d] * given[d];
      ((REAL *)c->sample_gradient)[i] = sum;
    }
}

/* w -= rate * g / (sqrt(moment) + epsilon), where the row's moment has grown by the mean of g squared. */
static inline void NAME(adagrad)(const bag_call *c, int64_t row, const REAL *restrict gradient) {
  REAL *restrict table = (REAL *)c->table + row * c->dim, *moment = (REAL *)c->moments + row, squares = 0;
  for (int64_t d = 0; d < c->dim; d++) squares += gradient[d] * gradient[d];
  *moment += squares / (REAL)c->dim;
  const REAL by = (REAL)c->rate / (SQRT(*moment) + (REAL)c->epsilon);
  for (int64_t d = 0; d < c->dim; d++) table[d] -= by * gradient[d];
}

/* Rows that begin in this task's part of the sorted ids: a row's gradient is summed in the order of positions, whatever
 * the number of threads, and then written or applied once. */
void NAME(bag_rows_backward)(const void *call, int64_t task) {
  const bag_call *c = call;
  const REAL *weights = c->sample_weights;
  const uint64_t *sorted = c->sorted;
  int64_t i = c->ids_count * task / c->tasks;
  const int64_t end = c->ids_count * (task + 1) / c->tasks;
  while (i > 0 && i < end && sorted[i] >> 32 == sorted[i - 1] >> 32) i++;
  while (i < end) {
    const int64_t row = (int64_t)(sorted[i] >> 32);
    const int padding = row == c->padding;
    REAL *restrict sum =
        c->moments ? (REAL *)c->scratch + task * c->dim : (REAL *)c->table + row * c->dim;
    for (int64_t d = 0; d < c->dim; d++) sum[d] = 0;
    for (; i < c->ids_count && (int64_t)(sorted[i] >> 32) == row; i++) {
      if (padding) continue;
      const int64_t position = (int64_t)(sorted[i] & UINT32_MAX), b = c->bag_of[position];
      const REAL *restrict given = (const REAL *)c->out + b * c->dim;
      const REAL by = (c->scales ? (REAL)c->scales[b] : 1) * (weights ? weights[position] : 1);
      for (int64_t d = 0; d < c->dim; d++) sum[d] += given[d] * by;
    }
    if (c->moments && !padding) NAME(adagrad)(c, row, sum);
  }
}
