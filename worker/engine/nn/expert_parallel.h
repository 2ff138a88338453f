#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Rows that are sent to experts and back. The sender orders them by expert; the rank that has
/// their experts orders them by expert and then by sender.
struct ExpertRows {
  std::vector<int64_t> sent;      ///< [experts] from this rank to each.
  std::vector<int64_t> received;  ///< [experts here, ranks] for each of these, from each rank.

  int64_t SentRows() const;
  int64_t ReceivedRows() const;
};

/// The expert-parallel ranks, which have different sequences (Lepikhin et al. 2020, arXiv
/// 2006.16668). Each of n has experts/n successive experts, whole, and all other parameters.
class ExpertParallel {
 public:
  /// `group`, of two ranks or more, outlives this.
  explicit ExpertParallel(Collective* group) : group_(group) {}

  int64_t rank() const { return group_->rank(); }
  int64_t degree() const { return group_->size(); }
  Collective& group() const { return *group_; }

  /// Exchanges the number of rows for each expert. All ranks call it, and the two functions below,
  /// equally often.
  Result<ExpertRows> Agree(Context& context, std::vector<int64_t> sent) const;
  /// Sends rows `from` [SentRows(), width] to their experts, which receive `to` [ReceivedRows(),
  /// width].
  Status ToExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                   const Tensor& to) const;
  /// Sends the results back.
  Status FromExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                     const Tensor& to) const;

 private:
  /// Whom rows ordered by expert are for, or from, and whom those ordered by expert and by rank.
  std::vector<Transfer> OfTokens(const ExpertRows& rows, const Tensor& here) const;
  std::vector<Transfer> OfExperts(const ExpertRows& rows, const Tensor& there) const;

  Collective* group_;
};

}  // namespace weft::engine
