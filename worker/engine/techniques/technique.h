#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/precision.h"
#include "common/spec/job_spec.h"
#include "common/spec/phases.h"
#include "common/spec/plan.h"
#include "common/status.h"
#include "kernels/optimizer/optimizer.h"
#include "kernels/step_value.h"
#include "worker/engine/nn/added_logits.h"
#include "worker/engine/nn/column_mask.h"
#include "worker/engine/nn/graft.h"
#include "worker/engine/nn/layers_of_pass.h"
#include "worker/engine/nn/parameter_part.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/optim/optimizer.h"
#include "worker/engine/techniques/sequence_losses.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

class Collective;
class ContextParallel;
class ProductsFactory;
struct ElasticNetwork;

/// The specs that decide which techniques there are, and how.
struct TechniqueInputs {
  const ModelSpec& model;  ///< Its sizes resolved.
  const TrainSpec& train;  ///< Of a model without training: its precision, and defaults.
  bool with_gradients = true;
  Collective* tensor_ranks = nullptr;  ///< Tensor-parallel ranks, or none; outlives them,
  const ContextParallel* context_ranks = nullptr;  ///< as do context-parallel ones.
  /// What this training has grown from: for the techniques of a model with masks (MaskedGrowthOf),
  /// for those of the training alone RewarmedGrowthOf; null: nothing of the kind.
  const PhaseGrowth* growth = nullptr;
  const ElasticNetwork* elastic = nullptr;      ///< As in ModelOptions,
  const LogitsSource* logits_source = nullptr;  ///< as is this.
};

/// Parameters that one optimizer updates, and where.
struct UpdatedParameters {
  bool in_host_memory_pool = false;       ///< Else in the memory of the device.
  std::vector<ParameterPart> parts = {};  ///< Those of this rank; empty: all that is trained.
};

/// The objects that a training gives to its techniques before the first step. All of it outlives
/// them.
struct TrainingParts {
  const JobSpec* job = nullptr;
  const Plan* plan = nullptr;
  Context* context = nullptr;  ///< Of the device.
  ParameterSet* parameters = nullptr;
  std::span<const UpdatedParameters> updated;
  bool shards_updates = false;       ///< Ranks update different parts (ZeRO).
  int64_t data_ranks = 1;            ///< Ranks that train on different sequences.
  int64_t data_rank = 0;             ///< This one among them.
  int64_t train_sequences = 0;       ///< Of one pass over the training data.
  int64_t validation_sequences = 0;  ///< That evaluations read; 0: there are none.
  /// Adds up over these ranks.
  std::function<Status(std::span<double>)> sum_scalars;
  /// Replaces each of these magnitudes by the largest of all ranks of the training, tensor-parallel
  /// ones too.
  std::function<Status(const TensorView&)> take_maxima;
  /// Adds up over the ranks that have other parts of the same replica of the model: tensor-,
  /// expert- and pipeline-parallel ones.
  std::function<Status(std::span<double>)> sum_over_replica;
  /// Adds up, with shards_updates, over the ranks that together have all parts of what is updated:
  /// with expert parallelism over those with the same experts.
  std::function<Status(std::span<double>)> sum_over_parts;
  /// All numbers of a parameter, in their order, where ranks have successive parts of them (ZeRO),
  /// as they are cut in `updated`: `own` are those of this rank. All these ranks ask for it.
  std::function<Result<std::vector<float>>(int64_t parameter, std::span<const float> own)>
      gather_parts;
  /// Differentiates the loss of the batch of the step that is about to begin, at the values that
  /// the parameters have: the gradients become those of the step, summed over the ranks, times
  /// `loss_scale`. All ranks ask for it, in BeforeStep alone.
  std::function<Status(double loss_scale)> compute_gradients;
  /// The log-probability of each sequence of a part of the data, by its index, at the values that
  /// the parameters have. All ranks ask for it, in JudgeSequences alone.
  std::function<Result<std::vector<double>>(DataPart part)> score_sequences;
  /// The state of the optimizer, as in checkpoints; writing into the views changes it.
  std::function<std::vector<NamedTensor>()> optimizer_state;
  /// The f32 value that a trained parameter, by its index, has had since the last outer step, with
  /// train.local_steps.
  std::function<TensorView(int64_t parameter)> outer_value;
  /// Says that BeforeStep has changed parameters.
  std::function<void()> values_changed;
  /// Begins the training anew, in BeforeStep alone, at the parameters to whose parts here (see
  /// `updated`) it has given values: the state of the optimizer is as before the first step, and no
  /// update counts. All ranks ask for it. Technique::Scheduled says where schedule and data are.
  std::function<Status()> begin_anew;

