#include "worker/engine/train/group_norms.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kernels/norm_stat/norm_stat.h"

namespace weft::engine {
namespace {

constexpr std::array<std::string_view, 5> kGroups = {"embedding", "attention", "mlp", "norms",
                                                     "head"};

/// Parts of names of GPT-2, Llama, BERT and ViT; the first one found decides. An attention holds
/// norms and an output projection of its own, so norms come first.
struct NamePart {
  std::string_view part;
  std::string_view group;
};
constexpr std::array<NamePart, 17> kParts = {{{"norm", "norms"},
                                              {"ln_", "norms"},
                                              {"attn", "attention"},
                                              {"attention", "attention"},
                                              {"mlp", "mlp"},
                                              {"intermediate", "mlp"},
                                              {"output.dense", "mlp"},
                                              {"embed", "embedding"},
                                              {"wte", "embedding"},
                                              {"wpe", "embedding"},
                                              {"cls_token", "embedding"},
                                              {"lm_head", "head"},
                                              {"classifier", "head"},
                                              {"pooler", "head"},
                                              {"score", "head"},
                                              {"cls.", "head"},
                                              {"head", "head"}}};

Result<double> Norm(Context& context, const std::vector<kernels::NormTensor>& tensors) {
  double sum_of_squares = 0;
  int64_t non_finite = 0;
  WEFT_RETURN_IF_ERROR(kernels::NormStat(context.stream, {tensors, &sum_of_squares, &non_finite}));
  return std::sqrt(sum_of_squares);
}

}  // namespace

std::string_view GroupOfParameter(std::string_view name) {
  std::string lower(name);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const NamePart& known : kParts) {
    if (lower.find(known.part) != std::string::npos) return known.group;
  }
  return "mlp";
}

Result<std::vector<GroupNorm>> MeasureGroups(Context& context, const ParameterSet& parameters,
                                             double loss_scale) {
  std::vector<GroupNorm> norms;
  for (std::string_view group : kGroups) {
    std::vector<kernels::NormTensor> gradients;
    std::vector<kernels::NormTensor> values;
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (GroupOfParameter(parameters[i].name) != group) continue;
      if (parameters[i].factoring != Factoring::kNone) continue;  // its factors count
      const TensorView value = parameters.value(i);
      const bool f32 = value.dtype == DType::kF32;
      values.push_back({f32 ? value.As<float>() : nullptr, value.shape.Elements(),
                        f32 ? nullptr : value.As<BFloat16>()});
      if (!parameters[i].trainable()) continue;
      const TensorView gradient = parameters.gradient(i);
      gradients.push_back({gradient.As<float>(), gradient.shape.Elements(), nullptr});
    }
    if (values.empty()) continue;
    WEFT_ASSIGN_OR_RETURN(const double gradient, Norm(context, gradients));
    WEFT_ASSIGN_OR_RETURN(const double value, Norm(context, values));
    norms.push_back({std::string(group), gradient / loss_scale, value});
  }
  return norms;
}

}  // namespace weft::engine
