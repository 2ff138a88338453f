#include "worker/engine/techniques/peft/bottleneck_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/model/activation_numbers.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_name.h"
#include "common/spec/model_family.h"

namespace weft {
namespace {

bool IsParallel(const PeftSpec& spec) {
  return spec.method == "parallel";
}

}  // namespace

bool HasBottlenecks(const PeftSpec& spec) {
  return spec.method == "houlsby" || spec.method == "pfeiffer" || IsParallel(spec);
}

bool HasBottleneckAt(const ModelSpec& model, SubLayer sub_layer, int64_t block) {
  const PeftSpec& spec = model.peft;
  if (!HasBottlenecks(spec)) return false;
  if (sub_layer == SubLayer::kAttention && spec.method != "houlsby") return false;
  const std::vector<int64_t>& blocks = spec.layers_to_transform;
  return blocks.empty() || std::find(blocks.begin(), blocks.end(), block) != blocks.end();
}

int64_t BottleneckWidth(const ModelSpec& model) {
  const double width = static_cast<double>(model.width) / model.peft.reduction_factor;
  return std::max<int64_t>(static_cast<int64_t>(width), 1);
}

BottleneckRoles::BottleneckRoles(const PeftSpec& spec, SubLayer sub_layer)
    : down(sub_layer == SubLayer::kAttention ? ParameterRole::kAttentionOutput
           : IsParallel(spec)                ? ParameterRole::kMlpUp
                                             : ParameterRole::kMlpDown),
      up(sub_layer == SubLayer::kAttention ? ParameterRole::kAttentionOutput
                                           : ParameterRole::kMlpDown) {}

std::vector<ParameterInfo> BottleneckTensors(const ModelSpec& model, const ParameterInfo& weight) {
  const bool attention = weight.role == ParameterRole::kAttentionOutput;
  const SubLayer sub_layer = attention ? SubLayer::kAttention : SubLayer::kMlp;
  if (!HasBottleneckAt(model, sub_layer, weight.block)) return {};
  const std::string layer = LayerOf(weight.name);
  const BottleneckNames names(weight.role == ParameterRole::kRouter ? ModuleOf(layer) : layer);
  const BottleneckRoles roles(model.peft, sub_layer);
  const int64_t middle = BottleneckWidth(model);
  std::vector<ParameterInfo> tensors;
  const auto add = [&](const std::string& name, int64_t out, int64_t in, ParameterRole role) {
    ParameterInfo matrix;
    matrix.name = name + ".weight";
    matrix.shape = {out, in};
    matrix.role = role;
    matrix.block = weight.block;
    matrix.adapter = AdapterSide::kNeither;
    ParameterInfo bias = matrix;
    bias.name = name + ".bias";
    bias.shape = {out};
    bias.bias = true;
    tensors.push_back(std::move(matrix));
    tensors.push_back(std::move(bias));
  };
  add(names.down, middle, model.width, roles.down);
  add(names.up, model.width, middle, roles.up);
  return tensors;
}

int64_t SavedByBottlenecks(const ModelSpec& model, SubLayer sub_layer) {
  const std::vector<int64_t>& blocks = model.peft.layers_to_transform;
  if (!HasBottleneckAt(model, sub_layer, blocks.empty() ? 0 : blocks.front())) return 0;
  const int64_t middle = BottleneckWidth(model);
  if (IsParallel(model.peft)) return middle;
  const bool of_norm = model.peft.method == "pfeiffer" && NormPositionOf(model) == "post";
  return middle + model.width + (of_norm ? model.width + NormStatistics(model) : 0);
}

// What it makes of the MLP's input, and the sum with the MLP's result. What houlsby reads is that
// result, which it has saved; pfeiffer has saved the sum, and the result is gone.
int64_t RowsOfBottlenecks(const ModelSpec& model) {
  if (!HasBottlenecks(model.peft) || model.peft.method == "pfeiffer") return 0;
  return IsParallel(model.peft) ? 2 : 1;
}

// The middle after its activation. In the backward pass the middle and its gradient; the products
// of the sub-layer leave room for as much of them as is inside of an MLP, or as a mixture reads;
// parallel to the MLP the gradient of what both read. Deferred gradients of weights read the
// middle's and the result's.
ProductNumbers WorkspaceOfBottlenecks(const ModelSpec& model, SubLayer sub_layer) {
  if (SavedByBottlenecks(model, sub_layer) == 0) return {};
  const int64_t middle = BottleneckWidth(model);
  const int64_t room = model.experts > 0 ? model.width : MlpWidth(model);
  const int64_t more = std::max<int64_t>(2 * middle - room, 0);
  return {.forward = middle,
          .backward = more + (IsParallel(model.peft) ? model.width : 0),
          .deferred = model.width + 2 * middle};
}

Status CheckBottlenecks(const ModelSpec& model) {
  const PeftSpec& spec = model.peft;
  const PeftSpec unset;
  const auto refused = [&](bool set, const std::string& field, const std::string& methods) {
    return !set ? OkStatus()
                : InvalidError("model.peft." + field + " with method " + spec.method +
                               "; hint: model.peft.method " + methods);
  };
  if (!HasBottlenecks(spec)) {
    const std::string methods = "houlsby, pfeiffer or parallel";
    WEFT_RETURN_IF_ERROR(
        refused(spec.reduction_factor != unset.reduction_factor, "reduction_factor", methods));
    WEFT_RETURN_IF_ERROR(
        refused(spec.non_linearity != unset.non_linearity, "non_linearity", methods));
  }
  WEFT_RETURN_IF_ERROR(
      refused(spec.scaling != unset.scaling && !IsParallel(spec), "scaling", "parallel"));
  if (!HasBottlenecks(spec) || static_cast<double>(model.width) >= spec.reduction_factor) {
    return OkStatus();
  }
  return InvalidError("model.peft.reduction_factor " + std::to_string(spec.reduction_factor) +
                      " leaves nothing of model.width " + std::to_string(model.width) +
                      "; hint: 16, or less for a narrow model");
}

}  // namespace weft
