#include "worker/engine/techniques/peft/adapter_workspace_cost.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft {
namespace {

/// One of the weights of a layer.
struct OutputNumbers {
  int64_t columns = 0;  ///< Of its results.
  int64_t in = 0;
  int64_t rank = 0;  ///< Of its factors; 0: it is no target.
};

/// What the products of a layer want.
struct LayerWorkspace {
  int64_t forward = 0, backward = 0, deferred = 0;
  int64_t in_format = 0;  ///< ProductNumbers::in_format
};

/// The share of `numbers` for each token that one adapter wants: several compute one after the
/// other, each its part of the rows.
int64_t PartOf(const PeftSpec& spec, int64_t numbers) {
  const int64_t parts = std::max<int64_t>(std::ssize(spec.adapters), 1);
  return (numbers + parts - 1) / parts;
}

/// Numbers of a layer, some of whose weights are targets.
struct LayerNumbers {
  int64_t ranks = 0;    ///< Of all factors,
  int64_t largest = 0;  ///< and of the largest one.
  int64_t out = 0;      ///< Of its results, where they are scaled.
  int64_t in = 0;       ///< Of its inputs, where they are scaled or dropped.
  int64_t columns = 0;  ///< Of the results of its weights until now.
  /// That dense products of the sub-layer have at their peak, and not while results of this layer
  /// are scaled.
  int64_t spare = 0;
  std::vector<OutputNumbers> outputs = {};

  void Add(const ModelSpec& model, const ParameterInfo& weight) {
    const PeftSpec& spec = model.peft;
    const bool target = IsTarget(model, weight);
    const bool scales_inputs = target && ScalesInputs(model, weight);
    columns += weight.shape[0];
    outputs.push_back({weight.shape[0], weight.shape[1]});
    if (target && spec.method != "ia3") {
      const int64_t rank = RankOf(spec, weight.name);
      outputs.back().rank = rank;
      ranks += rank;
      largest = std::max(largest, PartOf(spec, rank));
    }
    if (scales_inputs || (target && spec.dropout > 0)) in = PartOf(spec, weight.shape[1]);
    const bool scales = target && (spec.method == "ia3" ? !scales_inputs : spec.use_dora);
    if (scales || out > 0) out = columns;
  }

  // What is between the factors of one weight; in the backward pass its gradients for all weights,
  // too. Scaled results are computed again, and have a gradient before their scale: products in a
  // format read both their inputs and that gradient.
  LayerWorkspace Workspace(const PeftSpec& spec) const {
    if (spec.use_dora && spec.dropout > 0) return OneByOne();
    return {.forward = largest + in,
            .backward = ranks + largest + in + std::max<int64_t>(2 * out - spare, 0),
            .deferred = ranks + out + (spec.method == "ia3" ? in : 0),
            .in_format = out == 0 ? 0 : columns + outputs.front().in};
  }

  // DoRA with dropout: dropped inputs and results of one target at a time; in the backward pass
  // its gradient before the scale with that of the inputs, or dropped inputs and results.
  LayerWorkspace OneByOne() const {
    LayerWorkspace most;
    for (const OutputNumbers& output : outputs) {
      if (output.rank == 0) continue;
      const int64_t own = outputs.size() > 1 ? output.columns : 0;
      const int64_t of_inputs = (&output == &outputs.front() ? 1 : 2) * output.in;
      const int64_t of_factors = output.in + output.columns + output.rank;
      most.forward = std::max(most.forward, own + output.in + output.rank);
      most.backward = std::max(
          most.backward, own + output.columns + output.rank + std::max(of_inputs, of_factors));
    }
    most.backward = std::max<int64_t>(most.backward - spare, 0);
    return most;
  }
};

/// LayerNumbers::spare of the first layer of an MLP: gradients around the activation and its result
/// again; only the gradient of its input is there of these.
int64_t SpareOfMlp(const ModelSpec& model, int64_t block) {
  bool trains_down = false;
  for (const ParameterInfo& parameter : PlainBlockParameters(model, block)) {
    const bool trained = IsTarget(model, parameter) || IsSavedWhole(model, parameter.name);
    trains_down = trains_down || (parameter.role == ParameterRole::kMlpDown && trained);
  }
  const int64_t inner = MlpWidth(model);
  if (MlpInputs(model) > 1) return trains_down ? 2 * inner : inner;
  return trains_down ? inner : model.width;
}

}  // namespace

ProductNumbers WorkspaceOfAdapters(const ModelSpec& model, SubLayer sub_layer,
                                   int64_t tensor_columns) {
  ProductNumbers most;
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    LayerNumbers layer;
    int64_t deferred = 0;
    // Once the first layer of an expert is differentiated, nothing reads its activation any more.
    int64_t active = 0;
    const auto end_layer = [&] {
      const LayerWorkspace own = layer.Workspace(model.peft);
      most.forward = std::max(most.forward, own.forward);
      most.backward = std::max(most.backward, own.backward - active);
      most.in_format = std::max(most.in_format, own.in_format);
      deferred += own.deferred;
      layer = {};
    };
    for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
      const bool here = sub_layer == SubLayer::kMlp ? IsMlp(weight.role) : IsAttention(weight.role);
      // Experts are alike, and compute one after the other.
      if (!here || !weight.block_matrix() || weight.expert > 0) continue;
      if (!weight.stacked) end_layer();
      const bool up_of_expert = weight.expert == 0 && weight.role == ParameterRole::kMlpUp;
      active = up_of_expert ? MlpWidth(model) / tensor_columns : 0;
      layer.Add(model, weight);
      if (weight.role == ParameterRole::kMlpUp) layer.spare = SpareOfMlp(model, block);
    }
    end_layer();
    most.deferred = std::max(most.deferred, deferred);
  }
  return most;
}

}  // namespace weft
