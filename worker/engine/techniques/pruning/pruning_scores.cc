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

Result<Matrices> FetchValues(const TrainingParts& parts, std::span<const int64_t> parameters) {
  const ShardedMatrices matrices(&parts);
  Matrices values;
  for (const int64_t index : parameters) {
    WEFT_ASSIGN_OR_RETURN(values.emplace_back(), matrices.Value(index));
  }
  return values;
}

bool AllFinite(const Matrices& matrices) {
  return std::all_of(matrices.begin(), matrices.end(), [](const std::vector<float>& matrix) {
    return std::all_of(matrix.begin(), matrix.end(), [](float x) { return std::isfinite(x); });
  });
}

/// Gradients of the mean loss, on the host. With loss scaling by the largest scale with which they
/// are finite on all ranks; not finite where there is none.
Result<Matrices> FetchGradients(const TrainingParts& parts, std::span<const int64_t> parameters) {
  const bool scaled = PrecisionOf(parts.plan->precision).loss_scaling;
  const ShardedMatrices matrices(&parts);
  for (double scale = scaled ? 65536 : 1;; scale /= 16) {
    WEFT_RETURN_IF_ERROR(parts.compute_gradients(scale));
    Matrices gradients;
    for (const int64_t index : parameters) {
      WEFT_ASSIGN_OR_RETURN(gradients.emplace_back(), matrices.Gradient(index));
    }
    std::array<double, 1> bad = {AllFinite(gradients) ? 0.0 : 1.0};
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

/// Norm over the ranks that have other parts of the model, each number once.
Result<double> Norm(const TrainingParts& parts, std::span<const int64_t> parameters,
                    const Matrices& matrices) {
  std::array<double, 1> squares = {0};
  for (size_t m = 0; m < matrices.size(); ++m) {
    if (!parts.parameters->Counts(parameters[m])) continue;
    for (const float x : matrices[m]) squares[0] += static_cast<double>(x) * x;
  }
  WEFT_RETURN_IF_ERROR(parts.sum_over_replica(squares));
  return std::sqrt(squares[0]);
}

/// Makes the parameters `values` + `step` `direction`.
Status Move(const TrainingParts& parts, std::span<const int64_t> parameters, const Matrices& values,
            const Matrices& direction, double step) {
  for (size_t m = 0; m < values.size(); ++m) {
    const ParameterSet::HeldValue held = parts.parameters->held_value(parameters[m]);
    const auto count = static_cast<size_t>(held.view.shape.Elements());
    if (count == 0) continue;
    const auto first = static_cast<size_t>(held.first);
    const auto move = [&](const TensorView& to) {
      for (size_t i = 0; i < count; ++i) {
        to.As<float>()[i] =
            static_cast<float>(values[m][first + i] + step * direction[m][first + i]);
      }
    };
    WEFT_RETURN_IF_ERROR(FillOnHost(parts.context->stream, held.view, move));
  }
  parts.values_changed();
  return OkStatus();
}

}  // namespace

Result<PruningScores> Magnitudes(const TrainingParts& parts, std::span<const int64_t> parameters) {
  WEFT_ASSIGN_OR_RETURN(PruningScores scores, FetchValues(parts, parameters));
  for (std::vector<float>& matrix : scores) {
    for (float& value : matrix) value = std::fabs(value);
  }
  return scores;
}

Result<PruningScores> ConnectionSensitivity(const TrainingParts& parts,
                                            std::span<const int64_t> parameters) {
  WEFT_ASSIGN_OR_RETURN(const Matrices values, FetchValues(parts, parameters));
  WEFT_ASSIGN_OR_RETURN(PruningScores scores, FetchGradients(parts, parameters));
  for (size_t m = 0; m < values.size(); ++m) {
    for (size_t i = 0; i < values[m].size(); ++i) {
      scores[m][i] = std::fabs(scores[m][i] * values[m][i]);
    }
  }
  return scores;
}

Result<PruningScores> GradientFlow(const TrainingParts& parts,
                                   std::span<const int64_t> parameters) {
  // Of the norm of the weights: far enough for the operands of products to differ.
  const bool f32 = PrecisionOf(parts.plan->precision).products == DType::kF32;
  const double distance = f32 ? 1e-3 : 3e-2;
  WEFT_ASSIGN_OR_RETURN(const Matrices values, FetchValues(parts, parameters));
  WEFT_ASSIGN_OR_RETURN(const Matrices gradients, FetchGradients(parts, parameters));
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
  for (size_t m = 0; m < values.size(); ++m) {
    for (size_t i = 0; i < values[m].size(); ++i) {
      const double change = static_cast<double>(scores[m][i]) - (*behind)[m][i];
      scores[m][i] = static_cast<float>(step > 0 ? values[m][i] * change / (2 * step) : 0);
    }
  }
  return scores;
}

}  // namespace weft::engine
