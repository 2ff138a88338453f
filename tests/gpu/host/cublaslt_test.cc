// That the host's cuBLASLt refuses what the library refuses, and how Gemm() uses it.

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cublasLt.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/linear/linear.h"
#include "tests/gpu/host/cublaslt_count.h"

namespace weft::kernels::cuda {
namespace {

using ::testing::HasSubstr;

// A product D [8, 4] = A [8, 16] B [16, 4] by columns, which is correct until a test changes it.
struct Product {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t a, b, d;
  cublasLtMatmulPreferenceOpaque_t preference;
  alignas(256) float a_data[8 * 16] = {};
  alignas(256) float b_data[16 * 4] = {};
  alignas(256) float d_data[8 * 4] = {};
  alignas(256) float vector[16] = {};
  alignas(256) uint16_t aux_data[8 * 4] = {};
  alignas(256) uint8_t workspace[1024];
  size_t workspace_bytes = 1024;
  const float* a_at = a_data;
  float* d_at = d_data;
  cublasLtHandle_t handle = nullptr;
  CUstream_st stream;

  Product() {
    cublasLtCreate(&handle);
    cublasLtMatmulDescInit(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    cublasLtMatrixLayoutInit(&a, CUDA_R_32F, 8, 16, 8);
    cublasLtMatrixLayoutInit(&b, CUDA_R_32F, 16, 4, 16);
    cublasLtMatrixLayoutInit(&d, CUDA_R_32F, 8, 4, 8);
    cublasLtMatmulPreferenceInit(&preference);
    preference.workspace = 1024;
  }
  ~Product() { cublasLtDestroy(handle); }
  Product(const Product&) = delete;
  Product& operator=(const Product&) = delete;

  // What the library says to it.
  std::string Run(const cublasLtMatmulAlgo_t* other = nullptr) {
    const std::optional<cublasLtMatmulAlgo_t> own = Find();
    if (!own) return found_;
    const float one = 1, zero = 0;
    return cublasLtGetStatusString(
        cublasLtMatmul(handle, &operation, &one, a_at, &a, b_data, &b, &zero, d_at, &d, d_at, &d,
                       other != nullptr ? other : &*own, workspace, workspace_bytes, &stream));
  }
  std::optional<cublasLtMatmulAlgo_t> Find() {
    cublasLtMatmulHeuristicResult_t result;
    int count = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(handle, &operation, &a, &b, &d, &d,
                                                                 &preference, 1, &result, &count);
    found_ = cublasLtGetStatusString(status);
    return count == 1 ? std::optional(result.algo) : std::nullopt;
  }

 private:
  std::string found_;
};

TEST(HostCublasLt, MultipliesByColumns) {
  Product p;
  for (int i = 0; i < 8 * 16; ++i) p.a_data[i] = static_cast<float>(i % 8);
  for (int i = 0; i < 16 * 4; ++i) p.b_data[i] = static_cast<float>(i / 16);
  EXPECT_EQ(p.Run(), "CUBLAS_STATUS_SUCCESS");
  for (int i = 0; i < 8 * 4; ++i) EXPECT_EQ(p.d_data[i], 16.0f * (i % 8) * (i / 8));
}

TEST(HostCublasLt, RefusesWhatTheLibraryRefuses) {
  const auto refusal = [](auto&& change) {
    Product p;
    change(p);
    return p.Run();
  };
  EXPECT_THAT(refusal([](Product& p) { p.workspace_bytes = 8; }), HasSubstr("workspace is too"));
  EXPECT_THAT(refusal([](Product& p) { p.a_at = p.a_data + 1; }), HasSubstr("A is less aligned"));
  EXPECT_THAT(refusal([](Product& p) { p.d_at = p.a_data; }), HasSubstr("D overlaps"));
  EXPECT_THAT(refusal([](Product& p) { p.a.stride = 7; }), HasSubstr("A overlaps itself"));
  EXPECT_THAT(refusal([](Product& p) { p.b.rows = 15; }), HasSubstr("sizes"));
  EXPECT_THAT(refusal([](Product& p) { p.a.type = CUDA_R_16BF; }), HasSubstr("types"));
  EXPECT_THAT(refusal([](Product& p) { p.operation.scale = CUDA_R_16F; }), HasSubstr("f32"));
  EXPECT_THAT(refusal([](Product& p) { p.operation.epilogue = CUBLASLT_EPILOGUE_BIAS; }),
              HasSubstr("no vector"));
  EXPECT_THAT(refusal([](Product& p) {
                p.operation.epilogue = CUBLASLT_EPILOGUE_BGRADB;
                p.operation.bias = p.vector;
              }),
              HasSubstr("transposed B"));
  // GELU of a result in bf16, with its input.
  const auto gelu = [](Product& p) {
    p.operation.epilogue = CUBLASLT_EPILOGUE_GELU_AUX;
    p.operation.aux = p.aux_data;
    p.operation.aux_stride = 8;
    for (auto* layout : {&p.a, &p.b, &p.d}) layout->type = CUDA_R_16BF;
  };
  EXPECT_EQ(refusal(gelu), "CUBLAS_STATUS_SUCCESS");
  const auto gelu_refusal = [&](auto&& change) {
    return refusal([&](Product& p) {
      gelu(p);
      change(p);
    });
  };
  EXPECT_THAT(gelu_refusal([](Product& p) { p.operation.aux = nullptr; }),
              HasSubstr("no auxiliary matrix"));
  EXPECT_THAT(gelu_refusal([](Product& p) { p.operation.aux_stride = 12; }),
              HasSubstr("multiples of 8"));
  EXPECT_THAT(gelu_refusal([](Product& p) { p.operation.aux_stride = 0; }), HasSubstr("too short"));
  EXPECT_THAT(gelu_refusal([](Product& p) { p.operation.aux = p.d_data; }),
              HasSubstr("overlaps another"));
  EXPECT_THAT(gelu_refusal([](Product& p) { p.operation.aux = p.aux_data + 1; }),
              HasSubstr("GELU with these alignments"));
  EXPECT_THAT(
      gelu_refusal([](Product& p) { p.operation.epilogue = CUBLASLT_EPILOGUE_GELU_AUX_BIAS; }),
      HasSubstr("no vector"));
  // FP8 wants the sum innermost in both.
  const auto fp8 = [](Product& p) {
    p.operation.a_form = CUBLAS_OP_T;
    cublasLtMatrixLayoutInit(&p.a, CUDA_R_8F_E4M3, 32, 16, 32);
    cublasLtMatrixLayoutInit(&p.b, CUDA_R_8F_E5M2, 32, 1, 32);
    cublasLtMatrixLayoutInit(&p.d, CUDA_R_32F, 16, 1, 16);
  };
  EXPECT_EQ(refusal(fp8), "CUBLAS_STATUS_SUCCESS");
  const auto fp8_refusal = [&](auto&& change) {
    return refusal([&](Product& p) {
      fp8(p);
      change(p);
    });
  };
  EXPECT_THAT(fp8_refusal([](Product& p) { p.a.type = CUDA_R_8F_E5M2; }), HasSubstr("E5M2 times"));
  EXPECT_THAT(fp8_refusal([](Product& p) { p.b.type = CUDA_R_32F; }), HasSubstr("FP8 kernels"));
  EXPECT_THAT(fp8_refusal([](Product& p) { p.a.rows = p.b.rows = 24; }), HasSubstr("of 16"));
  EXPECT_THAT(fp8_refusal([](Product& p) {
                p.operation.a_form = CUBLAS_OP_N;
                std::swap(p.a.rows, p.a.columns);
              }),
              HasSubstr("A transposed"));
  EXPECT_THAT(fp8_refusal([](Product& p) {
                p.a_at = p.a_data + 1;
                p.preference.alignments[0] = 4;
              }),
              HasSubstr("multiples of 16"));
  Product other;
  other.a.stride = other.a.rows = other.d.rows = other.d.stride = 4;
  const auto algorithm = other.Find();
  ASSERT_TRUE(algorithm);
  EXPECT_THAT(Product().Run(&*algorithm), HasSubstr("another product"));
}

TEST(GemmPlans, AreFoundOncePerProduct) {
  auto state = StreamState::Create(0);
  ASSERT_TRUE(state.ok());
  auto memory = DeviceMemory::Allocate(0, 1 << 16);
  ASSERT_TRUE(memory.ok());
  const std::vector<uint8_t> zeros(1 << 16);
  ASSERT_TRUE(memory->CopyFrom(zeros.data(), zeros.size()).ok());
  const Stream stream = (*state)->stream();
  const auto view = [&](int64_t offset, Shape shape) {
    return TensorView(static_cast<char*>(memory->data()) + offset, DType::kF32, shape,
                      stream.device);
  };
  auto weight = NewPackedWeight(stream.device, 8, 16, DType::kF32);
  ASSERT_TRUE(weight.ok());
  ASSERT_TRUE((*weight)->Pack(stream, view(0, {8, 16})).ok());
  const auto run = [&](int64_t rows, int64_t offset) {
    const int64_t before = host_cuda::CublasLtHeuristics();
    const Status status = LinearForward(
        stream,
        {.x = view(offset, {rows, 16}), .weight = weight->get(), .y = view(1 << 15, {rows, 8})});
    EXPECT_EQ(status.ToString(), "OK");
    return host_cuda::CublasLtHeuristics() - before;
  };
  EXPECT_EQ(run(4, 4096), 1);
  EXPECT_EQ(run(4, 4096), 0);
  EXPECT_EQ(run(4, 8192), 0);
  EXPECT_EQ(run(5, 4096), 1);
  EXPECT_EQ(run(4, 4096 + 16), 1) << "less aligned";
  EXPECT_EQ(run(4, 8192 + 16), 0);
}

TEST(GemmPlans, LeaveGeluToTheLibraryInItsTanhFormFromHopperOn) {
  const std::vector<uint8_t> zeros(1 << 16);
  const auto fused = [&](int newest, DType dtype, GeluForm form, int64_t width) {
    auto state = StreamState::Create(0, {.newest = newest});
    auto memory = DeviceMemory::Allocate(0, 1 << 16);
    EXPECT_TRUE(state.ok() && memory.ok());
    EXPECT_TRUE(memory->CopyFrom(zeros.data(), zeros.size()).ok());
    const Stream stream = (*state)->stream();
    const auto view = [&](int part, Shape shape) {
      return TensorView(static_cast<char*>(memory->data()) + part * 4096, dtype, shape,
                        stream.device);
    };
    const int64_t before = host_cuda::CublasLtGelus();
    auto up = NewPackedWeight(stream.device, width, 16, dtype);
    auto down = NewPackedWeight(stream.device, 16, width, dtype);
    EXPECT_TRUE(up.ok() && down.ok());
    TensorView master = view(0, {width, 16});
    master.dtype = DType::kF32;
    EXPECT_TRUE((*up)->Pack(stream, master).ok());
    master.shape = {16, width};
    master.row_stride = width;
    EXPECT_TRUE((*down)->Pack(stream, master).ok());
    EXPECT_TRUE(LinearForward(stream, {.x = view(1, {4, 16}),
                                       .weight = up->get(),
                                       .y = view(2, {4, width}),
                                       .active = view(3, {4, width}),
                                       .gelu = form})
                    .ok());
    EXPECT_TRUE(LinearBackwardInput(stream, {.dy = view(1, {4, 16}),
                                             .weight = down->get(),
                                             .dx = view(4, {4, width}),
                                             .before = view(2, {4, width}),
                                             .active = view(5, {4, width}),
                                             .gelu = form})
                    .ok());
    EXPECT_TRUE((*state)->Synchronize().ok());
    return host_cuda::CublasLtGelus() - before;
  };
  EXPECT_EQ(fused(9, DType::kBF16, GeluForm::kTanh, 24), 2);
  EXPECT_EQ(fused(9, DType::kF16, GeluForm::kTanh, 24), 2);
  EXPECT_EQ(fused(9, DType::kBF16, GeluForm::kErf, 24), 0);
  EXPECT_EQ(fused(9, DType::kBF16, GeluForm::kTanh, 20), 0) << "rows of 20";
  EXPECT_EQ(fused(9, DType::kF32, GeluForm::kTanh, 24), 0) << "no such kernels";
  EXPECT_EQ(fused(8, DType::kBF16, GeluForm::kTanh, 24), 0);
}

}  // namespace
}  // namespace weft::kernels::cuda
