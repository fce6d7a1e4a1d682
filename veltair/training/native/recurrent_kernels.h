/* GRU and AUGRU through time. A task takes as many rows as a vector has lanes through all steps. Included for each type.
 *
 * r, u = sigmoid(gates + weights h + bias);  u' = (1 - score) u;  h = u' h + (1 - u') c
 * reset_after: c = tanh(gates + r (weights h + bias)), as torch.nn.GRU; else c = tanh(gates + bias + weights (r h)). */
typedef INTEGER NAME(integers) __attribute__((vector_size(VECTOR_BYTES)));

/* `than` where x < than, or, with `above`, where x > than. NaN stays. */
static inline NAME(vector) NAME(cut)(NAME(vector) x, REAL than, int above) {
  const NAME(vector) limit = x * 0 + than;
  const NAME(integers) mask = above ? x > limit : x < limit;
  return (NAME(vector))((mask & (NAME(integers))limit) | (~mask & (NAME(integers))x));
}

/* exp(x) = 2^n exp(r), with n the integer nearest to x / ln 2; Taylor's series of exp(r), |r| < 0.35. */
static inline NAME(vector) NAME(exponential)(NAME(vector) x) {
#ifdef DOUBLE
  enum { TERMS = 13, MANTISSA = 52, BIAS = 1023 };
  const REAL most = 708, magic = 6755399441055744.0, high = 6.93145751953125e-1, low = 1.42860682030941723212e-6;
#else
  enum { TERMS = 7, MANTISSA = 23, BIAS = 127 };
  const REAL most = 87, magic = 12582912.0f, high = 0.693359375f, low = -2.12194440e-4f;
#endif
  static const REAL inverse[] = {1,       1. / 2,  1. / 3,  1. / 4,  1. / 5,  1. / 6, 1. / 7,
                                 1. / 8,  1. / 9,  1. / 10, 1. / 11, 1. / 12, 1. / 13};
  x = NAME(cut)(NAME(cut)(x, most, 1), -most, 0);
  const NAME(vector) shifted = x * (REAL)1.44269504088896340736 + magic, n = shifted - magic;
  const NAME(vector) r = (x - n * high) - n * low;
  NAME(vector) sum = r * 0 + 1;
#pragma GCC unroll 13
  for (int k = TERMS - 1; k >= 0; k--) sum = sum * (r * inverse[k]) + 1;
  /* the low bits of `shifted` are n */
  const NAME(integers) power = ((NAME(integers))shifted + BIAS) << MANTISSA;
  return sum * (NAME(vector))power;
}

static inline NAME(vector) NAME(sigmoid)(NAME(vector) x) { return 1 / (1 + NAME(exponential)(-x)); }

static inline NAME(vector) NAME(tanh)(NAME(vector) x) { return 1 - 2 / (1 + NAME(exponential)(x + x)); }

/* out[j] += sum over k of weights[j * stride + k] * in[k], eight sums at a time in registers. */
static void NAME(products)(const REAL *weights, int64_t stride, const NAME(vector) *in, int64_t inputs,
                           NAME(vector) *out, int64_t outputs) {
  int64_t j = 0;
  for (; j + 8 <= outputs; j += 8) {
    NAME(vector) sums[8];
    for (int i = 0; i < 8; i++) sums[i] = out[j + i];
    for (int64_t k = 0; k < inputs; k++)
#pragma GCC unroll 8
      for (int i = 0; i < 8; i++) sums[i] += in[k] * weights[(j + i) * stride + k];
    for (int i = 0; i < 8; i++) out[j + i] = sums[i];
  }
  for (; j < outputs; j++)
    for (int64_t k = 0; k < inputs; k++) out[j] += in[k] * weights[j * stride + k];
}

/* Rows of a tensor (rows, stride) to lanes, and back; lanes without a row are zeros. */
static inline void NAME(to_lanes)(const REAL *from, int64_t stride, int64_t count, int64_t width, NAME(vector) *to) {
  if (count < NAME(LANES)) memset(to, 0, (size_t)width * VECTOR_BYTES);
  for (int64_t lane = 0; lane < count; lane++)
    for (int64_t j = 0; j < width; j++) ((REAL *)(to + j))[lane] = from[lane * stride + j];
}

static inline void NAME(from_lanes)(const NAME(vector) *from, int64_t count, int64_t width, REAL *to, int64_t stride) {
  for (int64_t lane = 0; lane < count; lane++)
    for (int64_t j = 0; j < width; j++) to[lane * stride + j] = ((const REAL *)(from + j))[lane];
}

/* What is kept of each step, `hidden` vectors each: */
enum { NAME(KEPT_R), NAME(KEPT_U), NAME(KEPT_C), NAME(KEPT_H), NAME(KEPT_Q), NAME(KEPT) }; /* h before; c's product */

