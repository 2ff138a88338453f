#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/spec/queue_spec.h"
#include "coordinator/scheduler/capacity.h"

namespace weft::coordinator {

/// The queues of a cluster with what their jobs hold. What a queue holds counts for all above it.
class QueueTree {
 public:
  /// `queues`: valid by ValidateQueues; the default queue is added where it is not declared.
  /// `total`: what the cluster offers.
  QueueTree(const std::vector<QueueSpec>& queues, const ComputeAmount& total);

  size_t size() const { return nodes_.size(); }
  const std::string& name(size_t queue) const { return nodes_[queue].spec.name; }
  /// The queue above; the same one at the top.
  size_t parent(size_t queue) const { return nodes_[queue].parent; }

  /// The queue of that name; the default one where there is none, since a file of queues may have
  /// lost a queue that still has jobs.
  size_t Find(const std::string& name) const;

  void Take(size_t queue, const ComputeAmount& amount);
  void Give(size_t queue, const ComputeAmount& amount);

  /// The lowest queue from `queue` up that would hold more than its limit with `amount` more; null:
  /// none would.
  const QueueSpec* LimitedBy(size_t queue, const ComputeAmount& amount) const;

  /// GPUs, or cores of jobs on CPUs, that may be taken before that is so; nullopt: any number.
  std::optional<int64_t> GpusLeft(size_t queue) const;
  std::optional<int64_t> CoresLeft(size_t queue) const;

  /// Whether jobs of `queue` that take `amount` go before those of `other`, as siblings or as
  /// descendants of siblings: within its quota first. -1: yes; 1: the other way round; 0: neither.
  int CompareQuota(size_t queue, const ComputeAmount& amount, size_t other,
                   const ComputeAmount& other_amount) const;

  /// The same by fair share: whoever holds less beyond its quota, over its weight.
  int CompareShare(size_t queue, size_t other) const;

  /// Whether a job of `queue` may take `amount` back from `victim`, which borrows it. The one
  /// queue, or its ancestor that is a sibling of the other's, stays within its quota; the other and
  /// those above it, up to that sibling, are beyond theirs.
  bool MayReclaim(size_t queue, const ComputeAmount& amount, size_t victim) const;

  /// Whether `victim`, and all above it up to the sibling of an ancestor of `queue`, hold more than
  /// their quotas of what `amount` counts, a job of `queue`; always in the same queue.
  bool IsBorrower(size_t victim, size_t queue, const ComputeAmount& amount) const;

  /// Whether `queue` would still hold less than its fair share next to `victim`, which borrows,
  /// when `amount` passed from a job of the one, which holds `held`, to the other.
  bool IsFairerWithout(size_t queue, const ComputeAmount& amount, size_t victim,
                       const ComputeAmount& held) const;

 private:
  struct Node {
    QueueSpec spec;
    size_t parent;  ///< Itself at the top.
    size_t depth = 0;
    ComputeAmount held;
  };
  struct Siblings {
    size_t first, second;  ///< Equal: one queue is the other, or above it.
  };

  std::optional<int64_t> Left(size_t queue, std::optional<int64_t> QueueSpec::*limit,
                              int64_t ComputeAmount::*held) const;
  Siblings SiblingsAbove(size_t a, size_t b) const;
  bool WithinQuota(size_t queue, const ComputeAmount& amount) const;
  /// Looks at what `amount` counts, and at both where it is nothing: a size that is not known yet.
  bool BeyondQuota(size_t queue, const ComputeAmount& amount) const;
  /// The same of `queue` and of all above it, up to `top`: where a parent is beyond its quota one
  /// of its children is, as their quotas are within that of the parent.
  bool Borrows(size_t queue, size_t top, const ComputeAmount& amount) const;
  double Share(size_t queue, const ComputeAmount& held) const;

  std::vector<Node> nodes_;
  std::unordered_map<std::string, size_t> index_of_;
  ComputeAmount total_;
};

}  // namespace weft::coordinator
