#pragma once

#include <string>

#include "kernels/tensor_view.h"

namespace weft::engine {

/// A tensor of the training state under the name it has in checkpoints.
struct NamedTensor {
  std::string name;
  TensorView view;  ///< Contiguous; valid as long as its owner lives.
};

}  // namespace weft::engine
