#pragma once

#include <cstddef>
#include <cstdint>

#include "common/status.h"

struct CUstream_st;

namespace weft::kernels::cuda {

/// The functions and numbers of cuSPARSELt 0.8 to 0.10 that 2:4 products need, found at run time;
/// cusparselt_declarations_check.cc holds this to cusparseLt.h where it is. What the library
/// describes lies in memory of the caller: an Opaque each, which stays where it is until it is
/// destroyed. Matrices outlive the products that are of them, and these their plans. Functions that
/// return an int return 0 when they succeed. Operations, orders and types have the numbers of
/// CusparseLibrary.
struct CusparseLtLibrary {
  struct alignas(16) Opaque {
    uint8_t data[512];
  };

  enum Sparsity : int { kHalf = 0 };
  enum Compute : int { kFloatSums = 2 };
  enum Algorithm : int { kDefaultAlgorithm = 0 };
  enum Property : int { kMajorVersion = 0, kMinorVersion = 1 };

  int (*get_property)(int property, int* value);
  const char* (*get_error_string)(int status);
  int (*init)(Opaque* handle);  ///< On the current device.
  int (*destroy)(const Opaque* handle);
  int (*dense_init)(const Opaque* handle, Opaque* matrix, int64_t rows, int64_t columns,
                    int64_t leading, uint32_t alignment, int value_type, int order);
  int (*structured_init)(const Opaque* handle, Opaque* matrix, int64_t rows, int64_t columns,
                         int64_t leading, uint32_t alignment, int value_type, int order,
                         int sparsity);
  int (*matrix_destroy)(const Opaque* matrix);
  int (*product_init)(const Opaque* handle, Opaque* product, int a_operation, int b_operation,
                      const Opaque* a, const Opaque* b, const Opaque* c, const Opaque* d,
                      int compute_type);
  int (*selection_init)(const Opaque* handle, Opaque* selection, const Opaque* product,
                        int algorithm);
  int (*selection_destroy)(const Opaque* selection);
  int (*plan_init)(const Opaque* handle, Opaque* plan, const Opaque* product,
                   const Opaque* selection);
  int (*plan_destroy)(const Opaque* plan);
  int (*get_workspace)(const Opaque* handle, const Opaque* plan, size_t* bytes);
  int (*compressed_size)(const Opaque* handle, const Opaque* matrix, size_t* bytes,
                         size_t* buffer_bytes);
  int (*compress)(const Opaque* handle, const Opaque* matrix, int is_a, int operation,
                  const void* dense, void* compressed, void* buffer, CUstream_st* stream);
  int (*matmul)(const Opaque* handle, const Opaque* plan, const void* alpha, const void* a,
                const void* b, const void* beta, const void* c, void* d, void* workspace,
                CUstream_st** streams, int32_t stream_count);
};

/// Loads libcusparseLt.so.0 (the file WEFT_CUSPARSELT_LIBRARY names, when set), once. kUnavailable
/// says what is missing, or that the library has another version.
Result<const CusparseLtLibrary*> LoadCusparseLt();

}  // namespace weft::kernels::cuda
