#include "kernels/linear/product_check.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace weft::kernels::cpu {
namespace {

template <class T>
float At(const void* data, int64_t index) {
  return ToFloat(static_cast<const T*>(data)[index]);
}

Status Multiply(const MatmulShape& shape, int64_t summed, const void* a, const MatmulRight& b,
                void* c) {
  for (int64_t i = 0; i < shape.m; ++i) {
    for (int64_t j = 0; j < shape.n; ++j) {
      float& to = static_cast<float*>(c)[i * shape.c_stride + j];
      if (!shape.accumulate) to = 0;
      for (int64_t k = 0; k < summed; ++k) {
        const int64_t from = shape.a_transposed ? k * shape.a_stride + i : i * shape.a_stride + k;
        to += At<BFloat16>(a, from) * At<BFloat16>(b.data, k * shape.b_stride + j);
      }
    }
  }
  return OkStatus();
}

TEST(ProductCheck, FindsALibraryThatLeavesOutTheEndOfASum) {
  EXPECT_EQ(CheckProducts([](const MatmulShape& shape, const void* a, const MatmulRight& b,
                             const float*, void* c) { return Multiply(shape, shape.k, a, b, c); }),
            "");
  for (int64_t wrong : {63, 64, 100}) {
    EXPECT_NE(CheckProducts([wrong](const MatmulShape& shape, const void* a, const MatmulRight& b,
                                    const float*, void* c) {
                return Multiply(shape, shape.k - (shape.k == wrong ? 1 : 0), a, b, c);
              }),
              "");
  }
}

TEST(ProductCheck, SaysWhatTheLibraryRefuses) {
  EXPECT_EQ(CheckProducts([](const MatmulShape&, const void*, const MatmulRight&, const float*,
                             void*) { return InternalError("no such product"); }),
            "INTERNAL: no such product");
}

}  // namespace
}  // namespace weft::kernels::cpu
