#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// Batches that have as many sequences of each of several sources of text, those of the first one
/// before those of the second one, and so on, at any split over ranks and micro-batches: of J
/// sources sequences [first, first + count), both multiples of J, are sequences
/// [first / J, (first + count) / J) of each. Rows are filled up to the length of the longest.
class JointBatches : public BatchSource {
 public:
  /// What is asked for past the end of a source.
  enum class AtEnd : uint8_t {
    kNone,       ///< Nothing is: sources of training begin again.
    kBlankRows,  ///< Rows without targets: sources of evaluation may be of different sizes.
  };

  /// A source may be null with kBlankRows: it has no sequences. One has some.
  JointBatches(std::vector<std::unique_ptr<BatchSource>> sources, AtEnd at_end)
      : sources_(std::move(sources)), at_end_(at_end) {}

  int64_t Sequences() const override;
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

 private:
  std::vector<std::unique_ptr<BatchSource>> sources_;
  AtEnd at_end_;
};

}  // namespace weft::engine
