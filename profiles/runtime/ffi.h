/* The part of TVM-FFI's stable C ABI (tvm/ffi/c_api.h) that is used here: no header of TVM is needed to build. */
#pragma once
#include <stdint.h>

typedef struct {
  int32_t type_index; /* 0: nothing; 1: an integer */
  uint32_t padding;
  union {
    int64_t integer;
    void *pointer;
  };
} ffi_any;

/* These give 0, or -1 with the error kept for the calling thread. */
int TVMFFIFunctionCall(void *function, const ffi_any *arguments, int32_t count, ffi_any *result);
int TVMFFIObjectDecRef(void *object);
int TVMFFIEnvModRegisterContextSymbol(const char *name, void *symbol);

void TVMFFIErrorSetRaisedFromCStr(const char *kind, const char *message);
void TVMFFIErrorMoveFromRaised(void **error);
void TVMFFIErrorSetRaised(void *error);

#define FFI_EXPORT(name) \
  __attribute__((visibility("default"))) int __tvm_ffi_##name(void *self, const ffi_any *arguments, int32_t count, \
                                                              ffi_any *result)
