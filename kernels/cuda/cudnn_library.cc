#include "kernels/cuda/cudnn_library.h"

#include <utility>

#include "common/shared_library.h"

namespace weft::kernels::cuda {
namespace {

Result<const CudnnLibrary*> Load() {
  WEFT_ASSIGN_OR_RETURN(
      const SharedLibrary cudnn,
      SharedLibrary::Load(
          "WEFT_CUDNN_LIBRARY", "libcudnn.so.9",
          "cuDNN 9 comes with pip's nvidia-cudnn-cu13; WEFT_CUDNN_LIBRARY names its "
          "file where the loader does not find it"));
  static CudnnLibrary library;
  CudnnLibrary& l = library;
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnGetVersion", l.get_version));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnGetLastErrorString", l.get_last_error));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnCreate", l.create));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnDestroy", l.destroy));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnSetStream", l.set_stream));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendCreateDescriptor", l.create_descriptor));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendDestroyDescriptor", l.destroy_descriptor));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendFinalize", l.finalize));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendSetAttribute", l.set_attribute));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendGetAttribute", l.get_attribute));
  WEFT_RETURN_IF_ERROR(cudnn.Find("cudnnBackendExecute", l.execute));
  return &std::as_const(library);
}

}  // namespace

Result<const CudnnLibrary*> LoadCudnn() {
  static const Result<const CudnnLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::kernels::cuda
