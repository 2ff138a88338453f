#include "kernels/cuda/cusparse_library.h"

#include <utility>

#include "common/shared_library.h"

namespace weft::kernels::cuda {
namespace {

Result<const CusparseLibrary*> Load() {
  WEFT_ASSIGN_OR_RETURN(
      const SharedLibrary cusparse,
      SharedLibrary::Load(
          "WEFT_CUSPARSE_LIBRARY", "libcusparse.so.12",
          "cuSPARSE comes with the CUDA toolkit and with pip's nvidia-cusparse; "
          "WEFT_CUSPARSE_LIBRARY names its file where the loader does not find it"));
  static CusparseLibrary library;
  CusparseLibrary& l = library;
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseCreate", l.create));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseDestroy", l.destroy));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseSetStream", l.set_stream));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseCreateCsr", l.create_csr));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseDestroySpMat", l.destroy_sparse));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseCreateDnMat", l.create_dense));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseDestroyDnMat", l.destroy_dense));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseSpMM_bufferSize", l.spmm_buffer_size));
  WEFT_RETURN_IF_ERROR(cusparse.Find("cusparseSpMM", l.spmm));
  return &std::as_const(library);
}

}  // namespace

Result<const CusparseLibrary*> LoadCusparse() {
  static const Result<const CusparseLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::kernels::cuda
