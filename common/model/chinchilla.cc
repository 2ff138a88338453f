#include "common/model/chinchilla.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>

#include "common/model/model_counts.h"
#include "common/text.h"

namespace weft {
namespace {

// Widths past which nobody trains, and the deepest stack.
constexpr int64_t kLargestWidth = 65536;
constexpr int64_t kMostLayers = 256;

int64_t WidthStep(int64_t width) {
  return width < 2048 ? 64 : 128;
}

SizedModel Measure(JobSpec job, int64_t layers, int64_t width) {
  const int64_t groups = job.model.kv_heads > 0 ? job.model.heads / job.model.kv_heads : 0;
  job.model.layers = layers;
  job.model.width = width;
  job.model.heads = width / WidthStep(width);
  job.model.mlp_width = 0;
  if (groups > 0) job.model.kv_heads = std::max<int64_t>(1, job.model.heads / groups);
  const ModelShape shape = ShapeOf(job);
  return {layers, width, job.model.heads, shape.counts.Total(),
          TrainingFlopsPerToken(shape, SequenceLength(job))};
}

// Width over layers of a model of this size: 64 at 125 M parameters, 128 at 7 B.
double UsualAspect(double parameters) {
  return std::clamp(64.0 * std::pow(parameters / 125e6, 1.0 / 6.0), 32.0, 128.0);
}

}  // namespace

double ScalingLaw::Loss(double parameters, double tokens) const {
  return e + a / std::pow(parameters, alpha) + b / std::pow(tokens, beta);
}

Result<ComputeBudget> ParseBudget(std::string_view text) {
  double value = 0;
  const char *begin = text.data(), *end = begin + text.size();
  const auto [rest, error] = std::from_chars(begin, end, value);
  std::string unit;
  for (const char* c = rest; c != end; ++c) {
    if (*c != ' ') unit += static_cast<char>(*c >= 'A' && *c <= 'Z' ? *c - 'A' + 'a' : *c);
  }
  if (error == std::errc() && value > 0 && std::isfinite(value)) {
    if (unit.empty() || unit == "flop" || unit == "flops") return ComputeBudget{value, 0};
    for (const char* hours : {"gpu-hour", "gpu-hours", "gpu-h", "gpuh"}) {
      if (unit == hours) return ComputeBudget{0, value};
    }
  }
  return InvalidError("the budget '" + ClipText(text) +
                      "' is not understood; hint: 1e20, 3e19flops or 100gpu-hours");
}

ComputeOptimum OptimumOf(const ScalingLaw& law, double flops) {
  // Equation 4 of Hoffmann et al.
  const double g = std::pow(law.alpha * law.a / (law.beta * law.b), 1.0 / (law.alpha + law.beta));
  const double parameters = g * std::pow(flops / 6.0, law.beta / (law.alpha + law.beta));
  const double tokens = flops / 6.0 / parameters;
  return {parameters, tokens, law.Loss(parameters, tokens)};
}

SizedModel ModelOfSize(const JobSpec& job, double parameters) {
  SizedModel best;
  double best_score = 0;
  for (int64_t width = 64; width <= kLargestWidth; width += WidthStep(width)) {
    // Every layer adds the same number.
    const SizedModel one = Measure(job, 1, width);
    const double layer = static_cast<double>(
        std::max<int64_t>(1, Measure(job, 2, width).parameters - one.parameters));
    const double wanted = 1.0 + (parameters - static_cast<double>(one.parameters)) / layer;
    const auto layers =
        static_cast<int64_t>(std::clamp(std::round(wanted), 1.0, static_cast<double>(kMostLayers)));
    const SizedModel model = Measure(job, layers, width);
    const double size = std::abs(std::log(static_cast<double>(model.parameters) / parameters));
    const double aspect = std::abs(std::log(static_cast<double>(width) /
                                            static_cast<double>(layers) / UsualAspect(parameters)));
    // A few percent of size matter as much as a third of the aspect, which losses hardly feel
    // (Kaplan et al. 2020, arXiv 2001.08361, figure 5).
    const double score = 10 * size + aspect;
    if (best.layers == 0 || score < best_score) {
      best = model;
      best_score = score;
    }
  }
  return best;
}

}  // namespace weft
