#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/dtype.h"
#include "common/model/parameter_info.h"
#include "common/model/technique_products.h"
#include "common/spec/model_spec.h"
#include "common/spec/train_spec.h"

namespace weft {

/// Metrics: share of the weights that is kept, and share of the kept ones that were grown anew in
/// the last exchange.
inline constexpr std::string_view kDensityMetric = "density_ratio";
inline constexpr std::string_view kGrownMetric = "grown_weights_ratio";

/// Whether weights are exchanged while training (dynamic sparse training).
inline bool ExchangesWeights(const PruningSpec& spec) {
  return spec.method == "set" || spec.method == "rigl";
}

/// Whether `step`, from 0, exchanges weights instead of updating them.
bool IsExchangeStep(const PruningSpec& spec, int64_t step, int64_t steps);

/// The share of the kept weights that is dropped in `step`: a cosine from spec.drop_rate to 0.
double DropRate(const PruningSpec& spec, int64_t step, int64_t steps);

/// The trainings of a lottery ticket: a first one of `steps` steps, and `rounds` rounds that go
/// back to the weights of step `rewind_step` and train from there on.
struct LotteryRounds {
  int64_t rounds = 0;
  int64_t steps = 0;
  int64_t rewind_step = 0;

  /// Steps of a round.
  int64_t Length() const { return steps - rewind_step; }
  int64_t AllSteps() const { return steps + rounds * Length(); }
  /// The round that a step is of; 0: the first training.
  int64_t RoundOf(int64_t step) const { return step < steps ? 0 : 1 + (step - steps) / Length(); }
  /// Its step in the first training.
  int64_t PositionOf(int64_t step) const {
    return step < steps ? step : rewind_step + (step - steps) % Length();
  }
  /// Whether a round begins with it.
  bool Rewinds(int64_t step) const { return step >= steps && (step - steps) % Length() == 0; }
};

/// The rounds of PruningSpec::rounds.
int64_t PruningRounds(const PruningSpec& spec);

/// Those of a job with method lottery_ticket and `steps` steps in all, of whose first training as
/// many steps are left out as are left after the last round.
LotteryRounds LotteryRoundsOf(const PruningSpec& spec, int64_t steps);

/// Whether products may be of the kept weights alone (PruningSpec::products): not where a technique
/// of the precision has products of its own.
bool MayUseSparseProducts(const TrainSpec& train);

/// Whether products of this type with a matrix of that density are.
bool UsesSparseProducts(const PruningSpec& spec, DType compute, double density, ComputeUnits units);

/// Whether this parameter is pruned: a trained matrix of a block that a pattern of `spec` names, or
/// every one where there are none.
bool IsPruned(const PruningSpec& spec, const ParameterAttributes& parameter, std::string_view name);

/// A matrix with a part of its weights kept.
struct PrunedMatrix {
  std::string name;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t kept = 0;  ///< Weights of it; of a global choice the same share of each.

  int64_t Weights() const { return rows * columns; }
};

/// The pruned matrices of the whole network, with what is kept of each.
std::vector<PrunedMatrix> PrunedMatricesOf(const PruningSpec& spec, const ModelSpec& model);

/// Sets PrunedMatrix::kept, at least 1. uniform: `density` of each. erk (Mocanu et al. 2018, Evci
/// et al. 2020): in proportion to (rows + columns) / (rows columns), so that all together keep
/// `density` of their weights; those that would keep more than all are dense.
void SetKept(double density, bool erk, std::span<PrunedMatrix> matrices);

}  // namespace weft
