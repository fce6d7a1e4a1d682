/* Sums of one-hots, and over concatenated tensors, neither of which is written (AtRec III-B). Included for each type. */

void NAME(one_hot_forward)(const void *call, int64_t task) {
  const one_hot_call *c = call;
  const REAL *weights = c->weights;
  const int64_t end = c->samples * (task + 1) / c->tasks;
  for (int64_t n = c->samples * task / c->tasks; n < end; n++) {
    REAL *counts = (REAL *)c->counts + n * c->classes;
    for (int64_t k = 0; k < c->classes; k++) counts[k] = 0;
    for (int64_t i = n * c->width; i < (n + 1) * c->width; i++)
      if (c->ids[i] != ABSENT) counts[c->ids[i]] += weights ? weights[i] : 1;
  }
}

void NAME(one_hot_backward)(const void *call, int64_t task) {
  const one_hot_call *c = call;
  const int64_t end = c->samples * (task + 1) / c->tasks;
  for (int64_t n = c->samples * task / c->tasks; n < end; n++)
    for (int64_t i = n * c->width; i < (n + 1) * c->width; i++)
      ((REAL *)c->gradient)[i] = c->ids[i] == ABSENT ? 0 : ((const REAL *)c->counts)[n * c->classes + c->ids[i]];
}

void NAME(concat_forward)(const void *call, int64_t task) {
  const concat_call *c = call;
  const int64_t end = c->outer * (task + 1) / c->tasks;
  for (int64_t o = c->outer * task / c->tasks; o < end; o++) {
    REAL *restrict out = (REAL *)c->out + o * c->inner;
    for (int64_t d = 0; d < c->inner; d++) out[d] = 0;
    for (int64_t p = 0; p < c->count; p++) {
      const REAL *restrict part = (const REAL *)c->parts[p] + o * c->lengths[p] * c->inner;
      for (int64_t k = 0; k < c->lengths[p]; k++)
        for (int64_t d = 0; d < c->inner; d++) out[d] += part[k * c->inner + d];
    }
  }
}
