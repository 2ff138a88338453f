#include "kernels/cuda/cudnn_library.h"

#include <dlfcn.h>

#include <cstdlib>
#include <string>
#include <utility>

namespace weft::kernels::cuda {
namespace {

Status Missing(const std::string& what) {
  const char* reason = dlerror();
  return UnavailableError(what + (reason != nullptr ? std::string(": ") + reason : "") +
                          "; hint: cuDNN 9 comes with pip's nvidia-cudnn-cu13; WEFT_CUDNN_LIBRARY "
                          "names its file where the loader does not find it");
}

template <class Function>
Status Find(void* library, const char* name, Function& function) {
  void* const symbol = dlsym(library, name);
  if (symbol == nullptr) return Missing(std::string("looking for ") + name);
  function = reinterpret_cast<Function>(symbol);
  return OkStatus();
}

Result<const CudnnLibrary*> Load() {
  const char* named = std::getenv("WEFT_CUDNN_LIBRARY");
  const char* file = named != nullptr ? named : "libcudnn.so.9";
  void* const cudnn = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (cudnn == nullptr) return Missing(std::string("loading ") + file);
  static CudnnLibrary library;
  CudnnLibrary& l = library;
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnGetVersion", l.get_version));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnGetLastErrorString", l.get_last_error));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnCreate", l.create));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnDestroy", l.destroy));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnSetStream", l.set_stream));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendCreateDescriptor", l.create_descriptor));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendDestroyDescriptor", l.destroy_descriptor));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendFinalize", l.finalize));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendSetAttribute", l.set_attribute));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendGetAttribute", l.get_attribute));
  WEFT_RETURN_IF_ERROR(Find(cudnn, "cudnnBackendExecute", l.execute));
  return &std::as_const(library);
}

}  // namespace

Result<const CudnnLibrary*> LoadCudnn() {
  static const Result<const CudnnLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::kernels::cuda
