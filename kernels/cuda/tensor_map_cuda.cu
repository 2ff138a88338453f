#include "kernels/cuda/tensor_map.h"

#include <string>

#include "common/check.h"

namespace weft::kernels::cuda {
namespace {

using EncodeTiled = decltype(&cuTensorMapEncodeTiled);

// By the runtime, so that nothing links with the driver; nullptr where it has none.
EncodeTiled FindEncodeTiled() {
  constexpr unsigned kSince = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result;
  const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found,
                                                             kSince, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return nullptr;
  return reinterpret_cast<EncodeTiled>(found);
}

}  // namespace

Result<CUtensorMap> HeadTensorMap(std::string_view op, DType dtype, const HeadTensor& tensor,
                                  int rows, int columns) {
  WEFT_CHECK(DTypeSize(dtype) == 2, "a tensor map of other than 16-bit elements");
  static const EncodeTiled encode = FindEncodeTiled();
  if (encode == nullptr) {
    return UnavailableError(std::string(op) +
                            ": the driver has no cuTensorMapEncodeTiled; hint: "
                            "a driver of CUDA 12.0 or newer has it");
  }
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(tensor.head_dim),
                              static_cast<cuuint64_t>(tensor.heads),
                              static_cast<cuuint64_t>(tensor.tokens)};
  const cuuint64_t strides[] = {sizes[0] * 2, static_cast<cuuint64_t>(tensor.stride) * 2};
  const cuuint32_t box[] = {static_cast<cuuint32_t>(columns), 1, static_cast<cuuint32_t>(rows)};
  const cuuint32_t steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult encoded = encode(
      &map,
      dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3,
      const_cast<void*>(tensor.data), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
      columns == kBoxColumns ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (encoded != CUDA_SUCCESS) {
    return InternalError(std::string(op) + ": cuTensorMapEncodeTiled of " +
                         std::to_string(tensor.tokens) + " tokens of " +
                         std::to_string(tensor.heads) + " heads of " +
                         std::to_string(tensor.head_dim) + ": error " + std::to_string(encoded));
  }
  return map;
}

}  // namespace weft::kernels::cuda