void NAME(recurrent_forward)(const void *call, int64_t tile) {
  const recurrent_call *c = call;
  const int64_t H = c->hidden, T = c->steps, from = tile * NAME(LANES);
  const int64_t count = c->rows - from < NAME(LANES) ? c->rows - from : NAME(LANES);
  const REAL *weights = c->weights, *bias = c->bias;
  NAME(vector) given[3 * H], h[H], score = {0};
  NAME(to_lanes)((const REAL *)c->first + from * H, H, count, H, h);
  for (int64_t t = 0; t < T; t++) {
    NAME(vector) *kept = (NAME(vector) *)c->kept + (tile * T + t) * NAME(KEPT) * H;
    NAME(vector) *r = kept, *u = r + H, *n = u + H, *before = n + H, *q = before + H;
    NAME(to_lanes)((const REAL *)c->gates + (from * T + t) * 3 * H, T * 3 * H, count, 3 * H, given);
    if (c->scores) NAME(to_lanes)((const REAL *)c->scores + from * T + t, T, count, 1, &score);
    memcpy(before, h, (size_t)H * VECTOR_BYTES);
    for (int64_t j = 0; j < 2 * H; j++) r[j] = given[j] + (bias ? bias[j] : 0);
    NAME(products)(weights, H, h, H, r, 2 * H);
    for (int64_t j = 0; j < 2 * H; j++) r[j] = NAME(sigmoid)(r[j]);
    for (int64_t j = 0; j < H; j++) q[j] = r[j] * 0 + (bias ? bias[2 * H + j] : 0);
    if (!c->reset_after)
      for (int64_t j = 0; j < H; j++) h[j] = r[j] * h[j];
    NAME(products)(weights + 2 * H * H, H, h, H, q, H);
    for (int64_t j = 0; j < H; j++) {
      n[j] = NAME(tanh)(given[2 * H + j] + (c->reset_after ? r[j] * q[j] : q[j]));
      const NAME(vector) keep = (1 - score) * u[j];
      h[j] = keep * before[j] + (1 - keep) * n[j];
    }
    NAME(from_lanes)(h, count, H, (REAL *)c->states + (from * T + t) * H, T * H);
  }
}

void NAME(recurrent_backward)(const void *call, int64_t tile) {
  const recurrent_call *c = call;
  const int64_t H = c->hidden, T = c->steps, from = tile * NAME(LANES);
  const int64_t count = c->rows - from < NAME(LANES) ? c->rows - from : NAME(LANES);
  const REAL *weights = c->weights;
  NAME(vector) found[3 * H], other[H], dh[H], given[H], score = {0};
  NAME(vector) *dr = found, *du = dr + H, *dn = du + H;
  memset(dh, 0, sizeof dh);
  for (int64_t t = T - 1; t >= 0; t--) {
    const NAME(vector) *kept = (const NAME(vector) *)c->kept + (tile * T + t) * NAME(KEPT) * H;
    const NAME(vector) *r = kept, *u = r + H, *n = u + H, *before = n + H, *q = before + H;
    NAME(vector) score_sum = {0};
    NAME(to_lanes)((const REAL *)c->states_gradient + (from * T + t) * H, T * H, count, H, given);
    if (c->scores) NAME(to_lanes)((const REAL *)c->scores + from * T + t, T, count, 1, &score);
    for (int64_t j = 0; j < H; j++) {
      const NAME(vector) d = dh[j] + given[j], keep = (1 - score) * u[j], dkeep = d * (before[j] - n[j]);
      score_sum -= dkeep * u[j];
      dn[j] = d * (1 - keep) * (1 - n[j] * n[j]);
      du[j] = dkeep * (1 - score) * u[j] * (1 - u[j]);
      dh[j] = d * keep;
    }
    if (c->reset_after) {
      for (int64_t j = 0; j < H; j++) {
        other[j] = dn[j] * r[j];
        dr[j] = dn[j] * q[j] * r[j] * (1 - r[j]);
      }
      NAME(products)(weights + 2 * H, 3 * H, other, H, dh, H);
    } else {
      memset(other, 0, sizeof other);
      NAME(products)(weights + 2 * H, 3 * H, dn, H, other, H);
      for (int64_t j = 0; j < H; j++) {
        dr[j] = other[j] * before[j] * r[j] * (1 - r[j]);
        dh[j] += other[j] * r[j];
        other[j] = r[j] * before[j];
      }
    }
    NAME(products)(weights, 3 * H, found, 2 * H, dh, H);
    NAME(from_lanes)(found, count, 3 * H, (REAL *)c->gates_gradient + (from * T + t) * 3 * H, T * 3 * H);
    NAME(from_lanes)(other, count, H, (REAL *)c->other + (from * T + t) * H, T * H);
    if (c->scores) NAME(from_lanes)(&score_sum, count, 1, (REAL *)c->scores_gradient + from * T + t, T);
  }
  NAME(from_lanes)(dh, count, H, (REAL *)c->first_gradient + from * H, H);
}
