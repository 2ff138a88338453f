#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

/// Successive rows of a tensor, of successive tokens.
struct RowSpan {
  int64_t row = 0;
  int64_t rows = 0;
  int64_t token = 0;  ///< The first, in the global batch.
};

/// The context-parallel ranks. Each sequence is cut into two chunks a rank; rank i of n has chunks
/// i and 2n-1-i, in this order, so that all have the same number of visible pairs of a query and a
/// key. Between the attentions each computes its own tokens alone; all have all parameters.
class ContextParallel {
 public:
  /// `group`, of two ranks or more, outlives this. `method`: "ring" or "ulysses".
  ContextParallel(Collective* group, std::string method)
      : group_(group), method_(std::move(method)) {}

  int64_t rank() const { return group_->rank(); }
  int64_t degree() const { return group_->size(); }
  const std::string& method() const { return method_; }
  bool ulysses() const { return method_ == "ulysses"; }
  Collective& group() const { return *group_; }

  /// Where `rows` rows of this rank are: from token `first` on of a batch that has `length` tokens
  /// of each sequence here, and begins at `first_token` of the global batch.
  std::vector<RowSpan> SpansOf(int64_t first, int64_t rows, int64_t length,
                               int64_t first_token) const {
    const int64_t chunk = length / 2;
    std::vector<RowSpan> spans;
    for (int64_t row = 0; row < rows;) {
      const int64_t sequence = (first + row) / length, within = (first + row) % length;
      const int64_t number = within < chunk ? rank() : 2 * degree() - 1 - rank();
      const int64_t in_chunk = within % chunk;
      const int64_t count = std::min(chunk - in_chunk, rows - row);
      const int64_t token = first_token + sequence * degree() * length + number * chunk + in_chunk;
      spans.push_back({row, count, token});
      row += count;
    }
    return spans;
  }

 private:
  Collective* group_;
  std::string method_;
};

}  // namespace weft::engine