  /// For work where `of` are.
  Context ContextOf(const UpdatedParameters& of) const {
    return of.in_host_memory_pool ? InHostMemoryPool(*context) : *context;
  }
};

/// Where in the schedule of the learning rate, and in the data, a step is.
struct ScheduledStep {
  int64_t step = 0;
  int64_t steps = 0;  ///< Of the whole schedule.
};

/// An update that is about to be enqueued.
struct PendingUpdate {
  kernels::StepValue<float> learning_rate;
  kernels::UpdateGate gate;  ///< What the gradients are multiplied by, and whether it is made.
  double loss_scale = 1;
  int64_t targets = 1;                         ///< Of all ranks.
  std::span<const int64_t> part_targets = {};  ///< See JointLosses.
  int64_t step = 0;                            ///< As Technique::Scheduled says it.
};

/// Losses of a batch, by its parts that are of different jobs (TechniqueCost::JointJobs); of all
/// ranks.
struct JointLosses {
  std::span<const double> sums = {};      ///< Of the losses at their targets,
  std::span<const int64_t> targets = {};  ///< and how many these are.

  size_t parts() const { return sums.size(); }
};

/// A step whose gradients are known, once the host knows whether they were applied.
struct FinishedStep {
  int64_t step = 0;
  bool applied = false;  ///< The parameters have changed.
  double loss_scale = 1;
  int64_t batch = 0;            ///< Sequences of all ranks.
  int64_t targets = 0;          ///< Of all ranks.
  int64_t first_targets = 0;    ///< Of the first micro-batch of this rank.
  double gradient_squares = 0;  ///< Sum over all trained numbers, with the loss scale.
  JointLosses joint;            ///< Where the job trains several jobs together.
  /// For numbers that the technique measures, by TechniqueMetric::name.
  std::map<std::string, double>* metrics = nullptr;
};

/// Part of the training that is switched on by a field of the job. The model and the trainer call
/// these hooks, in this order, and know nothing else of it. Hooks that a technique does not
/// override change nothing. What it costs is a TechniqueCost (common/model/technique_cost.h). Not
/// thread-safe.
class Technique {
 public:
  virtual ~Technique() = default;

  // Building the model.

  /// Makes the products of the layers of blocks in place of `before`, or null: those stay. `before`
  /// is what the techniques before this one make, null where products are dense; a technique that
  /// combines with one of these makes its own of them. Asked before there are layers, which it
  /// outlives.
  virtual ProductsFactory* BlockProducts(ProductsFactory* /*before*/) { return nullptr; }
  /// Whether BlockProducts makes its own of those of the techniques before this one. Where it does
  /// not, the job has no other technique that makes products (TechniqueCost::refusals).
  virtual bool CombinesProducts() const { return false; }

  /// Makes the products of linear layers outside the blocks (IsOuterWeight), or null: these are
  /// dense. One technique of a job does. Asked and outlived as BlockProducts.
  virtual ProductsFactory* OuterProducts() { return nullptr; }

  /// The mask of the columns of the residual stream, which norms obey, or null. What writes into
  /// the stream is masked by grafts. Asked before there are layers, which it outlives.
  virtual const ColumnMask* StreamMask() { return nullptr; }

  /// The logits that the head of a causal language model adds to its own, or null: none. Asked
  /// before there are layers, which it outlives.
  virtual const AddedLogits* LogitsToAdd() { return nullptr; }

  /// How many layers passes run, or null: as many as the network has. Of n layers layer l has block
  /// floor(l * blocks / n). The same on all ranks; at most those of DeepestModel
  /// (common/model/technique_cost.h).
  virtual LayersOfPass LayersOfPasses() { return nullptr; }

