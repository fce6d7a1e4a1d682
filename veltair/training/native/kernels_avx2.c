#pragma GCC target("avx2,fma")
#define ISA avx2
#define VECTOR_BYTES 32
#include "kernels.h"
