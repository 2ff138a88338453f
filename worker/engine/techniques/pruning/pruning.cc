#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/model/parameter_list.h"
#include "common/rng.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/optim/optimizer_state.h"
#include "worker/engine/techniques/mask_choice.h"
#include "worker/engine/techniques/pruning/pruned_products.h"
#include "worker/engine/techniques/pruning/pruning_cost.h"
#include "worker/engine/techniques/pruning/pruning_scores.h"
#include "worker/engine/techniques/pruning/sharded_matrices.h"
#include "worker/engine/techniques/pruning/synaptic_flow.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/weight_snapshot.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Trainings one after the other (Frankle and Carbin 2019, arXiv 1803.03635; rewinding: Frankle et
/// al. 2020, arXiv 1912.05671): keeps the weights of a step and goes back to them.
class Rewinding {
 public:
  Status Start(const TrainingParts& parts, const LotteryRounds& rounds) {
    parts_ = parts;
    rounds_ = rounds;
    return weights_.Allocate(parts, {"pruning/", "/rewind"});
  }

  const LotteryRounds& rounds() const { return rounds_; }

  /// The weights are those to go back to.
  Status Remember() const { return weights_.Take(); }

  /// Begins the training anew with them.
  Status Rewind() {
    WEFT_RETURN_IF_ERROR(weights_.Restore());
    return parts_.begin_anew();
  }

  /// The same with new random weights: those of the next seed.
  Status Reinitialize() {
    WEFT_RETURN_IF_ERROR(parts_.parameters->Initialize(parts_.context->seed + 1));
    return parts_.begin_anew();
  }

  ScheduledStep Scheduled(int64_t step) const {
    return {.step = rounds_.PositionOf(step), .steps = rounds_.steps};
  }

  std::vector<NamedTensor> StateTensors() const { return weights_.Named(); }

 private:
  TrainingParts parts_;
  LotteryRounds rounds_;
  WeightSnapshot weights_;
};

/// Zeros in the parameters, chosen before the first step or again and again. Weights are ranked
/// within whole matrices: ranks that have parts of scores gather them, and all choose the same.
/// Each then has the mask of all that it multiplies with, where the weights are.
class Pruning : public Technique {
 public:
  /// `sparse`: products may be of the kept weights alone. `tensor_ranks`: as in TechniqueInputs.
  Pruning(const PruningSpec& spec, bool sparse, Collective* tensor_ranks)
      : spec_(spec), factory_(spec, tensor_ranks), sparse_(sparse), tensor_ranks_(tensor_ranks) {}

  ProductsFactory* BlockProducts(ProductsFactory* /*before*/) override {
    return sparse_ ? &factory_ : nullptr;
  }

  std::string_view WhyNoGraphs() const override {
    return sparse_ && spec_.products == "sparse" ? "kept weights are listed in some steps alone"
                                                 : "";
  }

