#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "worker/engine/comm/collective.h"

namespace weft::engine {

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

 private:
  Collective* group_;
  std::string method_;
};

}  // namespace weft::engine
