#pragma once

#include <cstddef>
#include <cstdint>

#include "common/status.h"

struct cusparseContext;
struct cusparseSpMatDescr;
struct cusparseDnMatDescr;
struct CUstream_st;

namespace weft::kernels::cuda {

/// The functions and numbers of cuSPARSE 12 (of CUDA 12 and 13) that products in CSR need, found at
/// run time: programs start on machines that have no cuSPARSE. Declared here, since its header need
/// not be there either; cusparse_declarations_check.cc holds this to cusparse.h where it is.
/// Functions that return an int return 0 when they succeed.
struct CusparseLibrary {
  using Handle = cusparseContext*;
  using SparseMatrix = cusparseSpMatDescr*;
  using DenseMatrix = cusparseDnMatDescr*;

  enum Operation : int { kNotTransposed = 0, kTransposed = 1 };
  enum Order : int { kColumnMajor = 1, kRowMajor = 2 };
  enum IndexType : int { kIndex32 = 2 };
  enum IndexBase : int { kFromZero = 0 };
  enum DataType : int { kFloat = 0, kHalf = 2, kBFloat16 = 14 };
  enum SpMMAlgorithm : int { kCsrAlgorithm3 = 12 };

  const char* (*get_error_string)(int status);
  int (*create)(Handle* handle);  ///< On the current device.
  int (*destroy)(Handle handle);
  int (*set_stream)(Handle handle, CUstream_st* stream);
  int (*create_csr)(SparseMatrix* matrix, int64_t rows, int64_t columns, int64_t count,
                    void* row_offsets, void* column_indices, void* values, int offset_type,
                    int index_type, int index_base, int value_type);
  int (*destroy_sparse)(const cusparseSpMatDescr* matrix);
  int (*create_dense)(DenseMatrix* matrix, int64_t rows, int64_t columns, int64_t leading,
                      void* values, int value_type, int order);
  int (*destroy_dense)(const cusparseDnMatDescr* matrix);
  int (*spmm_buffer_size)(Handle handle, int a_operation, int b_operation, const void* alpha,
                          const cusparseSpMatDescr* a, const cusparseDnMatDescr* b,
                          const void* beta, DenseMatrix c, int compute_type, int algorithm,
                          size_t* bytes);
  int (*spmm)(Handle handle, int a_operation, int b_operation, const void* alpha,
              const cusparseSpMatDescr* a, const cusparseDnMatDescr* b, const void* beta,
              DenseMatrix c, int compute_type, int algorithm, void* buffer);
};

/// Loads libcusparse.so.12 (the file WEFT_CUSPARSE_LIBRARY names, when set), once. kUnavailable
/// says what is missing.
Result<const CusparseLibrary*> LoadCusparse();

}  // namespace weft::kernels::cuda
