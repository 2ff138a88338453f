#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "kernels/tensor_view.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// A tensor of the training state under the name it has in checkpoints, or this rank's part of one.
struct NamedTensor {
  /// Where a part belongs: successive elements, or some rows or columns.
  struct Place {
    Shape whole;        ///< Of the tensor.
    int64_t first = 0;  ///< Its element with which the part begins.
    Shard shard = {};   ///< Instead of that, where not whole.

    /// As Shard::ForEachRun, of a part of this shape.
    template <class Run>
    void ForEachRun(const Shape& shape, Run&& run) const {
      shard.ForEachRun(shape, [&](int64_t own, int64_t logical, int64_t count) {
        run(own, first + logical, count);
      });
    }
  };

  /// Which ranks of a pipeline have the tensor.
  enum class Holder : uint8_t {
    kAll,
    kStage,       ///< Those of this stage, which save it.
    kOtherStage,  ///< Others too, of which one saves it.
  };

  std::string name;
  TensorView view;  ///< Contiguous; valid as long as its owner lives. Of successive elements
                    ///< [count], maybe 0.
  std::optional<Place> part = std::nullopt;  ///< None: all of the tensor, the same on all ranks.
  Holder holder = Holder::kAll;
};

}  // namespace weft::engine
