#include "kernels/cuda/cusparselt_library.h"

#include <string>
#include <utility>

#include "common/shared_library.h"

namespace weft::kernels::cuda {
namespace {

constexpr const char* kHint =
    "cuSPARSELt 0.8 to 0.10 comes with pip's nvidia-cusparselt-cu13; WEFT_CUSPARSELT_LIBRARY names "
    "its file where the loader does not find it";

// The sizes of what it describes, and its functions, are those of these versions.
Status CheckVersion(const CusparseLtLibrary& library) {
  int major = -1, minor = -1;
  (void)library.get_property(CusparseLtLibrary::kMajorVersion, &major);
  (void)library.get_property(CusparseLtLibrary::kMinorVersion, &minor);
  if (major == 0 && minor >= 8 && minor <= 10) return OkStatus();
  return UnavailableError("cuSPARSELt " + std::to_string(major) + "." + std::to_string(minor) +
                          " is not one whose declarations are known; hint: " + kHint);
}

Result<const CusparseLtLibrary*> Load() {
  WEFT_ASSIGN_OR_RETURN(
      const SharedLibrary found,
      SharedLibrary::Load("WEFT_CUSPARSELT_LIBRARY", "libcusparseLt.so.0", kHint));
  static CusparseLtLibrary library;
  CusparseLtLibrary& l = library;
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtGetProperty", l.get_property));
  WEFT_RETURN_IF_ERROR(CheckVersion(l));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtGetErrorString", l.get_error_string));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtInit", l.init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtDestroy", l.destroy));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtDenseDescriptorInit", l.dense_init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtStructuredDescriptorInit", l.structured_init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatDescriptorDestroy", l.matrix_destroy));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulDescriptorInit", l.product_init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulAlgSelectionInit", l.selection_init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulAlgSelectionDestroy", l.selection_destroy));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulPlanInit", l.plan_init));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulPlanDestroy", l.plan_destroy));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmulGetWorkspace", l.get_workspace));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtSpMMACompressedSize2", l.compressed_size));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtSpMMACompress2", l.compress));
  WEFT_RETURN_IF_ERROR(found.Find("cusparseLtMatmul", l.matmul));
  return &std::as_const(library);
}

}  // namespace

Result<const CusparseLtLibrary*> LoadCusparseLt() {
  static const Result<const CusparseLtLibrary*> loaded = Load();
  return loaded;
}

}  // namespace weft::kernels::cuda
