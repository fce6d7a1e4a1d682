/* Checks, sorts, and the choice of kernels by what the processor has. */
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "thread_pool.h"

#define EXPORT __attribute__((visibility("default")))

enum { DIGIT = 11, DIGITS = 1 << DIGIT };

/* The position of the first id that is neither below `rows` nor, with `absent`, ABSENT; -1 if there is none. */
EXPORT int64_t check_ids(const int64_t *ids, int64_t count, int64_t rows, int64_t absent) {
  for (int64_t i = 0; i < count; i++)
    if ((uint64_t)ids[i] >= (uint64_t)rows && !(absent && ids[i] == ABSENT)) return i;
  return -1;
}

/* The place of the first of bags + 1 offsets that is wrong: they begin with 0, never fall, and end with `count`; -1 if all
 * are right. */
EXPORT int64_t check_offsets(const int64_t *offsets, int64_t bags, int64_t count) {
  if (offsets[0] != 0) return 0;
  for (int64_t b = 1; b <= bags; b++)
    if (offsets[b] < offsets[b - 1] || offsets[b] > count) return b;
  return offsets[bags] == count ? -1 : bags;
}

#define KERNELS(of)                                                                              \
  void of##_float_avx512(const void *, int64_t), of##_float_avx2(const void *, int64_t),         \
      of##_float_plain(const void *, int64_t), of##_double_avx512(const void *, int64_t),        \
      of##_double_avx2(const void *, int64_t), of##_double_plain(const void *, int64_t);         \
  static task_function choose_##of(int64_t is_double) {                                          \
    static const task_function of_isa[3][2] = {{of##_float_plain, of##_double_plain},            \
                                               {of##_float_avx2, of##_double_avx2},              \
                                               {of##_float_avx512, of##_double_avx512}};         \
    return of_isa[vector_isa()][is_double != 0];                                                 \
  }

enum { PLAIN, AVX2, AVX512 };

static int64_t most_vector_bytes = 64;

static int vector_isa(void) {
  if (most_vector_bytes >= 64 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return AVX512;
  return most_vector_bytes >= 32 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? AVX2 : PLAIN;
}

/* Of the kernels that this processor could run, those with vectors of at most so many bytes: every kernel is tested on
 * one machine. */
EXPORT void limit_vector_bytes(int64_t bytes) { most_vector_bytes = bytes; }

KERNELS(bag_forward)
KERNELS(bag_weights_backward)
KERNELS(bag_rows_backward)
KERNELS(one_hot_forward)
KERNELS(one_hot_backward)
KERNELS(concat_forward)
KERNELS(recurrent_forward)
KERNELS(recurrent_backward)

/* Bytes of a vector of the kernels that this processor gets. */
EXPORT int64_t vector_bytes(void) { return 16 << vector_isa(); }

EXPORT void bag_forward(const bag_call *call, int64_t is_double) {
  run_tasks(choose_bag_forward(is_double), call, call->tasks, (int)call->threads);
}

EXPORT void bag_weights_backward(const bag_call *call, int64_t is_double) {
  run_tasks(choose_bag_weights_backward(is_double), call, call->tasks, (int)call->threads);
}

/* Sorts (row << 32 | position) by row; equal rows stay in the order of positions. Returns `from` or `to`. */
static uint64_t *sort_by_row(uint64_t *from, uint64_t *to, int64_t count, uint64_t rows) {
  int64_t starts[DIGITS];
  for (int shift = 32; shift < 64 && (rows - 1) >> (shift - 32); shift += DIGIT) {
    memset(starts, 0, sizeof starts);
    for (int64_t i = 0; i < count; i++) starts[from[i] >> shift & (DIGITS - 1)]++;
    for (int64_t d = 0, sum = 0; d < DIGITS; d++) {
      const int64_t here = starts[d];
      starts[d] = sum;
      sum += here;
    }
    for (int64_t i = 0; i < count; i++) to[starts[from[i] >> shift & (DIGITS - 1)]++] = from[i];
    uint64_t *const sorted = to;
    to = from;
    from = sorted;
  }
  return from;
}

/* Gradients of the rows that occur, or their update; -1 for want of memory. */
EXPORT int64_t bag_rows_backward(const bag_call *given, int64_t is_double) {
  bag_call call = *given;
  const size_t count = (size_t)call.ids_count;
  uint64_t *keys = malloc(2 * sizeof(uint64_t) * count + 1);
  uint32_t *bag_of = malloc(sizeof(uint32_t) * count + 1);
  double *scales = malloc(sizeof(double) * (size_t)call.bags + 1);
  void *scratch = malloc(sizeof(double) * (size_t)(call.tasks * call.dim) + 1);
  const int complete = keys && bag_of && scales && scratch;
  if (complete) {
    for (int64_t b = 0; b < call.bags; b++) {
      scales[b] = bag_scale(&call, b);
      for (int64_t i = call.offsets[b]; i < call.offsets[b + 1]; i++) bag_of[i] = (uint32_t)b;
    }
    for (int64_t i = 0; i < call.ids_count; i++) keys[i] = (uint64_t)call.ids[i] << 32 | (uint64_t)i;
    call.sorted = sort_by_row(keys, keys + count, call.ids_count, (uint64_t)call.rows);
    call.bag_of = bag_of;
    call.scales = call.mean ? scales : 0;
    call.scratch = scratch;
    run_tasks(choose_bag_rows_backward(is_double), &call, call.tasks, (int)call.threads);
  }
  free(keys);
  free(bag_of);
  free(scales);
  free(scratch);
  return complete ? 0 : -1;
}

EXPORT void one_hot_forward(const one_hot_call *call, int64_t is_double) {
  run_tasks(choose_one_hot_forward(is_double), call, call->tasks, (int)call->threads);
}

EXPORT void one_hot_backward(const one_hot_call *call, int64_t is_double) {
  run_tasks(choose_one_hot_backward(is_double), call, call->tasks, (int)call->threads);
}

EXPORT void concat_forward(const concat_call *call, int64_t is_double) {
  run_tasks(choose_concat_forward(is_double), call, call->tasks, (int)call->threads);
}

EXPORT void recurrent_forward(const recurrent_call *call, int64_t is_double) {
  run_tasks(choose_recurrent_forward(is_double), call, call->tiles, (int)call->threads);
}

EXPORT void recurrent_backward(const recurrent_call *call, int64_t is_double) {
  run_tasks(choose_recurrent_backward(is_double), call, call->tiles, (int)call->threads);
}
