#include "worker/engine/techniques/low_rank_core/low_rank_core.h"

#include <cmath>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/factor_products.h"
#include "worker/engine/techniques/low_rank_core/low_rank_core_cost.h"
#include "worker/engine/techniques/singular_vectors.h"
#include "worker/engine/techniques/technique.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/tensor/profiler.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// The tensors of a weight, by index.
struct CoreTensors {
  int64_t out_factor, in_factor, rest;
};

CoreTensors TensorsOf(const ParameterList& parameters, int64_t weight) {
  const int64_t first = parameters[weight].first_source;
  return {first, first + 1, first + 2};
}

/// The parts of a weight's tensors, in their order, on a rank that has this part of the weight.
std::vector<Shard> ShardsOf(const Shard& weight) {
  if (weight.whole()) return std::vector<Shard>(3);
  Shard factor = weight;
  factor.axis = 1;
  const bool rows = weight.axis == 0;
  return {rows ? factor : Shard(), rows ? Shard() : factor, weight};
}

/// Gives the factors of an imported weight the matrix of their rank that is nearest to it.
Status StartNearest(ParameterSet& parameters, int64_t index, Collective* tensor_ranks) {
  const CoreTensors tensors = TensorsOf(parameters, index);
  const Shape shape = parameters[index].logical_shape();
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> weight,
                        WholeValue(parameters, index, tensor_ranks));
  const SingularVectors nearest = NearestOfRank({weight.begin(), weight.end()}, shape[0], shape[1],
                                                parameters[tensors.out_factor].shape[0]);
  const auto set = [&](int64_t to, const std::vector<double>& values) {
    return SetWholeValue(parameters, to, std::vector<float>(values.begin(), values.end()));
  };
  WEFT_RETURN_IF_ERROR(set(tensors.out_factor, nearest.left));
  return set(tensors.in_factor, nearest.right);
}

/// Starts the factors and then the rests, so that the whole network is the plain one. The core of a
/// random network is random with the deviation of its weights.
Status StartCores(Context& context, ParameterSet& parameters, ValuesFrom from,
                  Collective* tensor_ranks) {
  for (int64_t i : DerivedMatrices(parameters)) {
    if (from == ValuesFrom::kImported) {
      WEFT_RETURN_IF_ERROR(StartNearest(parameters, i, tensor_ranks));
    }
    const CoreTensors tensors = TensorsOf(parameters, i);
    // M = -(U V^T - W), in place: there may be no memory for more yet.
    const TensorView weight = parameters.value(i);
    WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {weight, -1}));
    WEFT_RETURN_IF_ERROR(MultiplyFactors(context, parameters.value(tensors.out_factor),
                                         parameters.value(tensors.in_factor), weight,
                                         /*accumulate=*/true));
    WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {weight, -1}));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {weight, parameters.value(tensors.rest)}));
  }
  return OkStatus();
}

class LowRankCore : public Technique {
 public:
  LowRankCore(LowRankCoreSpec spec, Collective* tensor_ranks)
      : spec_(std::move(spec)), tensor_ranks_(tensor_ranks) {}

  Status OnParameters(ParameterSet& parameters) override {
    parameters_ = &parameters;
    const std::vector<bool> chosen = ChooseTrainedMatrices(spec_.layers, parameters);
    for (size_t i = 0; i < chosen.size(); ++i) {
      if (chosen[i]) WEFT_RETURN_IF_ERROR(RegisterTensors(parameters, static_cast<int64_t>(i)));
    }
    parameters.AddValuesHook([this](Context& context, ValuesFrom from) {
      if (from != ValuesFrom::kCheckpoint) {
        WEFT_RETURN_IF_ERROR(StartCores(context, *parameters_, from, tensor_ranks_));
      }
      return MergeCores(context, *parameters_, !selected_);
    });
    return OkStatus();
  }

  Status OnTraining(const TrainingParts& parts) override {
    rests_.resize(static_cast<size_t>(parts.parameters->size()), false);
    updated_ = parts.updated;
    return OkStatus();
  }

  std::string_view WhyNoGraphs() const override { return "some steps train the core alone"; }

  bool WeightsDependOnStep() const override { return true; }

  Status BeforeForward(Context& context, std::optional<int64_t> step) override {
    return MergeCores(context, *parameters_, step ? !IsCoreStep(spec_, *step) : !selected_);
  }

  Status OnDerivedGradients(Context& context, std::span<const int64_t> derived,
                            int64_t step) override {
    return SplitCoreGradients(context, *parameters_, derived, !IsCoreStep(spec_, step));
  }

  Status OnGradients(Context& context, int64_t) override {
    if (tensor_ranks_ == nullptr) return OkStatus();
    return SumFactorGradients(context, GradientsOfWholeFactors(), *tensor_ranks_);
  }

  std::vector<bool> FrozenIn(int64_t step) const override {
    return IsCoreStep(spec_, step) ? rests_ : std::vector<bool>();
  }

  std::string_view SubNetworkMetric() const override { return "core_eval_loss_nats"; }
  void SelectSubNetwork(bool selected) override { selected_ = selected; }

