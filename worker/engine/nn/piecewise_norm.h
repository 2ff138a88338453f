#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// What NormStat says of numbers that come in pieces, in any order, with the same bits: it adds up
/// blocks of a fixed size, in a fixed order, and so does this once it has them all. Not
/// thread-safe.
class PiecewiseNorm {
 public:
  /// Of these tensors, each some elements of gradients(), in this order, one after the other. No
  /// two have an element in common.
  explicit PiecewiseNorm(std::vector<ParameterSet::Range> tensors);
  PiecewiseNorm() = default;

  /// Forgets what has come, and takes what will.
  void Start();
  /// What comes from now on does not count, nor does what has come.
  void Stop() { takes_ = false; }

  /// The elements of `range` have come, whose first one is at `data`. What has come before of them
  /// has been replaced.
  Status Take(const ParameterSet::Range& range, const float* data);

  /// Whether all have come since Start, so that the sums below are known.
  bool complete() const { return takes_ && missing_ == 0; }
  double SumOfSquares() const;
  int64_t NonFinite() const;

 private:
  struct Block {
    ParameterSet::Range range;
    double squares = 0;
    int64_t non_finite = 0;
    bool known = false;
  };
  /// A block of which a part has come.
  struct Begun {
    std::vector<float> elements;
    int64_t come = 0;
  };
  Status Measure(Block& block, const float* data);

  std::vector<Block> blocks_;      ///< In the order of the sums.
  std::vector<size_t> rising_;     ///< The same by their elements.
  std::map<size_t, Begun> begun_;  ///< By block.
  int64_t missing_ = 0;            ///< Blocks that are not known.
  bool takes_ = false;
};

}  // namespace weft::engine
