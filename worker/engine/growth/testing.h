#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/check.h"
#include "common/model/parameter_list.h"
#include "common/rng.h"
#include "worker/engine/growth/growth_operator.h"

namespace weft::engine {

/// A change to a network, by name.
struct Variant {
  const char* name;
  std::function<void(ModelSpec&)> change;
};

/// The networks of each family that every method grows, a plain gpt2 first, and `others`.
inline std::vector<Variant> VariantsWith(std::vector<Variant> others) {
  std::vector<Variant> variants = {
      {"gpt2", [](ModelSpec&) {}},
      {"gpt2, own classifier", [](ModelSpec& m) { m.untied_classifier = true; }},
      {"gpt2, factorised embedding", [](ModelSpec& m) { m.embedding_width = 8; }},
      {"gpt2, layer scale", [](ModelSpec& m) { m.initialization.method = "layer_scale"; }},
      {"bert", [](ModelSpec& m) { m.family = "bert"; }},
      {"bert, classes",
       [](ModelSpec& m) {
         m.family = "bert";
         m.head = "classification";
         m.classes = 5;
       }},
      {"vit",
       [](ModelSpec& m) {
         m.family = "vit";
         m.classes = 4;
         m.image_size = 16;
         m.patch_size = 8;
       }},
  };
  for (Variant& other : others) variants.push_back(std::move(other));
  return variants;
}

/// Tensors of a model by name.
using TensorsByName = std::map<std::string, std::vector<double>>;

/// Normal numbers for all parameters, in f32 precision.
inline TensorsByName RandomTensors(const ModelSpec& model, uint32_t seed) {
  TensorsByName tensors;
  PhiloxStream random(PhiloxKey{seed, 0, 0});
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    std::vector<double>& values = tensors[parameter.name];
    for (int64_t i = 0; i < parameter.Elements(); ++i) {
      values.push_back(static_cast<float>(0.3 * random.Normal()));
    }
  }
  return tensors;
}

/// `larger`: tensors of the larger model, which are also what random ones begin as; it is like `to`
/// unless `larger_model` says otherwise.
inline TensorsByName Grown(const ModelSpec& from, const ModelSpec& to, const GrowthSpec& growth,
                           const TensorsByName& before, const TensorsByName& larger = {},
                           GrownNumbers numbers = GrownNumbers::kValues,
                           const ModelSpec* larger_model = nullptr) {
  const GrowthOperator grow(from, to, growth, larger_model);
  TensorsByName tensors;
  for (const ParameterInfo& parameter : ParametersOf(to)) {
    const auto tensor = grow.Of(parameter.name, numbers);
    WEFT_CHECK(tensor.ok(), tensor.status().message());
    const auto start = larger.find(parameter.name);
    if (tensor->random && start == larger.end()) continue;
    std::vector<float> drawn;
    if (tensor->random) drawn.assign(start->second.begin(), start->second.end());
    auto values = Evaluate(
        *tensor,
        [&](GrownFrom source, const std::string& name) {
          const TensorsByName& old = source == GrownFrom::kPhaseBefore ? before : larger;
          return Result<std::vector<double>>(old.at(name));
        },
        drawn);
    WEFT_CHECK(values.ok(), values.status().message());
    values->resize(static_cast<size_t>(parameter.Elements()));
    tensors[parameter.name] = *std::move(values);
  }
  return tensors;
}

inline GrowthSpec Method(const std::string& method) {
  GrowthSpec growth;
  growth.method = method;
  return growth;
}

}  // namespace weft::engine
