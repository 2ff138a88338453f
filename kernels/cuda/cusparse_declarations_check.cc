// Compiled where cuSPARSE's header is: our declarations are the same.

#include <cusparse.h>

#include "kernels/cuda/cusparse_library.h"
#include "kernels/cuda/declarations_check.h"

namespace weft::kernels::cuda {
namespace {

using C = CusparseLibrary;

WEFT_SAME_NUMBER(kNotTransposed, CUSPARSE_OPERATION_NON_TRANSPOSE);
WEFT_SAME_NUMBER(kTransposed, CUSPARSE_OPERATION_TRANSPOSE);
WEFT_SAME_NUMBER(kColumnMajor, CUSPARSE_ORDER_COL);
WEFT_SAME_NUMBER(kRowMajor, CUSPARSE_ORDER_ROW);
WEFT_SAME_NUMBER(kIndex32, CUSPARSE_INDEX_32I);
WEFT_SAME_NUMBER(kFromZero, CUSPARSE_INDEX_BASE_ZERO);
WEFT_SAME_NUMBER(kFloat, CUDA_R_32F);
WEFT_SAME_NUMBER(kHalf, CUDA_R_16F);
WEFT_SAME_NUMBER(kBFloat16, CUDA_R_16BF);
WEFT_SAME_NUMBER(kCsrAlgorithm3, CUSPARSE_SPMM_CSR_ALG3);

WEFT_SAME(get_error_string, cusparseGetErrorString);
WEFT_SAME(create, cusparseCreate);
WEFT_SAME(destroy, cusparseDestroy);
WEFT_SAME(set_stream, cusparseSetStream);
WEFT_SAME(create_csr, cusparseCreateCsr);
WEFT_SAME(destroy_sparse, cusparseDestroySpMat);
WEFT_SAME(create_dense, cusparseCreateDnMat);
WEFT_SAME(destroy_dense, cusparseDestroyDnMat);
WEFT_SAME(spmm_buffer_size, cusparseSpMM_bufferSize);
WEFT_SAME(spmm, cusparseSpMM);

}  // namespace
}  // namespace weft::kernels::cuda