  Status OnTraining(const TrainingParts& parts) override {
    parts_ = parts;
    shards_.emplace(&parts_);
    if (parts.parameters->offloaded()) host_ = InHostMemoryPool(*parts.context);
    std::map<std::string, int64_t> kept;
    for (const PrunedMatrix& matrix : PrunedMatricesOf(spec_, parts.job->model)) {
      kept[matrix.name] = matrix.kept;
    }
    const ParameterSet& parameters = *parts.parameters;
    std::vector<size_t> places;  // of the masks
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (!IsPruned(spec_, parameter, parameter.name)) continue;
      // Whole also where ranks have parts of the value, which is not in memory now (ZeRO 3).
      const ParameterPart whole = {
          .index = i, .value = {nullptr, DType::kU8, parameter.shape}, .gradient = {}};
      const bool on_host = parameters.on_host(i);
      places.push_back(MasksOf(on_host).Add("pruning/" + parameter.name + "/mask", parameters,
                                            whole, {.dtype = DType::kU8}));
      matrices_.push_back({.parameter = i,
                           .kept = kept.at(parameter.name),
                           .on_host = on_host,
                           .mask = {},
                           .state = {}});
      indices_.push_back(i);
    }
    WEFT_RETURN_IF_ERROR(masks_.Allocate(*parts.context));
    if (host_) WEFT_RETURN_IF_ERROR(host_masks_.Allocate(*host_));
    const std::vector<NamedTensor> optimizer_state = parts.optimizer_state();
    for (size_t m = 0; m < matrices_.size(); ++m) {
      Matrix& matrix = matrices_[m];
      matrix.mask = MasksOf(matrix.on_host)[places[m]];
      factory_.AddMask(matrix.parameter, matrix.mask);
      for (const NamedTensor& tensor : optimizer_state) {
        if (tensor.parameter != matrix.parameter) continue;
        if (tensor.part || tensor.view.shape == matrix.mask.shape) matrix.state.push_back(tensor);
      }
    }
    if (spec_.method != "lottery_ticket") return OkStatus();
    return rewinding_.emplace().Start(parts, LotteryRoundsOf(spec_, parts.job->train.steps));
  }

  // Masks are chosen, and weights packed under them, once an update is over.
  bool NeedsWholeUpdates() const override { return true; }

  Status BeforeStep(int64_t step) override {
    factory_.SetWholeGradients(ReplacesUpdate(step));
    if (rewinding_) return BeginRounds(step);
    if (chosen()) return OkStatus();
    ProfileScope scope(parts_.context->profiler, "choose weights");
    WEFT_ASSIGN_OR_RETURN(std::vector<Mask> masks, ChooseMasks(step));
    return SetMasks(std::move(masks));
  }

  ScheduledStep Scheduled(ScheduledStep place) const override {
    return rewinding_ ? rewinding_->Scheduled(place.step) : place;
  }

  // Rules that treat a matrix as a whole, as Muon does, move the weights that have no gradient too.
  Status BeforeForward(Context& context, std::optional<int64_t>) override {
    if (!chosen() || UpdatesElementwise(parts_.job->optimizer)) return OkStatus();
    ProfileScope scope(context.profiler, "mask weights");
    for (const Matrix& matrix : matrices_) {
      WEFT_RETURN_IF_ERROR(ApplyTo(shards_->HeldValue(matrix.parameter), matrix));
    }
    return OkStatus();
  }

  Status OnGradients(Context& state, int64_t step) override {
    if (ReplacesUpdate(step)) return OkStatus();  // what is grown has a gradient
    ProfileScope scope(state.profiler, "mask gradients");
    for (const Matrix& matrix : matrices_) {
      WEFT_RETURN_IF_ERROR(ApplyTo(shards_->HeldGradient(matrix.parameter), matrix));
    }
    return OkStatus();
  }

  bool ReplacesUpdate(int64_t step) const override {
    return IsExchangeStep(spec_, step, parts_.job->train.steps);
  }

  Status InsteadOfUpdate(Context& state, int64_t step) override {
    ProfileScope scope(state.profiler, "exchange weights");
    const double rate = DropRate(spec_, step, parts_.job->train.steps);
    std::array<double, 2> grown_of = {0, 0};
    for (const Matrix& matrix : matrices_) {
      const auto dropped = static_cast<int64_t>(rate * static_cast<double>(matrix.kept));
      WEFT_ASSIGN_OR_RETURN(const Mask before, FetchMask(matrix));
      Mask after = before;
      if (dropped > 0 && matrix.kept < WeightsOf(matrix)) {
        WEFT_ASSIGN_OR_RETURN(after, Exchanged(matrix, before, dropped, step));
        WEFT_RETURN_IF_ERROR(SetMask(matrix, after));
      }
      parts_.context->MarkProgress();
      factory_.MasksChanged(chosen());
      if (!parts_.parameters->Counts(matrix.parameter)) continue;
      for (size_t i = 0; i < after.size(); ++i) {
        grown_of[0] += after[i] > before[i] ? 1 : 0;
        grown_of[1] += after[i];
      }
    }
    WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(grown_of));
    grown_ = grown_of[0] / grown_of[1];
    return OkStatus();
  }

  Status OnStepEnd(const FinishedStep& step) override {
    if (!density_) WEFT_RETURN_IF_ERROR(MeasureDensity());
    step.metrics->emplace(kDensityMetric, *density_);
    if (grown_) step.metrics->emplace(kGrownMetric, *grown_);
    grown_.reset();
    return OkStatus();
  }

  std::vector<NamedTensor> StateTensors() override {
    std::vector<NamedTensor> tensors = masks_.Named();
    for (NamedTensor& tensor : host_masks_.Named()) tensors.push_back(std::move(tensor));
    tensors.push_back({.name = "pruning/chosen", .view = {&chosen_, DType::kF32, {1}}});
    if (!rewinding_) return tensors;
    for (NamedTensor& tensor : rewinding_->StateTensors()) tensors.push_back(std::move(tensor));
    return tensors;
  }

  void OnRestored(int64_t) override {
    factory_.MasksChanged(chosen());
    density_.reset();
  }

 private:
  using Mask = std::vector<uint8_t>;
  using Held = ShardedMatrices::Held;

  struct Matrix {
    int64_t parameter = 0;
    int64_t kept = 0;                ///< Weights; of a global choice those of an equal share.
    bool on_host = false;            ///< All of it is in the host memory pool.
    TensorView mask;                 ///< Of this rank's rows and columns.
    std::vector<NamedTensor> state;  ///< Of the optimizer, a number for each weight.
  };

  bool chosen() const { return chosen_ != 0; }
  const Parameter& ParameterOf(const Matrix& matrix) const {
    return (*parts_.parameters)[matrix.parameter];
  }
  /// Number of weights of the whole matrix.
  int64_t WeightsOf(const Matrix& matrix) const {
    return ParameterOf(matrix).logical_shape().Elements();
  }
  PhiloxKey KeyOf(int64_t step, const std::string& site) const {
    return {parts_.context->seed, static_cast<uint32_t>(step), SiteHash(site.c_str())};
  }

  OptimizerState& MasksOf(bool on_host) { return on_host ? host_masks_ : masks_; }
  const Stream& StreamOf(const Matrix& matrix) const {
    return matrix.on_host ? host_->stream : parts_.context->stream;
  }

  /// The part of the mask for numbers of weights from `first` on.
  static TensorView MaskFrom(const Matrix& matrix, int64_t first, int64_t count) {
    return {matrix.mask.As<uint8_t>() + first, DType::kU8, {count}, matrix.mask.device};
  }

  /// Masks numbers that are where the matrix is.
  Status ApplyTo(const Held& numbers, const Matrix& matrix) const {
    const TensorView x = numbers.view.Flat();
    const int64_t count = x.shape.Elements();
    if (count == 0) return OkStatus();
    const TensorView mask = MaskFrom(matrix, numbers.first, count);
    CountWork(parts_.context->profiler, 0, static_cast<double>(2 * x.Bytes() + mask.Bytes()));
    return kernels::ApplyMask(StreamOf(matrix), {.x = x, .mask = mask});
  }

  /// Masks a state of the optimizer, which may be in a file.
  Status ApplyToState(const NamedTensor& state, const Matrix& matrix) const {
    const int64_t first = state.part ? state.part->first : 0;
    if (state.stored == nullptr) return ApplyTo({first, state.view}, matrix);
    const auto apply = [&](int64_t from, const TensorView& piece) {
      const TensorView mask = MaskFrom(matrix, first + from, piece.shape.Elements());
      return kernels::ApplyMask(StreamOf(matrix), {.x = piece, .mask = mask});
    };
    return state.stored->ReplaceFloats(state.view.shape.Elements(), apply);
  }

  /// Replaces a mask; weights without it, and what the optimizer keeps of them, become zero.
  Status SetMask(const Matrix& matrix, const Mask& mask) const {
    WEFT_RETURN_IF_ERROR(Upload(StreamOf(matrix), mask.data(), matrix.mask));
    WEFT_RETURN_IF_ERROR(ApplyTo(shards_->HeldValue(matrix.parameter), matrix));
    for (const NamedTensor& state : matrix.state) {
      WEFT_RETURN_IF_ERROR(ApplyToState(state, matrix));
    }
    return OkStatus();
  }

  /// Replaces all of them by those of whole matrices.
  Status SetMasks(std::vector<Mask> masks) {
    for (size_t m = 0; m < matrices_.size(); ++m) {
      const Mask own = PartOfWhole(ParameterOf(matrices_[m]), std::move(masks[m]));
      WEFT_RETURN_IF_ERROR(SetMask(matrices_[m], own));
    }
    chosen_ = 1;
    factory_.MasksChanged(true);
    density_.reset();
    parts_.values_changed();
    return OkStatus();
  }

  /// Prepares a step of a lottery ticket: in the first training all weights are kept; a round keeps
  /// the largest of those that the one before has trained.
  Status BeginRounds(int64_t step) {
    const LotteryRounds& rounds = rewinding_->rounds();
    if (!chosen()) {
      std::vector<Mask> masks;
      for (const Matrix& matrix : matrices_) {
        masks.emplace_back(static_cast<size_t>(WeightsOf(matrix)), uint8_t{1});
      }
      WEFT_RETURN_IF_ERROR(SetMasks(std::move(masks)));
    }
    if (step == rounds.rewind_step) WEFT_RETURN_IF_ERROR(rewinding_->Remember());
    if (!rounds.Rewinds(step)) return OkStatus();
    ProfileScope scope(parts_.context->profiler, "choose weights");
    const double power =
        static_cast<double>(rounds.RoundOf(step)) / static_cast<double>(rounds.rounds);
    const auto scores_of = [&](size_t m) -> Result<std::vector<float>> {
      WEFT_ASSIGN_OR_RETURN(const Mask mask, FetchMask(matrices_[m]));
      return KeptMagnitudes(matrices_[m], mask);
    };
    WEFT_ASSIGN_OR_RETURN(std::vector<Mask> masks, KeepBest(scores_of, power, step));
    const bool anew = spec_.restart == "reinitialize" && rounds.RoundOf(step) == rounds.rounds;
    WEFT_RETURN_IF_ERROR(anew ? rewinding_->Reinitialize() : rewinding_->Rewind());
    return SetMasks(std::move(masks));
  }

  Result<Mask> FetchMask(const Matrix& matrix) const {
    Mask mask(static_cast<size_t>(matrix.mask.shape.Elements()));
    WEFT_RETURN_IF_ERROR(Download(StreamOf(matrix), matrix.mask, mask.data()));
    return mask;
  }

  /// Scores of whole matrices, by matrix: all ranks ask for each of them, in order.
  using WholeScores = std::function<Result<std::vector<float>>(size_t matrix)>;

  /// |w| of a whole matrix.
  Result<std::vector<float>> Magnitudes(int64_t parameter) const {
    WEFT_ASSIGN_OR_RETURN(std::vector<float> magnitudes, shards_->Value(parameter));
    for (float& value : magnitudes) value = std::fabs(value);
    return WholeOfParts((*parts_.parameters)[parameter], std::move(magnitudes), tensor_ranks_);
  }

  /// The same, kNeverChosen where a weight is not kept, which tells ranks what the others keep.
  /// `own`: the mask of this rank's rows and columns.
  Result<std::vector<float>> KeptMagnitudes(const Matrix& matrix, const Mask& own) const {
    WEFT_ASSIGN_OR_RETURN(std::vector<float> magnitudes, shards_->Value(matrix.parameter));
    for (size_t i = 0; i < own.size(); ++i) {
      magnitudes[i] = own[i] != 0 ? std::fabs(magnitudes[i]) : kNeverChosen;
    }
    return WholeOfParts(ParameterOf(matrix), std::move(magnitudes), tensor_ranks_);
  }

  Result<std::vector<Mask>> ChooseMasks(int64_t step) const {
    if (spec_.method == "synflow") return ChooseBySynapticFlow(step);
    if (spec_.method == "magnitude") {
      return KeepBest([&](size_t m) { return Magnitudes(indices_[m]); }, 1, step);
    }
    if (spec_.method == "snip" || spec_.method == "grasp") return ChooseByGradients(step);
    // Equal scores are ranked at random, by all ranks alike.
    const auto zeros = [&](size_t m) -> Result<std::vector<float>> {
      return std::vector<float>(static_cast<size_t>(WeightsOf(matrices_[m])), 0.0f);
    };
    return KeepBest(zeros, 1, step);
  }

  // Ranks score what they have gradients of, and gather the scores.
  Result<std::vector<Mask>> ChooseByGradients(int64_t step) const {
    WEFT_ASSIGN_OR_RETURN(PruningScores own, spec_.method == "snip"
                                                 ? ConnectionSensitivity(parts_, indices_)
                                                 : GradientFlow(parts_, indices_));
    const auto scores_of = [&](size_t m) -> Result<std::vector<float>> {
      WEFT_ASSIGN_OR_RETURN(std::vector<float> scores,
                            shards_->Whole(indices_[m], std::move(own[m])));
      return WholeOfParts(ParameterOf(matrices_[m]), std::move(scores), tensor_ranks_);
    };
    return KeepBest(scores_of, 1, step);
  }

  /// Masks of the best weights of whole matrices, by matrix or of all: with `power` 1 as many as in
  /// the end, with 0 all. By matrix the scores of one are here at a time.
  Result<std::vector<Mask>> KeepBest(const WholeScores& scores_of, double power,
                                     int64_t step) const {
    const auto count = [&](double kept, double weights) {
      return std::llround(weights * std::pow(kept / weights, power));
    };
    const bool global = spec_.distribution == "global";
    std::vector<Mask> masks;
    std::vector<float> all;
    for (size_t m = 0; m < matrices_.size(); ++m) {
      const Matrix& matrix = matrices_[m];
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> scores, scores_of(m));
      parts_.context->MarkProgress();
      if (global) {
        all.insert(all.end(), scores.begin(), scores.end());
        continue;
      }
      const int64_t kept =
          count(static_cast<double>(matrix.kept), static_cast<double>(scores.size()));
      masks.push_back(KeepLargest(scores, kept, KeyOf(step, ParameterOf(matrix).name)));
    }
    if (!global) return masks;
    const auto weights = static_cast<double>(all.size());
    const Mask mask = KeepLargest(all, count(spec_.density * weights, weights), KeyOf(step, "all"));
    auto next = mask.begin();
    for (const Matrix& matrix : matrices_) {
      const auto end = next + WeightsOf(matrix);
      masks.emplace_back(next, end);
      next = end;
    }
    return masks;
  }

  /// SynFlow's rounds: each scores what the one before has left.
  Result<std::vector<Mask>> ChooseBySynapticFlow(int64_t step) const {
    const ParameterSet& parameters = *parts_.parameters;
    std::map<std::string, ParameterInfo> whole;  // as they are on one rank
    for (const ParameterInfo& info : ParametersOf(parts_.job->model)) whole[info.name] = info;
    std::vector<const ParameterAttributes*> attributes;
    std::vector<std::vector<int64_t>> shapes;
    std::vector<int64_t> network_indices;
    std::vector<size_t> pruned;  // by matrix_, of the network
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const Parameter& parameter = parameters[i];
      if (!parameter.block_matrix()) continue;
      if (IsPruned(spec_, parameter, parameter.name)) pruned.push_back(attributes.size());
      const ParameterInfo& info = whole.at(parameter.name);
      attributes.push_back(&info);
      shapes.push_back(info.shape);
      network_indices.push_back(i);
    }
    FlowNetwork network = FlowNetworkOf(parts_.job->model, attributes, shapes);
    for (size_t m = 0; m < network_indices.size(); ++m) {
      WEFT_ASSIGN_OR_RETURN(network.matrices[m].magnitudes, Magnitudes(network_indices[m]));
    }
    std::vector<Mask> masks;
    const int64_t rounds = PruningRounds(spec_);
    for (int64_t round = 1; round <= rounds; ++round) {
      std::vector<std::vector<float>> all = SynapticFlow(network);
      std::vector<std::vector<float>> scores;
      for (size_t m = 0; m < pruned.size(); ++m) {
        std::vector<float>& score = scores.emplace_back(std::move(all[pruned[m]]));
        for (size_t i = 0; i < score.size() && !masks.empty(); ++i) {
          if (masks[m][i] == 0) score[i] = kNeverChosen;
        }
      }
      const double power = static_cast<double>(round) / static_cast<double>(rounds);
      const auto scores_of = [&](size_t m) -> Result<std::vector<float>> {
        return std::move(scores[m]);
      };
      WEFT_ASSIGN_OR_RETURN(masks, KeepBest(scores_of, power, step));
      for (size_t m = 0; m < pruned.size(); ++m) {
        std::vector<float>& left = network.matrices[pruned[m]].magnitudes;
        for (size_t i = 0; i < left.size(); ++i) left[i] = masks[m][i] != 0 ? left[i] : 0;
      }
    }
    return masks;
  }

  /// The mask of this rank's rows and columns once that many weights of a matrix, with the mask
  /// `own`, are dropped and as many grown.
  Result<Mask> Exchanged(const Matrix& matrix, const Mask& own, int64_t dropped,
                         int64_t step) const {
    const Parameter& parameter = ParameterOf(matrix);
    WEFT_ASSIGN_OR_RETURN(const std::vector<float> magnitudes, KeptMagnitudes(matrix, own));
    Mask mask(magnitudes.size());
    std::transform(magnitudes.begin(), magnitudes.end(), mask.begin(),
                   [](float magnitude) -> uint8_t { return magnitude != kNeverChosen ? 1 : 0; });
    std::vector<float> growth(mask.size(), 0.0f);  // set: at random, as all are equal
    if (spec_.method == "rigl") {
      WEFT_ASSIGN_OR_RETURN(growth, shards_->Gradient(matrix.parameter));
      for (float& score : growth) score = std::fabs(score);
      WEFT_ASSIGN_OR_RETURN(growth, WholeOfParts(parameter, std::move(growth), tensor_ranks_));
    }
    return PartOfWhole(parameter, Exchange(mask, magnitudes, growth, dropped,
                                           KeyOf(step, parameter.name + "/drop"),
                                           KeyOf(step, parameter.name + "/grow")));
  }

  Status MeasureDensity() {
    std::array<double, 2> counts = {0, 0};
    for (const Matrix& matrix : matrices_) {
      if (!parts_.parameters->Counts(matrix.parameter)) continue;
      WEFT_ASSIGN_OR_RETURN(const Mask mask, FetchMask(matrix));
      counts[0] += static_cast<double>(std::count(mask.begin(), mask.end(), uint8_t{1}));
      counts[1] += static_cast<double>(mask.size());
    }
    WEFT_RETURN_IF_ERROR(parts_.sum_over_replica(counts));
    density_ = counts[0] / counts[1];
    return OkStatus();
  }

  PruningSpec spec_;
  PrunedProductsFactory factory_;
  bool sparse_;
  Collective* tensor_ranks_;
  TrainingParts parts_;
  std::optional<ShardedMatrices> shards_;
  std::optional<Context> host_;  ///< Where offloaded matrices are.
  OptimizerState masks_, host_masks_;
  std::vector<Matrix> matrices_;
  std::vector<int64_t> indices_;        ///< Of the parameters, by matrix.
  float chosen_ = 0;                    ///< Whether masks are; in checkpoints.
  std::optional<Rewinding> rewinding_;  ///< Of a lottery ticket.
  std::optional<double> density_;
  std::optional<double> grown_;  ///< In this step.
};

}  // namespace

std::unique_ptr<Technique> NewPruning(const TechniqueInputs& inputs) {
  const PruningSpec& spec = inputs.train.pruning;
  if (spec.method == "none") return nullptr;
  return std::make_unique<Pruning>(spec, MayUseSparseProducts(inputs.train), inputs.tensor_ranks);
}

}  // namespace weft::engine
