#include "worker/daemon/probe.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <string_view>
#include <thread>
#include <vector>

#include "common/env.h"
#include "common/json.h"
#include "common/log.h"
#include "common/model/precision.h"
#include "common/model/technique_products.h"
#include "common/rng.h"
#include "common/spec/spec_json.h"
#include "common/version.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/linear/linear.h"
#include "kernels/sparse24/sparse24.h"
#include "kernels/sparse24_mask/sparse24_mask.h"
#include "kernels/sparse24_mvue/sparse24_mvue.h"
#include "worker/daemon/link_rate.h"

namespace weft::daemon {
namespace {

using kernels::cpu::SetThreads;
using Seconds = std::chrono::duration<double>;

/// A measurement goes on until it has taken this long and has had this many runs, but not past the
/// limit; its best run counts, so that other work on the machine hardly shows.
constexpr Seconds kEnough{0.012};
constexpr int kRuns = 5;
constexpr Seconds kLimit{0.06};

/// The shortest run after one to warm up.
template <class Fn>
double BestSeconds(Fn&& fn) {
  fn();
  double best = 1e30;
  Seconds total{0};
  for (int runs = 0; total < kEnough || (runs < kRuns && total < kLimit); ++runs) {
    auto begin = std::chrono::steady_clock::now();
    fn();
    Seconds took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
    total += took;
  }
  return std::max(best, 1e-9);
}

struct GemmShape {
  int64_t m, n, k;
};
/// From the small products of a toy model to those that reach the processor's ceiling.
constexpr std::array<GemmShape, 5> kGemmShapes{
    {{64, 128, 128}, {256, 256, 256}, {256, 1024, 256}, {512, 512, 512}, {512, 1536, 512}}};

/// Layers of an MLP, up and down.
constexpr std::array<GemmShape, 2> kSparseLayers{{{512, 1536, 512}, {512, 512, 1536}}};
/// One whose weights fill the caches, where sparse products gain less. Dense and 2:4 sparse, in f32
/// alone, so that measuring stays short.
constexpr GemmShape kWideLayer{256, 2048, 2048};

Result<GemmRate> MeasureGemm(const GemmShape& shape, DType dtype, int threads) {
  using namespace kernels;
  // Random, as in training: with equal numbers, whose bits do not change, matrix units run faster.
  PhiloxStream rng({.seed = 1});
  const auto fill = [&rng](std::vector<float>& values) {
    for (float& value : values) value = static_cast<float>(rng.Uniform()) - 0.5f;
  };
  std::vector<float> master(static_cast<size_t>(shape.n * shape.k));
  std::vector<float> x(static_cast<size_t>(shape.m * shape.k));
  std::vector<float> y(static_cast<size_t>(shape.m * shape.n));
  fill(master);
  fill(x);
  std::vector<BFloat16> narrow(x.size());
  std::transform(x.begin(), x.end(), narrow.begin(), ToBFloat16);
  Stream stream;
  WEFT_ASSIGN_OR_RETURN(auto weight, NewPackedWeight(Device{}, shape.n, shape.k, dtype));
  WEFT_RETURN_IF_ERROR(weight->Pack(stream, {master.data(), DType::kF32, {shape.n, shape.k}}));
  LinearForwardArgs args;
  if (dtype == DType::kBF16) {
    args.x = {narrow.data(), dtype, {shape.m, shape.k}};
  } else {
    args.x = {x.data(), dtype, {shape.m, shape.k}};
  }
  args.weight = weight.get();
  args.y = {y.data(), dtype, {shape.m, shape.n}};
  Status status;
  double seconds = BestSeconds([&] { status = LinearForward(stream, args); });
  WEFT_RETURN_IF_ERROR(status);
  double flops = 2.0 * static_cast<double>(shape.m * shape.n * shape.k);
  return GemmRate{
      std::string(GemmRateName(dtype)), shape.m, shape.n, shape.k, threads, flops / seconds};
}

/// A layer of an MLP with sparse weights, and what its products read and write.
class SparseLayer {
 public:
  SparseLayer(const GemmShape& shape, DType dtype)
      : shape_(shape),
        dtype_(dtype),
        weight_(Random(shape.n, shape.k)),
        bits_(weight_.size() / 16),
        x_(Random(shape.m, shape.k)),
        dy_(Random(shape.m, shape.n)),
        result_(static_cast<size_t>(shape.m * std::max(shape.n, shape.k))),
        dweight_(weight_.size()) {
    Narrow(x_);
    Narrow(dy_);
  }

  TensorView weight() { return {weight_.data(), DType::kF32, {shape_.n, shape_.k}}; }
  /// To be filled before Measure().
  TensorView mask() { return {bits_.data(), DType::kU16, {shape_.n / 4, shape_.k / 4}}; }
  std::vector<uint16_t>& bits() { return bits_; }

