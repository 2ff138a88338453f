#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "common/status.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// NormStat of numbers that arrive in pieces, in any order, with the same bits. It adds blocks of a
/// fixed size, in a fixed order, and so does this once it has them all. Not thread-safe.
class PiecewiseNorm {
 public:
  /// The norm covers these tensors, ranges of gradients(), in this order. They do not overlap.
  explicit PiecewiseNorm(std::vector<ParameterSet::Range> tensors);
  PiecewiseNorm() = default;

  /// Discards what has arrived, and starts to take pieces.
  void Start();
  /// Stops: pieces from now on do not count, nor do those that have arrived.
  void Stop() { takes_ = false; }

  /// Takes the elements of `range`; the first is at `data`. They replace earlier ones.
  Status Take(const ParameterSet::Range& range, const float* data);

  /// Whether all have arrived since Start, so that the sums below are known.
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
  /// A block that has arrived in part.
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
