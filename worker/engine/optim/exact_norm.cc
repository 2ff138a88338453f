#include "worker/engine/optim/exact_norm.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

#include "kernels/cpu/parallel.h"

namespace weft::engine {
namespace {

// Part of the result's definition. Gradients of parameters, and the shards of ranks, begin at
// multiples of it (ParameterSet).
constexpr int64_t kRun = 16;
constexpr int64_t kGrain = int64_t{1} << 16;  // elements that a thread takes at least

void AddRun(const float* data, int64_t count, ExactNorm* norm) {
  // Products of two f32 numbers are exact in f64. Four sums, so that they are made at once.
  double sums[4] = {};
  for (int64_t i = 0; i < count; ++i) {
    sums[i % 4] += static_cast<double>(data[i]) * static_cast<double>(data[i]);
  }
  const double sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  if (std::isfinite(sum)) return norm->squares.Add(sum);
  for (int64_t i = 0; i < count; ++i) {
    if (std::isfinite(data[i])) continue;
    ++norm->non_finite;
  }
}

}  // namespace

void ExactNorm::Add(const ExactNorm& other) {
  squares.Add(other.squares);
  non_finite += other.non_finite;
}

void AddSquares(const float* data, int64_t count, int64_t first, ExactNorm* norm) {
  const int64_t before = first % kRun;  // elements of the first run that are not there
  const int64_t runs = (before + count + kRun - 1) / kRun;
  std::mutex mutex;
  kernels::cpu::ParallelFor(runs, kGrain / kRun, [&](int64_t begin, int64_t end) {
    ExactNorm own;
    for (int64_t run = begin; run < end; ++run) {
      const int64_t from = std::max<int64_t>(run * kRun - before, 0);
      const int64_t to = std::min((run + 1) * kRun - before, count);
      AddRun(data + from, to - from, &own);
    }
    const std::lock_guard lock(mutex);
    norm->Add(own);
  });
}

ExactNorm MeasureGradientsExactly(const ParameterSet& parameters,
                                  std::span<const ParameterPart> parts) {
  std::vector<ParameterPart> whole;
  if (parts.empty()) whole = TrainedParts(parameters);
  ExactNorm norm;
  for (const ParameterPart& part : parts.empty() ? std::span<const ParameterPart>(whole) : parts) {
    if (!parameters.Counts(part) || part.count() == 0) continue;
    AddSquares(part.gradient.As<float>(), part.count(),
               parameters.GradientOffset(part.index) + part.first, &norm);
  }
  return norm;
}

}  // namespace weft::engine
