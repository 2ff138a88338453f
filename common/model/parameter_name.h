#pragma once

#include <string>
#include <string_view>

namespace weft {

/// The name of the layer that has a weight, as PyTorch names both: "blocks.0.mlp.up" of
/// "blocks.0.mlp.up.weight"; a name that does not end in ".weight" as it is.
inline std::string LayerOf(std::string_view weight) {
  constexpr std::string_view kWeight = ".weight";
  if (weight.ends_with(kWeight)) weight.remove_suffix(kWeight.size());
  return std::string(weight);
}

/// The name of the module that has a parameter, a weight or a bias: "blocks.0.ln_1" of
/// "blocks.0.ln_1.bias"; a name without dots as it is.
inline std::string ModuleOf(std::string_view parameter) {
  return std::string(parameter.substr(0, parameter.rfind('.')));
}

}  // namespace weft
