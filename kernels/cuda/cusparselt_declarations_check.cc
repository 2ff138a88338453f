// Compiled where cuSPARSELt's header is: our declarations are the same, of versions that we load.

#include <cusparseLt.h>

#include "kernels/cuda/cusparselt_library.h"
#include "kernels/cuda/declarations_check.h"

#if CUSPARSELT_VERSION >= 800 && CUSPARSELT_VERSION < 1100

namespace weft::kernels::cuda {

using C = CusparseLtLibrary;

template <class T>
constexpr bool kIsOpaque = __is_same(T, cusparseLtHandle_t) ||
                           __is_same(T, cusparseLtMatDescriptor_t) ||
                           __is_same(T, cusparseLtMatmulDescriptor_t) ||
                           __is_same(T, cusparseLtMatmulAlgSelection_t) ||
                           __is_same(T, cusparseLtMatmulPlan_t);

template <class T>
requires kIsOpaque<T>
struct Ours<T*> {
  using Type = C::Opaque*;
  static_assert(sizeof(T) == sizeof(C::Opaque) && alignof(T) == alignof(C::Opaque));
};
template <class T>
requires kIsOpaque<T>
struct Ours<const T*> {
  using Type = const C::Opaque*;
};

WEFT_SAME_NUMBER(kHalf, CUSPARSELT_SPARSITY_50_PERCENT);
WEFT_SAME_NUMBER(kFloatSums, CUSPARSE_COMPUTE_32F);
WEFT_SAME_NUMBER(kDefaultAlgorithm, CUSPARSELT_MATMUL_ALG_DEFAULT);
WEFT_SAME_NUMBER(kMajorVersion, MAJOR_VERSION);
WEFT_SAME_NUMBER(kMinorVersion, MINOR_VERSION);

WEFT_SAME(get_property, cusparseLtGetProperty);
WEFT_SAME(get_error_string, cusparseLtGetErrorString);
WEFT_SAME(init, cusparseLtInit);
WEFT_SAME(destroy, cusparseLtDestroy);
WEFT_SAME(dense_init, cusparseLtDenseDescriptorInit);
WEFT_SAME(structured_init, cusparseLtStructuredDescriptorInit);
WEFT_SAME(matrix_destroy, cusparseLtMatDescriptorDestroy);
WEFT_SAME(product_init, cusparseLtMatmulDescriptorInit);
WEFT_SAME(selection_init, cusparseLtMatmulAlgSelectionInit);
WEFT_SAME(selection_destroy, cusparseLtMatmulAlgSelectionDestroy);
WEFT_SAME(plan_init, cusparseLtMatmulPlanInit);
WEFT_SAME(plan_destroy, cusparseLtMatmulPlanDestroy);
WEFT_SAME(get_workspace, cusparseLtMatmulGetWorkspace);
WEFT_SAME(compressed_size, cusparseLtSpMMACompressedSize2);
WEFT_SAME(compress, cusparseLtSpMMACompress2);
WEFT_SAME(matmul, cusparseLtMatmul);

}  // namespace weft::kernels::cuda

#endif
