#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/spec/model_spec.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/technique.h"

namespace weft::engine {

/// Ranks that may count after `step` steps of a training of `steps`, of `all` with `kept` at its
/// end: a cubic decline between the first and the last steps (Zhang et al. 2023, arXiv 2303.10512).
int64_t RankBudget(const AdaLoraSpec& spec, int64_t step, int64_t steps, int64_t all, int64_t kept);

/// Moves the ranks of AdaLoRA to the layers where they matter, as Hugging Face's peft library does:
/// keeps the factors near orthogonal, scores each rank of each adapter after an update, and makes
/// the diagonals of the lowest ones zero. The hooks of a Technique. Ranks score what they update;
/// all choose alike, those of other stages of a pipeline, too. Not thread-safe.
class AdaLora {
 public:
  /// `model`: the whole network, which outlives this.
  explicit AdaLora(const ModelSpec& model) : model_(model), spec_(model.peft.adalora) {}

  Status OnTraining(const TrainingParts& parts);

  /// Adds the gradient of the mean of ‖P Pᵀ - I‖ over all factors P.
  Status OnGradients(Context& state, int64_t step);

  void BeforeUpdate(const PendingUpdate& update) { gate_ = update.gate; }

  /// Scores the update of the step of OnGradients, and chooses ranks.
  Status OnUpdated();

  std::vector<NamedTensor> StateTensors();

 private:
  /// What this rank updates of a tensor, and the indices of its means in scores_.
  struct Piece {
    ParameterPart part;
    size_t sensitivity = 0;
    size_t uncertainty = 0;
  };
  /// A tensor of an adapter.
  struct Scored {
    int64_t parameter = 0;
    std::vector<Piece> pieces = {};
  };
  struct Adapter {
    Scored a, b, diagonal;
    std::vector<uint8_t> kept = {};  ///< Of each rank, what was chosen last: 1 or 0.
  };
  /// P Pᵀ of P [rank, in], or Pᵀ P of [out, rank]: [rank, rank] on the host, row-major.
  static Result<std::vector<float>> ProductOverSide(Context& context, const TensorView& p,
                                                    bool of_rows);
  /// Makes a mean for each number that this rank updates of the tensor.
  Scored NewScored(int64_t parameter);
  /// Calls fn(tensor, of_rows, index) for A, with of_rows, and B of each adapter here, while its
  /// value is in memory: all ranks that shard values call this together. `index`: among those of
  /// the network.
  Status ForEachFactor(
      Context& context,
      const std::function<Status(const Scored& tensor, bool of_rows, int64_t index)>& fn) const;
  /// Products of all adapters of the network, in their order: that of A, then that of B.
  Result<std::vector<double>> ProductsOverSides(Context& context) const;
  /// For a factor with this product, of the whole factor.
  Status AddOrthogonality(Context& context, const Scored& tensor, bool of_rows,
                          std::span<const double> product) const;
  /// Takes what this rank updates, with its gradient, into its two means.
  Status Score(Context& context, const Scored& tensor, float clip) const;
  /// Adds the scores of the numbers of a tensor, times `weight`, to those of their ranks;
  /// `of_rows`: each row of `length` numbers is of one rank, else each column of as many ranks is.
  Status AddScores(Context& context, const Scored& tensor, bool of_rows, int64_t length,
                   double weight, std::span<double> ranks) const;
  /// Scores of each rank of all adapters of the network, in their order.
  Result<std::vector<double>> ScoresOfRanks(Context& context) const;
  Status Choose(Context& context, int64_t budget);
  Status Mask(Context& context) const;

  int64_t LastChoice() const { return parts_.job->train.steps - spec_.tfinal; }
  /// For work where parameters are updated.
  Context StateContext() const { return parts_.ContextOf(parts_.updated.front()); }

  const ModelSpec& model_;
  AdaLoraSpec spec_;
  TrainingParts parts_;
  std::vector<Adapter> adapters_;  ///< Those here,
  int64_t adapters_before_ = 0;    ///< those of earlier stages,
  int64_t all_adapters_ = 0;       ///< and all of the network.
  OptimizerState scores_;
  kernels::UpdateGate gate_;
  int64_t step_ = 0;
  int32_t ended_ = 0;  ///< 1: the last choice has been made.
};

}  // namespace weft::engine
