#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "common/spec/batch_schedule.h"
#include "common/spec/job_spec.h"
#include "common/spec/plan.h"
#include "worker/engine/autograd/parameter_gradients.h"
#include "worker/engine/data/batch_source.h"
#include "worker/engine/models/model.h"
#include "worker/engine/optim/noise_scale.h"
#include "worker/engine/optim/updater.h"
#include "worker/engine/tensor/named_tensor.h"
#include "worker/engine/train/gradient_reducer.h"
#include "worker/engine/train/step_report.h"

namespace weft::engine {

/// What plan and job say to the model.
ModelOptions ModelOptionsOf(const Plan& plan, const TrainSpec& train = {});

/// Whom a Trainer works with; all outlive it.
struct TrainerParts {
  Context* context = nullptr;
  Model* model = nullptr;  ///< Its parameters initialized or loaded.
  BatchSource* train = nullptr;
  BatchSource* validation = nullptr;   ///< Or none.
  GradientReducer* reducer = nullptr;  ///< None for one rank.
  int64_t rank = 0;                    ///< Among reducer->world_size().
};

/// Trains a model as the job says what and the plan says how. Its whole state is StateTensors() and
/// counters(): with both restored a run goes on bit for bit as if it had never stopped. Not
/// thread-safe.
class Trainer {
 public:
  /// kInvalid when job and plan do not fit each other: batch sizes, ranks, precision.
  static Result<std::unique_ptr<Trainer>> New(const JobSpec& job, const Plan& plan,
                                              const TrainerParts& parts);

  /// One optimizer step: accumulation_steps micro-batches forward and backward, the sum over ranks,
  /// clipping, update. A loss or gradient that is not finite, or a spike of the loss (train.guard),
  /// skips the update on all ranks. After an error the state is as before the step, or the update
  /// is complete but not counted.
  Result<StepReport> Step();

  /// Mean loss over the job's evaluation sequences, all ranks together, of the averaged weights
  /// where the job has them. kNotFound without validation data.
  Result<EvaluationReport> Evaluate();

  /// Whether no weight of this rank is NaN or infinite, which an update can make it although loss
  /// and gradients were finite. Reads every weight once.
  Result<bool> WeightsAreFinite();

  const TrainCounters& counters() const { return counters_; }
  bool finished() const { return counters_.step >= job_.train.steps; }

  /// Parameters under their own names, then the state of optimizer and averages.
  std::vector<NamedTensor> StateTensors() const;

  /// StateTensors() have been overwritten with the state that belongs to `counters`.
  void Restored(const TrainCounters& counters);

 private:
  struct MicroBatch {
    TokenBatch tokens;
    int64_t targets = 0;
  };

  Trainer(const JobSpec& job, const Plan& plan, const TrainerParts& parts);

  /// Packs the weights of step `step`, or with none those of evaluation, where that is not done.
  Status Pack(std::optional<int64_t> step);

  /// The step's micro-batches of this rank; their tokens and targets are added to `own`.
  Result<std::vector<MicroBatch>> LoadBatches(StepReport& own);
  Result<BatchLoss> ForwardAndBackward(std::vector<MicroBatch> batches, int64_t targets,
                                       PhaseSeconds& seconds);
  void UpdateLossScale(StepReport& report);
  Status UpdateFp8Scales(PhaseSeconds& seconds);
  Status Update(StepReport& report);
  Result<double> Squares(const TensorView& gradients);
  Status MeasureSmallBatch(const TensorView& gradient);
  Status EstimateNoiseScale(int64_t targets, StepReport& report);
  void ExchangeWeights(const std::vector<AveragedParameter>& averages);
  Result<EvaluationReport> EvaluateWeights();
  Status SumScalars(std::span<double> values, PhaseSeconds& seconds);
  Status FinishReduction(PhaseSeconds& seconds);
  /// Which step's data the step under way trains on, and as many of them.
  int64_t DataStep() const { return counters_.step + counters_.data_offset; }
  int64_t world_size() const { return parts_.reducer ? parts_.reducer->world_size() : 1; }

  JobSpec job_;
  Plan plan_;
  TrainerParts parts_;
  BatchSchedule batches_;
  ParameterGradients gradients_;
  std::unique_ptr<Updater> updater_;
  std::unique_ptr<NoiseScale> noise_scale_;  ///< Or none.
  double small_squares_ = 0;                 ///< Of the gradients of the first micro-batch.
  double large_squares_ = 0;                 ///< Of those of the whole batch, with the loss scale.
  TrainCounters counters_;
  std::optional<Repack> stale_ = Repack::kAll;  ///< What has changed since Pack.
  std::optional<int64_t> packed_step_;          ///< Pack's last argument, where it matters.
};

}  // namespace weft::engine
