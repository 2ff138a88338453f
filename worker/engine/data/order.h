#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

namespace weft::engine {

/// A sequence to train on: which, and in which pass over the data.
struct DrawnSequence {
  uint64_t index = 0;
  uint32_t epoch = 0;
};

/// The order in which sequences are trained on: an endless run of epochs, each a permutation of all
/// sequences. A pure function of the seed, so it is the same on any rank and after any
/// interruption. Thread-safe.
class SequenceOrder {
 public:
  /// A random permutation in each epoch, or with shuffle false the order of the data.
  SequenceOrder(uint64_t size, uint64_t seed, bool shuffle);

  /// Shuffles as above, but brings sequences of about equal length together: the run is taken in
  /// chunks of 50 x `group`, each sorted by length and cut into groups of `group` sequences, whose
  /// order is random again. Groups begin at multiples of `group`, also in later epochs, so a step
  /// of `group` sequences gets one.
  static SequenceOrder ByLength(std::vector<uint32_t> lengths, uint64_t seed, uint64_t group);

  /// Sequence `number` of the run, from 0.
  DrawnSequence At(uint64_t number) const;

 private:
  struct Chunk {
    uint64_t first = 0;  ///< Number of its first sequence in the run.
    std::vector<uint64_t> sequences;
  };
  struct Sorting {
    std::vector<uint32_t> lengths;
    uint64_t group = 1;
    std::mutex mutex;
    std::shared_ptr<const Chunk> last;  ///< The chunk asked for last; steps stay in one for long.
  };

  uint64_t Drawn(uint64_t number) const;
  std::shared_ptr<const Chunk> ChunkOf(uint64_t number) const;

  uint64_t size_;
  uint64_t seed_;
  bool shuffle_;
  std::unique_ptr<Sorting> sorting_;  ///< Null: not sorted.
};

}  // namespace weft::engine