  /// Puts grafts and a gate at a site of the network, which is about to be registered: for the
  /// embedding and each sub-layer on this rank, in their order.
  virtual void OnSite(const GraftSite&, Grafts&) {}

  /// The parameters of the network are registered, those of model.freeze are frozen, and none has
  /// memory yet: registers more.
  virtual Status OnParameters(ParameterSet&) { return OkStatus(); }

  // Before the first step.

  /// Takes memory. `parts` stay valid.
  virtual Status OnTraining(const TrainingParts&) { return OkStatus(); }

  /// Why steps cannot be recorded once and launched as CUDA graphs; "" where they can.
  virtual std::string_view WhyNoGraphs() const { return ""; }

  // In the order of a step.

  /// Whether what `step`, as Scheduled says it, enqueues is that of no other step, the same on all
  /// ranks: it is then neither recorded nor launched as a CUDA graph.
  virtual bool RunsAlone(int64_t /*step*/) const { return false; }

  /// Where a step is that the job has at `place`: elsewhere where the technique begins the training
  /// anew.
  virtual ScheduledStep Scheduled(ScheduledStep place) const { return place; }

  /// Tokens that `step` trains on of each sequence, its first ones, where the data have `length`.
  virtual int64_t TrainedLength(int64_t /*step*/, int64_t length) const { return length; }

  /// `step` is about to begin. May compute gradients and change parameters, see TrainingParts.
  virtual Status BeforeStep(int64_t /*step*/) { return OkStatus(); }

  /// Whether BeforeForward computes other weights in each step, also when no parameter has changed.
  virtual bool WeightsDependOnStep() const { return false; }
  /// Weights are about to be packed for the products of `step`, or with none for evaluation:
  /// computes the values of derived parameters.
  virtual Status BeforeForward(Context&, std::optional<int64_t> /*step*/) { return OkStatus(); }

  /// Whether OnFirstGradient wants to be called.
  virtual bool ObservesFirstGradients() const { return false; }
  /// The gradients of the first micro-batch of this rank alone, one parameter or several: before
  /// those of other micro-batches or ranks are added. Together they are called once for each
  /// number. With the loss scale, divided by the targets of the whole batch.
  virtual Status OnFirstGradient(Context&, const TensorView&) { return OkStatus(); }
  /// The first micro-batch begins.
  virtual void OnFirstMicroBatch() {}

  /// Whether the loss is that of JudgeSequences, in place of the mean of those at the targets.
  virtual bool JudgesSequences() const { return false; }
  /// Computes the losses of a batch, the same on all ranks. Its gradients are then computed, or it
  /// is one of evaluation.
  virtual Result<SequenceLosses> JudgeSequences(DataPart, const SequenceScores&) {
    return SequenceLosses();
  }

  /// The gradients of these derived parameters (ParameterList::Derive) are sums over micro-batches
  /// and ranks, with the loss scale: computes those of their sources. Called once for each of them,
  /// equal shapes one after the other; where ranks shard gradients for one at a time, when it and
  /// its sources alone have gradients in memory. `state`: where these are.
  virtual Status OnDerivedGradients(Context& /*state*/, std::span<const int64_t> /*derived*/,
                                    int64_t /*step*/) {
    return OkStatus();
  }

  /// Gradients are sums over micro-batches and ranks, with the loss scale, neither measured nor
  /// clipped. After OnDerivedGradients. `state`: where parameters and gradients are.
  virtual Status OnGradients(Context& /*state*/, int64_t /*step*/) { return OkStatus(); }

  /// The norm of the gradients is known, and their clipping decided: changes gradients or
  /// parameters before the rule of the optimizer sees them. `state`: as above. Called where updates
  /// are made at once, not late or overlapped with the next step.
  virtual Status BeforeUpdate(Context& /*state*/, const PendingUpdate&) { return OkStatus(); }

  /// The rule of the optimizer has been enqueued where BeforeUpdate was called: changes parameters,
  /// or parts of them, before ranks that shard updates exchange these and before they are packed.
  virtual Status AfterUpdate(Context& /*state*/) { return OkStatus(); }

