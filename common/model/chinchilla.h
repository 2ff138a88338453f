#pragma once

#include <string_view>
#include <vector>

#include "common/spec/job_spec.h"
#include "common/status.h"

namespace weft {

/// Loss of a language model of N parameters after D tokens: E + A / N^alpha + B / D^beta, in nats
/// per token.
struct ScalingLaw {
  std::string_view name;
  double e = 0;
  double a = 0;
  double b = 0;
  double alpha = 0;
  double beta = 0;

  double Loss(double parameters, double tokens) const;
};

/// Hoffmann et al. 2022 (arXiv 2203.15556), Approach 3 with the constants as published.
inline constexpr ScalingLaw kHoffmann = {"Hoffmann et al. 2022", 1.69, 406.4, 410.7, 0.34, 0.28};

/// The replication of Besiroglu et al. 2024 (arXiv 2404.10102), fitted to the same runs; unlike the
/// published constants it agrees with Hoffmann's Approaches 1 and 2, about 20 tokens a parameter.
inline constexpr ScalingLaw kEpoch = {
    "Besiroglu et al. 2024", 1.8172, 482.01, 2085.43, 0.3478, 0.3658};

/// The model and data that reach the lowest loss with a number of operations.
struct ComputeOptimum {
  double parameters = 0;
  double tokens = 0;
  double loss = 0;
};

/// One of the two is 0.
struct ComputeBudget {
  double flops = 0;
  double device_hours = 0;
};

/// Reads "1e20", "3e19flops", "3e19 FLOPs", "100gpu-hours", "0.5 gpuh". kInvalid for anything else
/// and for what is not positive and finite.
Result<ComputeBudget> ParseBudget(std::string_view text);

/// The optimum for training that takes 6 N D operations: `flops` > 0.
ComputeOptimum OptimumOf(const ScalingLaw& law, double flops);

/// A model of `job`'s family that comes near a number of parameters.
struct SizedModel {
  int64_t layers = 0;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t parameters = 0;
  double flops_per_token = 0;  ///< Of training, see TrainingFlopsPerToken.
};

/// Layers, width and heads for about `parameters` numbers, everything else (vocabulary, context,
/// MLP in proportion) as `job` says. Widths are multiples of 64 and heads 64 wide, or 128 from 2048
/// on; width over layers grows from 64 to 128, as it does from GPT-2 to GPT-3.
SizedModel ModelOfSize(const JobSpec& job, double parameters);

}  // namespace weft
