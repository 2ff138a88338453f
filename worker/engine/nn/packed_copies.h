#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/linear/linear.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// What has changed of the parameters since they were packed.
enum class Repack : uint8_t {
  kAll,
  kTrained,  ///< Nothing that is frozen.
};

/// The compute copy of a weight matrix, and the account of its memory.
struct PackedCopy {
  std::unique_ptr<kernels::PackedWeight> weight;
  ExternalBytes held;
};

/// Unused copies, for matrices of the same size. Where parameters are streamed, those of one block
/// serve the next.
class PackedCopies {
 public:
  /// Returns an unused or a new copy, with undefined content.
  Result<PackedCopy> Take(Context& context, int64_t out, int64_t in, DType compute);

  void Give(PackedCopy copy) {
    if (copy.weight != nullptr) spare_.push_back(std::move(copy));
  }

  /// Frees those that are unused.
  void Clear() { spare_.clear(); }

 private:
  std::vector<PackedCopy> spare_;
};

}  // namespace weft::engine
