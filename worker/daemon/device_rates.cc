#include "worker/daemon/device_rates.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <map>

#include "common/float8.h"
#include "common/json.h"
#include "common/model/precision.h"
#include "common/model/technique_products.h"
#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "common/text.h"
#include "kernels/cuda/copy_rate.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/transfer.h"
#include "kernels/linear/linear.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/daemon/program_output.h"

namespace weft::daemon {
namespace {

using Clock = std::chrono::steady_clock;
using Seconds = std::chrono::duration<double>;

struct GemmShape {
  int64_t m, n, k;
};
/// From products that hardly fill a GPU to those that reach its ceiling.
constexpr std::array<GemmShape, 6> kGemmShapes{{{256, 256, 256},
                                                {1024, 1024, 1024},
                                                {8192, 768, 768},
                                                {8192, 3072, 768},
                                                {4096, 4096, 4096},
                                                {8192, 8192, 8192}}};
/// Layers of MLPs whose 2:4 sparse products are measured: tokens, outputs, inputs.
constexpr std::array<GemmShape, 2> kSparseLayers{{{8192, 3072, 768}, {8192, 8192, 2048}}};
constexpr size_t kCopyBytes = size_t{256} << 20;

/// Runs enqueued back to back, so that what a launch costs the host is hidden as in training.
constexpr Seconds kEnough{0.03};
constexpr int kMostRuns = 1000;

/// Matrices on the device, filled with normal numbers, as in training: with equal ones, whose bits
/// do not change, its clocks would be higher.
class Matrices {
 public:
  explicit Matrices(const Stream& stream) : stream_(stream) {}

  Result<TensorView> New(DType dtype, int64_t rows, int64_t columns) {
    const auto bytes = static_cast<size_t>(rows * columns) * DTypeSize(dtype);
    WEFT_ASSIGN_OR_RETURN(kernels::cuda::DeviceMemory memory,
                          kernels::cuda::DeviceMemory::Allocate(stream_.device.index, bytes));
    const std::vector<std::byte>& block = BlockOf(dtype);
    for (size_t at = 0; at < bytes; at += block.size()) {
      WEFT_RETURN_IF_ERROR(
          kernels::cuda::CopyToDevice(stream_, static_cast<std::byte*>(memory.data()) + at,
                                      block.data(), std::min(block.size(), bytes - at)));
    }
    const TensorView view(memory.data(), dtype, {rows, columns}, stream_.device);
    held_.push_back(std::move(memory));
    return view;
  }

 private:
  /// A few numbers of that type, which are used again and again.
  static const std::vector<std::byte>& BlockOf(DType dtype) {
    static auto* const blocks = new std::map<DType, std::vector<std::byte>>;
    std::vector<std::byte>& block = (*blocks)[dtype];
    if (!block.empty()) return block;
    constexpr size_t kElements = size_t{1} << 18;
    block.resize(kElements * DTypeSize(dtype));
    PhiloxStream random({.seed = 1});
    for (size_t i = 0; i < kElements; ++i) {
      const auto value = static_cast<float>(random.Normal());
      if (dtype == DType::kF8E4M3) {
        const Float8E4M3 code = ToFloat8E4M3(value);
        std::memcpy(block.data() + i, &code, sizeof(code));
        continue;
      }
      WithFloatType(dtype, [&]<class T>() {
        const T number = FromFloat<T>(value);
        std::memcpy(block.data() + i * sizeof(T), &number, sizeof(T));
      });
    }
    return block;
  }

