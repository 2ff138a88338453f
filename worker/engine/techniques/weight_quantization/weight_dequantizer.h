#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Dequantises the weights of a block before it computes with them, into memory that the next block
/// uses, too: one block at a time is there in the type of the products.
class WeightDequantizer : public ParameterPrefetcher {
 public:
  /// The prefetcher of `parameters`. Both are parts of a model, and die with it.
  WeightDequantizer(ParameterSet* parameters, DType compute);

  Status Fetch(Context& context, int64_t unit, Pass pass) override;
  Status Release(int64_t unit) override;
  Status Forget() override { return unit_ < 0 ? OkStatus() : Release(unit_); }

 private:
  /// Weights that are one matrix.
  struct Stack {
    int64_t first = 0;
    int64_t count = 1;
    std::vector<DerivedCopies*> copies = {};
    int64_t elements = 0;

    bool read_values() const {
      return std::any_of(copies.begin(), copies.end(),
                         [](const DerivedCopies* each) { return each->read_values(); });
    }
  };
  /// The quantised ones of `unit`.
  std::vector<Stack> StacksOf(int64_t unit) const;
  /// Makes `memory_` large enough for those that are read at once.
  Status Reserve(Context& context, const std::vector<Stack>& stacks);
  /// Says that weights are nowhere.
  void PlaceNowhere(const Stack& stack) const;

  ParameterSet* parameters_;
  DType compute_;
  Tensor memory_;             ///< Of numbers that products read, or that copies are made of.
  int64_t unit_ = -1;         ///< The one that has been fetched.
  std::vector<Stack> there_;  ///< Its quantised weights.
};

}  // namespace weft::engine
