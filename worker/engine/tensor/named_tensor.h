#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/tensor_view.h"

namespace weft::engine {

/// A tensor of the training state under the name it has in checkpoints, or this rank's part of one.
struct NamedTensor {
  /// Where a part belongs.
  struct Place {
    Shape whole;        ///< Of the tensor.
    int64_t first = 0;  ///< Its element with which the part begins.
  };

  std::string name;
  TensorView view;  ///< Contiguous; valid as long as its owner lives. Of a part [count], maybe 0.
  std::optional<Place> part = std::nullopt;  ///< None: all of the tensor, the same on all ranks.
};

}  // namespace weft::engine
