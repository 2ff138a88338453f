#include "worker/engine/techniques/pruning/pruning_scores.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <string>
#include <utility>

#include "common/model/precision.h"
#include "worker/engine/techniques/pruning/sharded_matrices.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

using Matrices = std::vector<std::vector<float>>;

/// What this rank has of values.
Result<Matrices> FetchValues(const TrainingParts& parts, std::span<const int64_t> parameters) {
  Matrices values;
  for (const int64_t index : parameters) {
    const TensorView held = parts.parameters->held_value(index).view;
    WEFT_ASSIGN_OR_RETURN(values.emplace_back(), FetchFloats(parts.context->stream, held));
  }
  return values;
}

bool AllFinite(const Matrices& matrices) {
  return std::all_of(matrices.begin(), matrices.end(), [](const std::vector<float>& matrix) {
    return std::all_of(matrix.begin(), matrix.end(), [](float x) { return std::isfinite(x); });
  });
}

/// What this rank has of the gradients of the mean loss, on the host. With loss scaling by the
/// largest scale with which they are finite on all ranks; kInvalid where there is none.
Result<Matrices> FetchGradients(const TrainingParts& parts, std::span<const int64_t> parameters) {
  const bool scaled = PrecisionOf(parts.plan->precision).loss_scaling;
  const ShardedMatrices matrices(&parts);
  for (double scale = scaled ? 65536 : 1;; scale /= 16) {
    WEFT_RETURN_IF_ERROR(parts.compute_gradients(scale));
    Matrices gradients;
    for (const int64_t index : parameters) {
      const TensorView held = matrices.HeldGradient(index).view;
      WEFT_ASSIGN_OR_RETURN(gradients.emplace_back(), FetchFloats(parts.context->stream, held));
    }
    std::array<double, 1> bad = {AllFinite(gradients) ? 0.0 : 1.0};
    if (parts.shards_updates) WEFT_RETURN_IF_ERROR(parts.sum_over_parts(bad));
    WEFT_RETURN_IF_ERROR(parts.sum_over_replica(bad));
    if (bad[0] > 0 && scale > 1) continue;
    if (bad[0] > 0) {
      return InvalidError(
          "train.pruning.method " + parts.job->train.pruning.method +
          " ranks weights by gradients, and those of the first batch are not finite; hint: look at "
          "the data and at model.initialization, or use method magnitude");
    }
    for (std::vector<float>& matrix : gradients) {
      for (float& value : matrix) value = static_cast<float>(value / scale);
    }
    return gradients;
  }
}

/// Norm of `matrices`, which are cut as values are, over the ranks that have other parts of the
/// model. Each number counts once.
Result<double> Norm(const TrainingParts& parts, std::span<const int64_t> parameters,
                    const Matrices& matrices) {
  const ParameterSet& all = *parts.parameters;
  const bool sharded = all.values_sharded();
  std::array<double, 1> squares = {0};
  for (size_t m = 0; m < matrices.size(); ++m) {
    if (!(sharded ? all.CountsPart(parameters[m]) : all.Counts(parameters[m]))) continue;
    for (const float x : matrices[m]) squares[0] += static_cast<double>(x) * x;
  }
  if (sharded) WEFT_RETURN_IF_ERROR(parts.sum_over_parts(squares));
  WEFT_RETURN_IF_ERROR(parts.sum_over_replica(squares));
  return std::sqrt(squares[0]);
}

/// Makes what this rank has of the parameters `values` + `step` `direction`.
Status Move(const TrainingParts& parts, std::span<const int64_t> parameters, const Matrices& values,
            const Matrices& direction, double step) {
  for (size_t m = 0; m < values.size(); ++m) {
    if (values[m].empty()) continue;
    const auto move = [&](const TensorView& to) {
      for (size_t i = 0; i < values[m].size(); ++i) {
        to.As<float>()[i] = static_cast<float>(values[m][i] + step * direction[m][i]);
      }
    };
    const TensorView held = parts.parameters->held_value(parameters[m]).view;
    WEFT_RETURN_IF_ERROR(FillOnHost(parts.context->stream, held, move));
  }
  parts.values_changed();
  return OkStatus();
}

/// The index, among the values that this rank has of a parameter, of the first one that it has the
/// gradient of.
size_t FirstOfGradient(const ShardedMatrices& matrices, int64_t parameter) {
  if (matrices.SameParts(parameter)) return 0;
  return static_cast<size_t>(matrices.HeldGradient(parameter).first);
}

}  // namespace

Result<PruningScores> ConnectionSensitivity(const TrainingParts& parts,
                                            std::span<const int64_t> parameters) {
  const ShardedMatrices matrices(&parts);
  WEFT_ASSIGN_OR_RETURN(PruningScores scores, FetchGradients(parts, parameters));
  for (size_t m = 0; m < scores.size(); ++m) {
    const TensorView held = matrices.HeldValue(parameters[m]).view;
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> values,
                          FetchFloats(parts.context->stream, held));
    const size_t first = FirstOfGradient(matrices, parameters[m]);
    for (size_t i = 0; i < scores[m].size(); ++i) {
      scores[m][i] = std::fabs(scores[m][i] * values[first + i]);
    }
  }
  return scores;
}

Result<PruningScores> GradientFlow(const TrainingParts& parts,
                                   std::span<const int64_t> parameters) {
  // The distance, in norms of the weights, is large enough for the operands of products to differ.
  const bool f32 = PrecisionOf(parts.plan->precision).products == DType::kF32;
  const double distance = f32 ? 1e-3 : 3e-2;
  WEFT_ASSIGN_OR_RETURN(const Matrices values, FetchValues(parts, parameters));
  WEFT_ASSIGN_OR_RETURN(Matrices gradients, FetchGradients(parts, parameters));
  const ShardedMatrices matrices(&parts);
  for (size_t m = 0; m < gradients.size(); ++m) {
    if (matrices.SameParts(parameters[m])) continue;
    WEFT_ASSIGN_OR_RETURN(gradients[m], matrices.Whole(parameters[m], std::move(gradients[m])));
  }
  WEFT_ASSIGN_OR_RETURN(const double weight_norm, Norm(parts, parameters, values));
  WEFT_ASSIGN_OR_RETURN(const double gradient_norm, Norm(parts, parameters, gradients));
  const double step = gradient_norm > 0 ? distance * weight_norm / gradient_norm : 0;
  WEFT_RETURN_IF_ERROR(Move(parts, parameters, values, gradients, step));
  Result<Matrices> ahead = FetchGradients(parts, parameters);
  if (ahead.ok()) WEFT_RETURN_IF_ERROR(Move(parts, parameters, values, gradients, -step));
  Result<Matrices> behind = ahead.ok() ? FetchGradients(parts, parameters) : ahead.status();
  WEFT_RETURN_IF_ERROR(Move(parts, parameters, values, gradients, 0));
  WEFT_RETURN_IF_ERROR(behind.status());
  PruningScores scores = *std::move(ahead);
  for (size_t m = 0; m < scores.size(); ++m) {
    const size_t first = FirstOfGradient(matrices, parameters[m]);
    for (size_t i = 0; i < scores[m].size(); ++i) {
      const double change = static_cast<double>(scores[m][i]) - (*behind)[m][i];
      const float value = values[m][first + i];
      scores[m][i] = static_cast<float>(step > 0 ? value * change / (2 * step) : 0);
    }
  }
  return scores;
}

}  // namespace weft::engine
