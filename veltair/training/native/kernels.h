/* All kernels for one instruction set and both types. The including file sets the target, ISA and VECTOR_BYTES. */
#include <math.h>
#include <string.h>

#include "calls.h"

#define JOIN_(a, b, c) a##_##b##_##c
#define JOIN(a, b, c) JOIN_(a, b, c)
#define NAME(function) JOIN(function, REAL, ISA)

#define REAL float
#define INTEGER int32_t
#define SQRT sqrtf
#include "bag_kernels.h"
#include "sum_kernels.h"
#include "recurrent_kernels.h"
#undef REAL
#undef INTEGER
#undef SQRT

#define REAL double
#define INTEGER int64_t
#define SQRT sqrt
#define DOUBLE
#include "bag_kernels.h"
#include "sum_kernels.h"
#include "recurrent_kernels.h"