  /// Adds the rates of the three products, in the FLOPs of dense ones. `weight_gradient` gets x,
  /// dy, the packed weight and the gradient.
  template <class WeightGradient>
  Status Measure(std::string_view rate_name, int threads, const WeightGradient& weight_gradient,
                 WorkerProfile& profile) {
    using namespace kernels;
    const auto& [m, n, k] = shape_;
    WEFT_ASSIGN_OR_RETURN(const auto sparse, NewSparseWeight(Device{}, n, k, dtype_));
    WEFT_RETURN_IF_ERROR(sparse->SetMask(stream_, mask()));
    WEFT_RETURN_IF_ERROR(sparse->Pack(stream_, weight()));
    const TensorView x(x_.data(), dtype_, {m, k}), dy(dy_.data(), dtype_, {m, n});
    const TensorView y(result_.data(), dtype_, {m, n}), dx(result_.data(), dtype_, {m, k});
    const TensorView dweight(dweight_.data(), DType::kF32, {n, k});
    const double flops = 2.0 * static_cast<double>(m * n * k);
    Status status;
    const auto add = [&](GemmPass pass, const GemmShape& product, const auto& run) {
      const double seconds = BestSeconds([&] {
        if (status.ok()) status = run();
      });
      profile.gemm.push_back({TechniqueRateName(rate_name, pass, dtype_), product.m, product.n,
                              product.k, threads, flops / seconds});
    };
    add(GemmPass::kForward, {m, n, k},
        [&] { return SparseForward(stream_, {.x = x, .weight = sparse.get(), .y = y}); });
    add(GemmPass::kInputGradient, {m, k, n},
        [&] { return SparseBackwardInput(stream_, {.dy = dy, .weight = sparse.get(), .dx = dx}); });
    add(GemmPass::kWeightGradient, {n, k, m},
        [&] { return weight_gradient(x, dy, *sparse, dweight); });
    return status;
  }

 private:
  std::vector<float> Random(int64_t rows, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    for (float& value : values) value = static_cast<float>(rng_.Uniform()) - 0.5f;
    return values;
  }

  /// To numbers of the type of products, in as many bytes as f32 takes.
  void Narrow(std::vector<float>& values) const {
    if (dtype_ == DType::kF32) return;
    std::vector<BFloat16> half(values.size());
    std::transform(values.begin(), values.end(), half.begin(), ToBFloat16);
    std::memcpy(values.data(), half.data(), half.size() * sizeof(BFloat16));
  }

  const Stream stream_;
  PhiloxStream rng_{PhiloxKey{.seed = 2}};
  GemmShape shape_;
  DType dtype_;
  std::vector<float> weight_;
  std::vector<uint16_t> bits_;
  std::vector<float> x_, dy_, result_, dweight_;
};

/// The products of an MLP's layer with 2:4 sparse weights, their lists and estimates included: as
/// in training, what multiplies draws the estimates.
Status MeasureSparseProducts(const GemmShape& shape, DType dtype, int threads,
                             WorkerProfile& profile) {
  using namespace kernels;
  SparseLayer layer(shape, dtype);
  WEFT_RETURN_IF_ERROR(TransposableMask({}, {.weight = layer.weight(), .mask = layer.mask()}));
  const MvueArgs draws = {.x = {}, .y = {}, .key = {}};
  return layer.Measure(
      "sparse24_", threads,
      [&](const TensorView& x, const TensorView& dy, const SparseWeight&, const TensorView& dw) {
        return SparseBackwardWeight(
            {}, {.x = x, .dy = dy, .dweight = dw, .accumulate = false, .estimate = &draws});
      },
      profile);
}

/// The same of a layer that keeps kCsrRatesDensity of its weights, at random.
Status MeasureKeptProducts(const GemmShape& shape, int threads, WorkerProfile& profile) {
  using namespace kernels;
  SparseLayer layer(shape, DType::kF32);
  PhiloxStream rng({.seed = 3});
  for (uint16_t& block : layer.bits()) {
    int bits = 0;
    for (int bit = 0; bit < 16; ++bit) bits |= (rng.Uniform() < kCsrRatesDensity ? 1 : 0) << bit;
    block = static_cast<uint16_t>(bits);
  }
  return layer.Measure(
      kCsrRates, threads,
      [](const TensorView& x, const TensorView& dy, const SparseWeight& weight,
         const TensorView& dw) {
        return SampledBackwardWeight(
            {}, {.x = x, .dy = dy, .weight = &weight, .dweight = dw, .accumulate = false});
      },
      profile);
}

/// The rates of products on that many threads.
Status MeasureGemmsOn(int threads, WorkerProfile& profile) {
  SetThreads(threads);
  const auto add_dense = [&](const GemmShape& shape, DType dtype) -> Status {
    WEFT_ASSIGN_OR_RETURN(GemmRate rate, MeasureGemm(shape, dtype, threads));
    profile.gemm.push_back(std::move(rate));
    return OkStatus();
  };
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const GemmShape& shape : kGemmShapes) WEFT_RETURN_IF_ERROR(add_dense(shape, dtype));
    for (const GemmShape& layer : kSparseLayers) {
      WEFT_RETURN_IF_ERROR(MeasureSparseProducts(layer, dtype, threads, profile));
    }
  }
  WEFT_RETURN_IF_ERROR(add_dense(kWideLayer, DType::kF32));
  WEFT_RETURN_IF_ERROR(MeasureSparseProducts(kWideLayer, DType::kF32, threads, profile));
  return MeasureKeptProducts(kSparseLayers.front(), threads, profile);
}

