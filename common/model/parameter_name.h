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

}  // namespace weft
