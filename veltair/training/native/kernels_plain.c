#define ISA plain
#define VECTOR_BYTES 16
#include "kernels.h"