Status MeasureGemms(WorkerProfile& profile) {
  WEFT_RETURN_IF_ERROR(MeasureGemmsOn(1, profile));
  if (profile.cores <= 1) return OkStatus();
  return MeasureGemmsOn(static_cast<int>(profile.cores), profile);
}

/// Read plus write of all cores, on memory well past the caches.
double MeasureCopy() {
  constexpr size_t kBytes = size_t{32} << 20;
  std::vector<char> from(kBytes, 1), to(kBytes, 2);
  double seconds = BestSeconds([&] {
    kernels::cpu::ParallelFor(kBytes, 1 << 16, [&](int64_t begin, int64_t end) {
      std::memcpy(to.data() + begin, from.data() + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2.0 * kBytes / seconds;
}

/// One stream from this process to itself.
Result<double> MeasureLoopback() {
  constexpr std::chrono::seconds kLoopbackLimit{10};
  const std::string host = "127.0.0.1";
  const std::string token(kLinkTokenBytes, 't');
  const LinkLimit limit{std::chrono::steady_clock::now() + kLoopbackLimit};
  WEFT_ASSIGN_OR_RETURN(LinkListener listener, LinkListener::Open(host));
  Status served;
  std::thread server([&] { served = listener.Serve(token, limit); });
  const Result<LinkRate> rate = MeasureLink(host, listener.port(), token, limit);
  server.join();
  WEFT_RETURN_IF_ERROR(rate.status().WithContext("measure loopback"));
  WEFT_RETURN_IF_ERROR(served.WithContext("measure loopback"));
  return std::max(rate->send_bytes_per_second, rate->receive_bytes_per_second);
}

Result<double> MeasureDisk(const std::string& dir) {
  constexpr size_t kBytes = size_t{4} << 20;
  Env& env = Env::Posix();
  std::string path = JoinPath(dir, ".weft-probe-" + std::to_string(getpid()));
  std::string block(size_t{1} << 20, 'w');
  auto begin = std::chrono::steady_clock::now();
  Status status;
  {
    WEFT_ASSIGN_OR_RETURN(auto file, env.NewWritableFile(path));
    for (size_t written = 0; status.ok() && written < kBytes; written += block.size()) {
      status = file->Append(block);
    }
    if (status.ok()) status = file->Sync();
  }
  Seconds took = std::chrono::steady_clock::now() - begin;
  Status removed = env.RemoveFile(path);
  WEFT_RETURN_IF_ERROR(status);
  WEFT_RETURN_IF_ERROR(removed);
  return static_cast<double>(kBytes) / std::max(took.count(), 1e-9);
}

Result<WorkerProfile> Measure(WorkerProfile profile, const std::string& write_dir) {
  // First: a full disk fails at once.
  WEFT_ASSIGN_OR_RETURN(profile.disk_write_bytes_per_second, MeasureDisk(write_dir));
  WEFT_RETURN_IF_ERROR(MeasureGemms(profile));
  profile.copy_bytes_per_second = MeasureCopy();
  WEFT_ASSIGN_OR_RETURN(profile.loopback_bytes_per_second, MeasureLoopback());
  return profile;
}

/// The kept profile if it is of this version and machine.
Result<WorkerProfile> ReadCache(const std::string& path, const WorkerProfile& wanted) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(Env::Posix(), path, 1 << 20));
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(text));
  if (!json.is_object() || !json.contains("profile") || json.value("version", Json()) != kVersion) {
    return NotFoundError("no measurements of this version");
  }
  WEFT_ASSIGN_OR_RETURN(WorkerProfile kept, FromJson<WorkerProfile>(json["profile"]));
  if (kept.cpu_model != wanted.cpu_model || kept.isa != wanted.isa || kept.cores != wanted.cores) {
    return NotFoundError("measurements of another machine");
  }
  kept.memory_bytes = wanted.memory_bytes;
  return kept;
}

}  // namespace

Result<WorkerProfile> MeasuredProfile(const Machine& machine, const std::string& cache_path,
                                      const std::string& write_dir, bool again) {
  WorkerProfile profile;
  profile.cpu_model = machine.cpu_model;
  profile.isa = kernels::cpu::IsaName(kernels::cpu::ActiveIsa());
  profile.cores = machine.cores;
  profile.memory_bytes = machine.memory_bytes;
  if (!again) {
    if (Result<WorkerProfile> kept = ReadCache(cache_path, profile); kept.ok()) return kept;
  }
  auto begin = std::chrono::steady_clock::now();
  WEFT_ASSIGN_OR_RETURN(profile, Measure(std::move(profile), write_dir));
  Seconds took = std::chrono::steady_clock::now() - begin;
  WEFT_LOG_INFO << "measured this machine in " << took.count() << " s";
  Json json{{"version", kVersion}, {"profile", ToJson(profile)}};
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(Env::Posix(), cache_path, json.dump(2) + "\n"));
  return profile;
}

}  // namespace weft::daemon
