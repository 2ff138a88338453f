#include "worker/engine/techniques/peft/adapter_tensors_cost.h"

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <utility>

#include "common/model/parameter_name.h"
#include "worker/engine/techniques/peft/joint_adapters_cost.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft {

std::vector<ParameterInfo> AdapterOf(const ModelSpec& model, const ParameterInfo& weight) {
  const PeftSpec& spec = model.peft;
  if (MergesWeights(spec)) return MergedTensors(model, weight);
  const int64_t out = weight.shape[0], in = weight.shape[1];
  std::vector<ParameterInfo> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape, AdapterSide side,
                       int64_t more_products) {
    ParameterInfo& info = tensors.emplace_back(weight);
    info.name = LayerOf(weight.name) + "." + name;
    info.shape = std::move(shape);
    info.parts.clear();
    // As many rows in memory as a classifier has.
    info.tiled = weight.tiled && side == AdapterSide::kOutput;
    info.adapter = side;
    info.more_products = more_products;
    info.more_input_gradients = 0;
  };
  if (spec.method == "ia3") {
    const bool inputs = ScalesInputs(model, weight);
    add("ia3_l", {inputs ? in : out}, inputs ? AdapterSide::kInput : AdapterSide::kOutput,
        inputs ? 0 : 1);
    return tensors;
  }
  const int64_t rank = RankOf(spec, weight.name);
  if (spec.method == "miss") {
    add("miss_block", {out, rank}, AdapterSide::kOutput, 0);
    return tensors;
  }
  if (spec.method == "adalora") {
    add("lora_A", {rank, in}, AdapterSide::kInput, 1);
    add("lora_B", {out, rank}, AdapterSide::kOutput, 0);
    add("lora_E", {rank}, AdapterSide::kInput, 0);
    tensors.back().of_whole_weight = true;
    return tensors;
  }
  for (int64_t part = 0; part < std::ssize(spec.adapters); ++part) {
    const std::string& adapter = spec.adapters[static_cast<size_t>(part)].name;
    add(JointTensorName("lora_A.weight", adapter), {rank, in}, AdapterSide::kInput, 1);
    add(JointTensorName("lora_B.weight", adapter), {out, rank}, AdapterSide::kOutput, 0);
    for (size_t i = tensors.size() - 2; i < tensors.size(); ++i) {
      tensors[i].row_part = part;
      tensors[i].row_parts = std::ssize(spec.adapters);
    }
  }
  if (HasJointAdapters(spec)) return tensors;
  // The backward pass of DoRA computes its results before their scale again, with all factors. With
  // dropout W multiplies what is dropped and what is not, and the two gradients of z are apart.
  const int64_t again = spec.use_dora ? 1 : 0;
  const int64_t apart = spec.use_dora && spec.dropout > 0 ? 1 : 0;
  add("lora_A.weight", {rank, in}, AdapterSide::kInput, 1 + again);
  add("lora_B.weight", {out, rank}, AdapterSide::kOutput, again);
  tensors.back().more_input_gradients = apart;
  if (!spec.use_dora) return tensors;
  add("lora_magnitude_vector", {out}, AdapterSide::kOutput, 1 + apart);
  tensors.back().more_input_gradients = apart;
  return tensors;
}

}  // namespace weft
