#include "worker/engine/techniques/peft/peft_products.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "worker/engine/nn/dense_products.h"
#include "worker/engine/techniques/peft/adapter_tensors_cost.h"
#include "worker/engine/techniques/peft/dropped_dora.h"
#include "worker/engine/techniques/peft/merged_products.h"
#include "worker/engine/techniques/peft/merged_values.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/techniques/peft/scaled_products.h"
#include "worker/engine/techniques/peft/token_adapters.h"

namespace weft::engine {
namespace {

/// A row of a weight with what factors B [out, rank] and A [rank, in] add to it; without A that of
/// MiSS.
std::vector<double> AdaptedRow(std::span<const float> row, std::span<const float> b,
                               std::span<const float> a, double scale) {
  std::vector<double> sum(row.begin(), row.end());
  for (size_t k = 0; k < b.size(); ++k) {
    const double factor = scale * b[k];
    if (a.empty()) {
      for (size_t i = k; i < sum.size(); i += b.size()) sum[i] += factor;
      continue;
    }
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += factor * a[k * sum.size() + i];
  }
  return sum;
}

double LengthOf(const std::vector<double>& row) {
  double squares = 0;
  for (const double value : row) squares += value * value;
  return std::sqrt(squares);
}

}  // namespace

std::vector<ParameterInfo> PeftProductsFactory::AdaptersOf(const ParameterInfo& weight) const {
  if (!IsTarget(model_, weight)) return {};
  std::vector<ParameterInfo> tensors = AdapterOf(model_, weight);
  if (model_.peft.method != "vera" || parameters_->Find(kVeraA).ok()) return tensors;
  for (ParameterInfo& factor : SharedFactors(model_, weight)) tensors.push_back(std::move(factor));
  return tensors;
}

std::vector<float> PeftProductsFactory::Merged(
    const ParameterInfo& weight, std::span<const float> values,
    const std::vector<std::vector<float>>& tensors) const {
  const PeftSpec& spec = model_.peft;
  const auto out = static_cast<size_t>(weight.shape[0]), in = static_cast<size_t>(weight.shape[1]);
  std::vector<float> merged(values.begin(), values.end());
  if (weight.role == ParameterRole::kTokenEmbedding) return MergedTable(model_, values, tensors);
  if (MergesWeights(spec)) {
    return MergedValues(model_, *parameters_, weight, values, tensors);
  }
  if (spec.method == "ia3") {
    const bool inputs = ScalesInputs(model_, weight);
    for (size_t i = 0; i < merged.size(); ++i) {
      merged[i] *= tensors.front()[inputs ? i % in : i / in];
    }
    return merged;
  }
  const bool fixed = spec.method == "miss";
  std::vector<float> scaled;  // rows of A, by the diagonal of AdaLoRA
  if (spec.method == "adalora") {
    scaled = tensors[0];
    for (size_t i = 0; i < scaled.size(); ++i) scaled[i] *= tensors[2][i / in];
  }
  const std::span<const float> a =
      fixed ? std::span<const float>() : std::span(scaled.empty() ? tensors[0] : scaled);
  const std::span<const float> b = tensors[fixed ? 0 : 1];
  const double scale = fixed ? 1 : LoraScale(spec, weight.name);
  const size_t rank = b.size() / out;
  kernels::cpu::ParallelForDynamic(weight.shape[0], [&](int64_t index) {
    const auto row = static_cast<size_t>(index);
    const std::vector<double> sum =
        AdaptedRow(values.subspan(row * in, in), b.subspan(row * rank, rank), a, scale);
    const double factor = spec.use_dora ? tensors[2][row] / LengthOf(sum) : 1;
    for (size_t i = 0; i < in; ++i) merged[row * in + i] = static_cast<float>(factor * sum[i]);
  });
  return merged;
}

std::vector<float> PeftProductsFactory::MergedBias(
    const ParameterInfo& weight, std::vector<float> bias,
    const std::vector<std::vector<float>>& tensors) const {
  if (model_.peft.method != "ia3" || ScalesInputs(model_, weight)) return bias;
  for (size_t i = 0; i < bias.size(); ++i) bias[i] *= tensors.front()[i];
  return bias;
}

std::unique_ptr<WeightProducts> PeftProductsFactory::MakeBase(const LinearLayer& layer) const {
  if (base_ == nullptr || layer.block.index < 0) return std::make_unique<DenseProducts>(layer);
  return base_->Make(layer);
}

// The bias is added after the scale.
std::unique_ptr<WeightProducts> PeftProductsFactory::MakeDora(const LinearLayer& layer,
                                                              const LoraProducts::OnesOfRank& ones,
                                                              const WeightMaker& weight) const {
  LinearLayer without_bias = layer;
  without_bias.bias = -1;
  auto inner =
      std::make_unique<LoraProducts>(without_bias, model_.peft, ones, weight(without_bias));
  return std::make_unique<ScaledResults>(layer, model_.peft, std::move(inner),
                                         layer.shares_inputs ? tensor_ranks_ : nullptr);
}

std::unique_ptr<WeightProducts> PeftProductsFactory::MakeAround(const LinearLayer& layer,
                                                                const WeightMaker& weight) {
  if (model_.peft.use_dora) return MakeDora(layer, {}, weight);
  return std::make_unique<LoraProducts>(layer, model_.peft, LoraProducts::OnesOfRank(),
                                        weight(layer));
}

std::unique_ptr<WeightProducts> PeftProductsFactory::Make(const LinearLayer& layer) {
  const PeftSpec& spec = model_.peft;
  const auto adapted = std::find_if(layer.weights.begin(), layer.weights.end(),
                                    [](const OutputWeight& weight) { return weight.adapters > 0; });
  if (adapted == layer.weights.end()) return MakeBase(layer);
  if (MergesWeights(spec)) return std::make_unique<MergedProducts>(layer, spec);
  if (spec.method == "ia3") {
    const Parameter& vector = (*layer.parameters)[adapted->first_adapter];
    if (vector.adapter == AdapterSide::kInput) {
      return std::make_unique<ScaledInputs>(layer, MakeBase(layer));
    }
    return std::make_unique<ScaledResults>(layer, spec, MakeBase(layer), nullptr);
  }
  const auto ones = [&](int64_t rank) {
    const int64_t first = FirstInput(layer);
    std::shared_ptr<RepeatedOnes>& own = ones_[{rank, layer.in_features, first % rank}];
    if (own == nullptr) {
      own = std::make_shared<RepeatedOnes>(
          RepeatedOnes{.rank = rank, .in = layer.in_features, .first_input = first});
    }
    return own;
  };
  if (!spec.use_dora) return std::make_unique<LoraProducts>(layer, spec, ones, MakeBase(layer));
  if (spec.dropout > 0) {
    return std::make_unique<DroppedDora>(layer, spec, ones,
                                         layer.shares_inputs ? tensor_ranks_ : nullptr);
  }
  return MakeDora(layer, ones, [this](const LinearLayer& own) { return MakeBase(own); });
}

}  // namespace weft::engine