 private:
  /// Gradients of the factors that all tensor-parallel ranks have, as far as this rank updates
  /// them.
  std::vector<TensorView> GradientsOfWholeFactors() const {
    std::vector<TensorView> gradients;
    const auto add = [&](int64_t index, const TensorView& gradient) {
      const Parameter& parameter = (*parameters_)[index];
      const bool is_factor = parameter.source_of >= 0 && !rests_[static_cast<size_t>(index)];
      if (is_factor && parameter.shard.whole() && gradient) gradients.push_back(gradient.Flat());
    };
    for (const UpdatedParameters& updated : updated_) {
      for (const ParameterPart& part : updated.parts) add(part.index, part.gradient);
      if (!updated.parts.empty()) continue;
      for (int64_t i = 0; i < parameters_->size(); ++i) add(i, parameters_->gradient(i));
    }
    return gradients;
  }

  Status RegisterTensors(ParameterList& parameters, int64_t index) {
    const Parameter weight = parameters[index];
    const Shape whole = weight.logical_shape();
    WEFT_RETURN_IF_ERROR(CheckCoreRank(spec_, {weight, weight.name, {whole[0], whole[1]}}));
    const std::vector<ParameterInfo> infos =
        CoreTensorsOf(spec_, {weight, weight.name, {weight.shape[0], weight.shape[1]}});
    const std::vector<Shard> shards = ShardsOf(weight.shard);
    // Their product has the deviation of the weight.
    const double each = 1 / std::sqrt(static_cast<double>(spec_.rank));
    const std::vector<Initializer> starts = {
        {.deviation = weight.initializer.deviation}, {.deviation = each}, {}};
    std::vector<ParameterList::Source> sources;
    for (size_t i = 0; i < infos.size(); ++i) {
      sources.push_back({infos[i].name, Shape{infos[i].shape[0], infos[i].shape[1]}, starts[i],
                         infos[i].parts, shards[i]});
    }
    parameters.Derive(index, std::move(sources));
    rests_.resize(static_cast<size_t>(parameters.size()), false);
    rests_.back() = true;
    return OkStatus();
  }

  LowRankCoreSpec spec_;
  Collective* tensor_ranks_;
  ParameterSet* parameters_ = nullptr;
  std::vector<bool> rests_;  ///< By parameter, whether it is one.
  std::span<const UpdatedParameters> updated_;
  bool selected_ = false;  ///< Evaluation and export are of the core.
};

}  // namespace

std::unique_ptr<Technique> NewLowRankCore(const TechniqueInputs& inputs) {
  const LowRankCoreSpec& spec = inputs.model.low_rank_core;
  return spec.rank == 0 ? nullptr : std::make_unique<LowRankCore>(spec, inputs.tensor_ranks);
}

Status MergeCores(Context& context, const ParameterSet& parameters, bool whole) {
  ProfileScope scope(context.profiler, "merge weights");
  for (int64_t i : DerivedMatrices(parameters)) {
    const CoreTensors tensors = TensorsOf(parameters, i);
    if (whole) {
      WEFT_RETURN_IF_ERROR(
          kernels::Cast(context.stream, {parameters.value(tensors.rest), parameters.value(i)}));
    }
    WEFT_RETURN_IF_ERROR(MultiplyFactors(context, parameters.value(tensors.out_factor),
                                         parameters.value(tensors.in_factor), parameters.value(i),
                                         /*accumulate=*/whole));
  }
  return OkStatus();
}

Status SplitCoreGradients(Context& context, const ParameterSet& parameters,
                          std::span<const int64_t> weights, bool whole) {
  ProfileScope scope(context.profiler, "split gradients");
  PackedGradient packed;
  for (const int64_t i : weights) {
    const CoreTensors tensors = TensorsOf(parameters, i);
    const TensorView gradient = parameters.gradient(i), rest = parameters.gradient(tensors.rest);
    WEFT_RETURN_IF_ERROR(whole ? kernels::Cast(context.stream, {gradient, rest})
                               : kernels::Fill(context.stream, {.x = rest, .value = 0}));
    WEFT_RETURN_IF_ERROR(packed.Pack(context, gradient));
    WEFT_RETURN_IF_ERROR(packed.ToOutFactor(context, parameters.value(tensors.in_factor),
                                            parameters.gradient(tensors.out_factor)));
    WEFT_RETURN_IF_ERROR(packed.ToInFactor(context, parameters.value(tensors.out_factor),
                                           parameters.gradient(tensors.in_factor)));
  }
  return OkStatus();
}

Status SumFactorGradients(Context& context, const std::vector<TensorView>& gradients,
                          Collective& tensor_ranks) {
  ProfileScope scope(context.profiler, "sum factor gradients");
  int64_t count = 0;
  for (const TensorView& gradient : gradients) count += gradient.shape.Elements();
  if (count == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const Tensor all,
                        Tensor::New(context, Component::kCommunication, DType::kF32, {count}));
  const auto for_each = [&](auto&& copy) -> Status {
    int64_t begin = 0;
    for (const TensorView& gradient : gradients) {
      const Tensor part = all.Elements(begin, gradient.shape.Elements());
      begin += gradient.shape.Elements();
      WEFT_RETURN_IF_ERROR(copy(gradient, part.view()));
    }
    return OkStatus();
  };
  WEFT_RETURN_IF_ERROR(for_each([&](const TensorView& gradient, const TensorView& part) {
    return CopyRows(context.stream, gradient, part);
  }));
  WEFT_RETURN_IF_ERROR(
      tensor_ranks.AllReduce(context.stream, all.view(), Reduction::kSum, "gradients of factors")
          .Wait(context.stream));
  return for_each([&](const TensorView& gradient, const TensorView& part) {
    return CopyRows(context.stream, part, gradient);
  });
}

}  // namespace weft::engine
