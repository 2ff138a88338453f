#pragma once

#include <cstdint>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/tensor/context.h"
#include "worker/engine/tensor/tensor.h"

namespace weft::engine {

/// Rows that go to experts and back. They are ordered by expert on the rank that they come from, by
/// expert and then by that rank on the one that has their experts.
struct ExpertRows {
  std::vector<int64_t> sent;      ///< [experts] from this rank to each.
  std::vector<int64_t> received;  ///< [experts here, ranks] for each of these, from each rank.

  int64_t SentRows() const;
  int64_t ReceivedRows() const;
};

/// Ranks that see different sequences and share the experts of a model (Lepikhin et al. 2020, arXiv
/// 2006.16668): of n each has experts/n successive ones, whole, and of all other parameters
/// everything.
class ExpertParallel {
 public:
  /// `group`, of two ranks or more, outlives this.
  explicit ExpertParallel(Collective* group) : group_(group) {}

  int64_t rank() const { return group_->rank(); }
  int64_t degree() const { return group_->size(); }
  Collective& group() const { return *group_; }

  /// Tells the ranks how many rows go to each expert. All of them call it, and the two below, as
  /// often.
  Result<ExpertRows> Agree(Context& context, std::vector<int64_t> sent) const;
  /// Rows `from` [SentRows(), width] go to their experts, where they are `to` [ReceivedRows(),
  /// width].
  Status ToExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                   const Tensor& to) const;
  /// The way back.
  Status FromExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                     const Tensor& to) const;

 private:
  /// Whom rows ordered by expert are for, or from, and whom those ordered by expert and by rank.
  std::vector<Transfer> OfTokens(const ExpertRows& rows, const Tensor& here) const;
  std::vector<Transfer> OfExperts(const ExpertRows& rows, const Tensor& there) const;

  Collective* group_;
};

}  // namespace weft::engine
