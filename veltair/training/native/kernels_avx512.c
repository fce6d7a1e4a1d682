#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")
#define ISA avx512
#define VECTOR_BYTES 64
#include "kernels.h"
