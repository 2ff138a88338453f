#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/model/moment_kind.h"
#include "common/status.h"
#include "kernels/tensor_view.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// Numbers of the training state in a file, laid out as in memory. They are those of the
/// last update until the next one; one caller at a time, on any thread.
class StoredNumbers {
 public:
  virtual ~StoredNumbers() = default;

  /// Reads those from element `first` on. kCorrupt when they are not what was written.
  virtual Status Read(int64_t first, std::span<std::byte> to) = 0;

  /// Replaces those from element `first` on.
  virtual Status Write(int64_t first, std::span<const std::byte> from) = 0;

  /// Replaces the first `count`, of f32, by what Status change(first, piece) makes of them, which
  /// gets a piece at a time in memory.
  template <class Change>
  Status ReplaceFloats(int64_t count, Change&& change) {
    constexpr int64_t kPiece = int64_t{1} << 16;
    std::vector<float> numbers(static_cast<size_t>(std::min(count, kPiece)));
    for (int64_t first = 0; first < count; first += kPiece) {
      const std::span piece(numbers.data(), static_cast<size_t>(std::min(count - first, kPiece)));
      WEFT_RETURN_IF_ERROR(Read(first, std::as_writable_bytes(piece)));
      const TensorView view(piece.data(), DType::kF32, {static_cast<int64_t>(piece.size())});
      WEFT_RETURN_IF_ERROR(change(first, view));
      WEFT_RETURN_IF_ERROR(Write(first, std::as_bytes(piece)));
    }
    return OkStatus();
  }
};

/// A tensor of the training state under the name it has in checkpoints, or this rank's part of one.
struct NamedTensor {
  /// Where a part belongs: some rows, columns or both of a tensor, or successive elements of these.
  struct Place {
    Shape whole;        ///< Of the tensor.
    int64_t first = 0;  ///< Element of the shard with which the part begins.
    Shard shard = {};

    Shape ShardShape() const { return shard.PartShape(whole); }

    /// Runs like Shard::ForEachRun over a part of this many elements.
    template <class Run>
    void ForEachRun(int64_t elements, Run&& run) const {
      shard.ForEachRun(ShardShape(), [&](int64_t own, int64_t logical, int64_t count) {
        const int64_t begin = std::max(own, first);
        const int64_t end = std::min(own + count, first + elements);
        if (begin < end) run(begin - first, logical + (begin - own), end - begin);
      });
    }
  };

  std::string name;
  TensorView view;  ///< Contiguous; valid as long as its owner lives. Of successive elements
                    ///< [count], maybe 0.
  std::optional<Place> part = std::nullopt;  ///< None: all of the tensor.
  bool everywhere = true;                    ///< Without a part: all ranks have it, the same.
  bool saved = true;  ///< By this rank: one of those that have the same does.
  std::shared_ptr<StoredNumbers> stored = nullptr;  ///< Has them; `view` then has none.
  int64_t parameter = -1;  ///< Index of that whose value or state it is; -1: of none.
  int64_t block = 1;       ///< Of a matrix: a number stands for this many rows and columns of it,
  int64_t columns = 1;     ///< and for this many successive columns of these; 0: for no part of it
                           ///< alone, so that tensor-parallel ranks have the same.
  MomentKind moment = MomentKind::kNone;  ///< Of state of an optimizer.
};

}  // namespace weft::engine
