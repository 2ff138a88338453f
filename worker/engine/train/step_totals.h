#pragma once

#include <cstdint>

#include "common/status.h"
#include "kernels/optimizer/optimizer.h"
#include "worker/engine/nn/classifier_head.h"
#include "worker/engine/optim/exact_norm.h"
#include "worker/engine/optim/gradient_norm.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/train/group_norms.h"
#include "worker/engine/train/micro_batch_sums.h"
#include "worker/engine/train/step_report.h"
#include "worker/engine/train/trainer_parts.h"
#include "worker/engine/train/training_ranks.h"

namespace weft::engine {

/// The numbers that a step finds out, in memory where its work runs: loss, norms of gradients, and
/// the decision on the update. Sums them over the ranks. The calls of a step come in the order
/// below. Not thread-safe.
class StepTotals {
 public:
  struct Numbers {
    BatchLoss loss;      ///< Of all ranks, once it is summed.
    NormSums gradients;  ///< With the loss scale.
    float factor = 0;    ///< Of gradients in the update.
    int32_t made = 0;    ///< The update.
    GroupSums groups[kParameterGroups];
  };

  /// What the decision on an update follows from.
  struct Decision {
    int64_t targets = 1;  ///< Of all ranks.
    double loss_scale = 1;
    double loss_limit = 0;  ///< A larger loss is a spike.
    double clip_norm = 0;   ///< 0: no clipping.
  };

  /// `ranks` outlives this. kExhausted without memory on the device.
  static Result<StepTotals> New(const TrainerParts& parts, const TrainingRanks* ranks);

  /// Takes losses from `sums`, which outlives this, with train.deterministic mesh, and adds losses
  /// and norms over ranks without rounding. On a CPU.
  void SumExactly(const MicroBatchSums* sums) { micro_batches_ = sums; }

  /// Enqueues that all numbers become zero.
  Status Clear() { return numbers_.Clear(*parts_.context); }

  /// Where passes add their loss, but after SumExactly.
  BatchLoss* loss() const { return &numbers_.device()->loss; }

  /// After SumExactly, and after the passes: their loss is that of this rank.
  void TakeLoss();

  /// Waits for the passes and sums the loss over the ranks; where these update different parts, the
  /// gradient norm as well. `fails`: the loss is to be infinite. Only ranks that must ask each
  /// other call it.
  Status SumLosses(bool fails, PhaseSeconds& seconds);

  /// Enqueues the norm of the gradients, where SumLosses has not measured it, and with `groups`
  /// those of each group of parameters. Sums them over the ranks that have other parts of the
  /// model.
  Status Measure(bool groups, PhaseSeconds& seconds);

  /// Enqueues the decision whether the update is applied, and by which factor.
  Status Decide(const Decision& decision);

  /// What the update obeys.
  kernels::UpdateGate gate() const;

  /// Enqueues the copy to the host, before the update.
  Status Fetch() { return numbers_.Fetch(*parts_.context); }

  /// Waits for the copy.
  Result<const Numbers*> Wait() { return numbers_.Wait(); }

  /// Then: sums the groups over ranks that have measured their own parts alone.
  Status SumGroups(PhaseSeconds& seconds);

  /// On the host, after Wait.
  const Numbers& host() const { return *numbers_.host(); }

 private:
  /// Where the update reads and writes them.
  Numbers* of_update() const;
  Status MeasureGradientsOfRank();
  Status SumLossesExactly(bool fails, PhaseSeconds& seconds);
  Status MeasureExactly(PhaseSeconds& seconds);
  Status SumOverShards(bool groups, PhaseSeconds& seconds);

  TrainerParts parts_;
  const TrainingRanks* ranks_ = nullptr;
  ReadbackOf<Numbers> numbers_;
  const MicroBatchSums* micro_batches_ = nullptr;  ///< Or none.
  ExactNorm exact_gradients_;                      ///< Then; of what the ranks have summed so far.
};

}  // namespace weft::engine