  /// Whether BeforeUpdate multiplies gradients by what train.gradient_clip_norm asks for, and
  /// nobody else does.
  virtual bool ClipsGradients() const { return false; }

  /// Whether the second moments of Adam stay as they are in the update of `step`.
  virtual bool KeepsSecondMoments(int64_t /*step*/) const { return false; }

  /// The parameters, by index, that the update of `step` leaves as they are, with their state of
  /// the optimizer; empty: none. Their gradients are zero after OnGradients. Only for the rules of
  /// FindFusedRule, and not with optimizers that are offloaded.
  virtual std::vector<bool> FrozenIn(int64_t /*step*/) const { return {}; }

  /// The parameters whose state of the optimizer has been made zero since the first step. Of the
  /// rules of FindFusedRule alone, and not with optimizers that are offloaded.
  virtual RestartedState Restarted() const { return {}; }

  /// Whether InsteadOfUpdate is called in `step` and the optimizer does nothing, the same on all
  /// ranks. With an optimizer that is offloaded NeedsWholeUpdates is true, too.
  virtual bool ReplacesUpdate(int64_t /*step*/) const { return false; }
  /// Loss and gradients of the step are finite, and gradients are as after OnGradients. May change
  /// parameters and the state of the optimizer.
  virtual Status InsteadOfUpdate(Context& /*state*/, int64_t /*step*/) { return OkStatus(); }

  /// Whether OnUpdated reads parameters: then nothing changes them before it returns.
  virtual bool ReadsUpdatedParameters() const { return false; }
  /// Whether BeforeStep, InsteadOfUpdate or OnUpdated changes what is trained, one of the first two
  /// or BeforeForward reads it, or packing makes weights of it together with something else. Where
  /// the optimizer is offloaded, all that is trained then comes to the device after OnUpdated, not
  /// unit by unit while the next pass computes.
  virtual bool NeedsWholeUpdates() const { return false; }
  /// The parameters have been updated `updates` times.
  virtual Status OnUpdated(int64_t /*updates*/) { return OkStatus(); }

  /// A round of train.local_steps has ended, and the gradients are what this worker has learned:
  /// the values that parameters have now minus those of the last outer step. Changes them before
  /// their mean over the workers is taken. `state`: as above.
  virtual Status OnLearned(Context& /*state*/) { return OkStatus(); }

  /// The step has ended, applied or skipped.
  virtual Status OnStepEnd(const FinishedStep&) { return OkStatus(); }

  /// Whether the training has reached its end before the last step of the job, the same on all
  /// ranks. Asked between steps.
  virtual bool Finished() const { return false; }

  // Evaluation and state.

  /// Averages that stand for the parameters in an evaluation after `updates` updates; none where
  /// the parameters count. May overwrite gradients, see ExchangeableAverage.
  virtual Result<std::vector<AveragedParameter>> EvaluatedAverages(int64_t /*updates*/) {
    return std::vector<AveragedParameter>();
  }

  /// An evaluation of several jobs that are trained together has ended: for numbers that the
  /// technique measures, by TechniqueMetric::name.
  virtual void OnEvaluated(const JointLosses&, std::map<std::string, double>& /*metrics*/) {}

  // A network within the network; a training has one.

  /// The name of the metric (TechniqueMetric::name) that evaluations give its loss, in nats; "":
  /// there is none.
  virtual std::string_view SubNetworkMetric() const { return ""; }
  /// The passes from now on are of that network, or of the whole one again.
  virtual void SelectSubNetwork(bool /*selected*/) {}
  /// The factor of its loss in that of `step`; 0: the step does without. Micro-batches then have a
  /// second pass, of that network.
  virtual double SubNetworkWeight(int64_t /*step*/) const { return 0; }

  /// All that it remembers between steps, for checkpoints: writing into the views restores it.
  virtual std::vector<NamedTensor> StateTensors() { return {}; }
  /// StateTensors() have been overwritten with those after `steps` steps.
  virtual void OnRestored(int64_t /*steps*/) {}
};

}  // namespace weft::engine
