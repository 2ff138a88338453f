#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/hash.h"
#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/train/trainer_parts.h"

namespace weft::engine {

/// What computations that were done twice have come to. All ranks find the same.
struct WrongBits {
  int64_t step = 0;
  /// The data-parallel rank that computed wrong; none where that is unknown.
  std::optional<int64_t> rank;
  /// Ranks; some of them computed wrong.
  std::vector<int64_t> suspects;
};

/// train.replay_every_steps: loss and gradients of a micro-batch are computed twice and compared
/// bit by bit, since processors that compute wrong now and then say nothing (Hochschild et al.
/// 2021, "Cores that don't count"). Each data-parallel rank differentiates its own first
/// micro-batch and that of the next rank; one rank its own twice. Where two differ, all ranks do it
/// again: one that does not repeat itself is wrong, and so is, of three or more, one that neither
/// neighbour agrees with. Compared are hashes. Not thread-safe.
class ReplayCheck {
 public:
  explicit ReplayCheck(const TrainerParts& parts);

  /// The data-parallel rank whose first micro-batch this one differentiates, too.
  int64_t other_rank() const { return (parts_.rank + 1) % ranks_; }

  /// Before the passes of a step, on all ranks: `own` is the first micro-batch of this rank,
  /// `other` that of other_rank(). Gradients mean nothing afterwards.
  Result<std::optional<WrongBits>> Run(const TokenBatch& own, const TokenBatch& other,
                                       float gradient_scale);

 private:
  /// Hashes by rank, of its own micro-batch and of that of the next rank.
  struct Hashes {
    std::vector<uint64_t> own, other;
  };

  Result<Hashes> Compute(const TokenBatch& own, const TokenBatch& other, float gradient_scale);
  Result<uint64_t> HashOf(const TokenBatch& batch, float gradient_scale);
  /// Where no reducer has given them memory, those of a stack of parameters have some until all of
  /// them are complete.
  Result<TensorView> PlaceGradient(int64_t index);
  Status OnGradient(int64_t index, uint64_t& hash);
  WrongBits Judge(const Hashes& first, const Hashes& again) const;

  TrainerParts parts_;
  const int64_t ranks_;
  const bool places_;
  /// The gradients of a stack of parameters.
  struct Stack {
    ParameterSet::Range range = {};
    int64_t missing = 0;  ///< Gradients of the pass under way.
    Tensor memory = {};
  };
  std::vector<Stack> stacks_;
  std::vector<size_t> stack_of_;  ///< By parameter.
};

}  // namespace weft::engine