  const Stream stream_;
  std::vector<kernels::cuda::DeviceMemory> held_;
};

/// FLOP/s of products that `run` enqueues.
template <class Run>
Result<double> RateOf(kernels::cuda::StreamState& state, const GemmShape& shape, Run&& run) {
  double best = 0;
  for (int runs = 1; runs <= kMostRuns; runs *= 4) {
    auto begin = Clock::now();
    for (int i = 0; i < runs; ++i) WEFT_RETURN_IF_ERROR(run());
    WEFT_RETURN_IF_ERROR(state.Synchronize());
    Seconds took = Clock::now() - begin;
    best = std::max(best, runs / std::max(took.count(), 1e-9));
    if (took > kEnough) break;
  }
  return best * 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
}

Result<GemmRate> MeasureGemm(kernels::cuda::StreamState& state, const GemmShape& shape,
                             DType dtype) {
  const Stream stream = state.stream();
  Matrices matrices(stream);
  WEFT_ASSIGN_OR_RETURN(TensorView master, matrices.New(DType::kF32, shape.n, shape.k));
  kernels::LinearForwardArgs args;
  WEFT_ASSIGN_OR_RETURN(args.x, matrices.New(dtype, shape.m, shape.k));
  WEFT_ASSIGN_OR_RETURN(args.y, matrices.New(dtype, shape.m, shape.n));
  WEFT_ASSIGN_OR_RETURN(auto weight,
                        kernels::NewPackedWeight(stream.device, shape.n, shape.k, dtype));
  WEFT_RETURN_IF_ERROR(weight->Pack(stream, master));
  args.weight = weight.get();
  WEFT_ASSIGN_OR_RETURN(const double rate,
                        RateOf(state, shape, [&] { return LinearForward(stream, args); }));
  return GemmRate{std::string(GemmRateName(dtype)), shape.m, shape.n, shape.k, 1, rate};
}

/// The same of FP8 values, as the forward pass multiplies them.
Result<GemmRate> MeasureFp8(kernels::cuda::StreamState& state, const GemmShape& shape) {
  const Stream stream = state.stream();
  Matrices matrices(stream);
  kernels::MatmulFp8Args args;
  WEFT_ASSIGN_OR_RETURN(TensorView scale, matrices.New(DType::kF32, 1, 1));
  scale.shape = {1};
  WEFT_ASSIGN_OR_RETURN(args.a.codes, matrices.New(DType::kF8E4M3, shape.m, shape.k));
  WEFT_ASSIGN_OR_RETURN(args.b.codes, matrices.New(DType::kF8E4M3, shape.n, shape.k));
  WEFT_ASSIGN_OR_RETURN(args.c, matrices.New(DType::kBF16, shape.m, shape.n));
  args.a.inverse_scale = args.b.inverse_scale = scale;
  args.fast_sums = true;
  WEFT_ASSIGN_OR_RETURN(const double rate,
                        RateOf(state, shape, [&] { return MatmulFp8(stream, args); }));
  return GemmRate{"fp8", shape.m, shape.n, shape.k, 1, rate};
}

/// The products of an MLP's layer with 2:4 sparse weights in bf16, with what they compress and
/// estimate, in the FLOPs of dense ones.
Status MeasureSparseProducts(kernels::cuda::StreamState& state, const GemmShape& layer,
                             std::vector<GemmRate>& rates) {
  using namespace kernels;
  constexpr DType kType = DType::kBF16;
  const Stream stream = state.stream();
  Matrices matrices(stream);
  WEFT_ASSIGN_OR_RETURN(const TensorView weight, matrices.New(DType::kF32, layer.n, layer.k));
  WEFT_ASSIGN_OR_RETURN(const TensorView x, matrices.New(kType, layer.m, layer.k));
  WEFT_ASSIGN_OR_RETURN(const TensorView dx, matrices.New(kType, layer.m, layer.k));
  WEFT_ASSIGN_OR_RETURN(const TensorView dy, matrices.New(kType, layer.m, layer.n));
  WEFT_ASSIGN_OR_RETURN(const TensorView y, matrices.New(kType, layer.m, layer.n));
  WEFT_ASSIGN_OR_RETURN(const TensorView dweight, matrices.New(DType::kF32, layer.n, layer.k));
  // Takes the place of numbers of 16 bits.
  WEFT_ASSIGN_OR_RETURN(TensorView mask, matrices.New(DType::kF16, layer.n / 4, layer.k / 4));
  mask.dtype = DType::kU16;
  WEFT_RETURN_IF_ERROR(TransposableMask(stream, {.weight = weight, .mask = mask}));
  WEFT_ASSIGN_OR_RETURN(const auto sparse, NewSparseWeight(stream.device, layer.n, layer.k, kType));
  WEFT_RETURN_IF_ERROR(sparse->SetMask(stream, mask));
  WEFT_RETURN_IF_ERROR(sparse->Pack(stream, weight));
  const auto add = [&](GemmPass pass, const GemmShape& shape, const auto& product) -> Status {
    WEFT_ASSIGN_OR_RETURN(const double rate, RateOf(state, shape, product));
    rates.push_back(
        {TechniqueRateName("sparse24_", pass, kType), shape.m, shape.n, shape.k, 1, rate});
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(add(GemmPass::kForward, layer, [&] {
    return SparseForward(stream, {.x = x, .weight = sparse.get(), .y = y});
  }));
  WEFT_RETURN_IF_ERROR(add(GemmPass::kInputGradient, {layer.m, layer.k, layer.n}, [&] {
    return SparseBackwardInput(stream, {.dy = dy, .weight = sparse.get(), .dx = dx});
  }));
  // As in training, what multiplies draws the estimates.
  const MvueArgs draws = {.x = {}, .y = {}, .key = {}};
  return add(GemmPass::kWeightGradient, {layer.n, layer.k, layer.m}, [&] {
    return SparseBackwardWeight(
        stream, {.x = x, .dy = dy, .dweight = dweight, .accumulate = false, .estimate = &draws});
  });
}

}  // namespace

Result<std::vector<GemmRate>> MeasureProducts(int device) {
  WEFT_ASSIGN_OR_RETURN(auto state, kernels::cuda::StreamState::Create(device));
  const kernels::cuda::DeviceLimits& limits = state->limits();
  const bool fp8 = limits.major > 8 || (limits.major == 8 && limits.minor >= 9);
  std::vector<GemmRate> rates;
  for (const GemmShape& shape : kGemmShapes) {
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
      WEFT_ASSIGN_OR_RETURN(GemmRate rate, MeasureGemm(*state, shape, dtype));
      rates.push_back(std::move(rate));
    }
    if (!fp8) continue;
    WEFT_ASSIGN_OR_RETURN(GemmRate rate, MeasureFp8(*state, shape));
    rates.push_back(std::move(rate));
  }
  for (const GemmShape& layer : kSparseLayers) {
    WEFT_RETURN_IF_ERROR(MeasureSparseProducts(*state, layer, rates));
  }
  return rates;
}

Result<DeviceSpec> MeasureRates(int device) {
  DeviceSpec rates;
  WEFT_ASSIGN_OR_RETURN(rates.gemm, MeasureProducts(device));
  WEFT_ASSIGN_OR_RETURN(auto copies, kernels::cuda::MeasureCopies(device, kCopyBytes));
  rates.copy_bytes_per_second = copies.within;
  rates.upload_bytes_per_second = copies.upload;
  rates.download_bytes_per_second = copies.download;
  for (int peer = 0; peer < kernels::cuda::DeviceCount(); ++peer) {
    if (peer == device) continue;
    DeviceLink link;
    link.index = peer;
    WEFT_ASSIGN_OR_RETURN(link.bytes_per_second,
                          kernels::cuda::MeasurePeerCopy(device, peer, kCopyBytes));
    rates.links.push_back(link);
  }
  return rates;
}

Result<DeviceSpec> MeasureInProcess(const std::string& program,
                                    const std::vector<DeviceSpec>& devices, size_t which) {
  Result<std::string> output = OutputOf({program, "--measure-device", std::to_string(which)},
                                        EnvironmentWith(devices), std::chrono::seconds(60));
  if (!output.ok()) return output.status().WithContext("measure it");
  Result<Json> json = ParseJson(*output);
  if (!json.ok()) return UnavailableError("measuring it gave no result: " + ClipText(*output));
  return FromJson<DeviceSpec>(*json);
}

}  // namespace weft::daemon
