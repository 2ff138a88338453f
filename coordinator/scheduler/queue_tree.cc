#include "coordinator/scheduler/queue_tree.h"

#include <algorithm>

namespace weft::coordinator {
namespace {

ComputeAmount Sum(ComputeAmount a, const ComputeAmount& b) {
  return a += b;
}

}  // namespace

QueueTree::QueueTree(const std::vector<QueueSpec>& queues, const ComputeAmount& total)
    : total_(total) {
  const auto add = [this](const QueueSpec& spec) {
    index_of_.emplace(spec.name, nodes_.size());
    nodes_.push_back({spec, nodes_.size(), 0, {}});
  };
  for (const QueueSpec& queue : queues) add(queue);
  if (!index_of_.contains(kDefaultQueue)) {
    QueueSpec queue;
    queue.name = kDefaultQueue;
    add(queue);
  }
  for (Node& node : nodes_) {
    if (!node.spec.parent.empty()) node.parent = index_of_.at(node.spec.parent);
  }
  for (Node& node : nodes_) {
    for (size_t above = node.parent, below = static_cast<size_t>(&node - nodes_.data());
         above != below; below = above, above = nodes_[above].parent) {
      ++node.depth;
    }
  }
}

size_t QueueTree::Find(const std::string& name) const {
  auto it = index_of_.find(name);
  return it != index_of_.end() ? it->second : index_of_.at(kDefaultQueue);
}

void QueueTree::Take(size_t queue, const ComputeAmount& amount) {
  for (;; queue = nodes_[queue].parent) {
    nodes_[queue].held += amount;
    if (nodes_[queue].parent == queue) return;
  }
}

void QueueTree::Give(size_t queue, const ComputeAmount& amount) {
  Take(queue, {-amount.gpus, -amount.cores});
}

const QueueSpec* QueueTree::LimitedBy(size_t queue, const ComputeAmount& amount) const {
  for (;; queue = nodes_[queue].parent) {
    const Node& node = nodes_[queue];
    const ComputeAmount with = Sum(node.held, amount);
    if (amount.gpus > 0 && node.spec.limit_gpus && with.gpus > *node.spec.limit_gpus) {
      return &node.spec;
    }
    if (amount.cores > 0 && node.spec.limit_cores && with.cores > *node.spec.limit_cores) {
      return &node.spec;
    }
    if (node.parent == queue) return nullptr;
  }
}

std::optional<int64_t> QueueTree::Left(size_t queue, std::optional<int64_t> QueueSpec::*limit,
                                       int64_t ComputeAmount::*held) const {
  std::optional<int64_t> left;
  for (;; queue = nodes_[queue].parent) {
    const Node& node = nodes_[queue];
    if (node.spec.*limit) {
      const int64_t here = std::max<int64_t>(*(node.spec.*limit) - node.held.*held, 0);
      left = std::min(left.value_or(here), here);
    }
    if (node.parent == queue) return left;
  }
}

std::optional<int64_t> QueueTree::GpusLeft(size_t queue) const {
  return Left(queue, &QueueSpec::limit_gpus, &ComputeAmount::gpus);
}

std::optional<int64_t> QueueTree::CoresLeft(size_t queue) const {
  return Left(queue, &QueueSpec::limit_cores, &ComputeAmount::cores);
}

QueueTree::Siblings QueueTree::SiblingsAbove(size_t a, size_t b) const {
  while (nodes_[a].depth > nodes_[b].depth) a = nodes_[a].parent;
  while (nodes_[b].depth > nodes_[a].depth) b = nodes_[b].parent;
  while (a != b && nodes_[a].parent != nodes_[b].parent && nodes_[a].depth > 0) {
    a = nodes_[a].parent;
    b = nodes_[b].parent;
  }
  return {a, b};
}

bool QueueTree::WithinQuota(size_t queue, const ComputeAmount& amount) const {
  const Node& node = nodes_[queue];
  const ComputeAmount with = Sum(node.held, amount);
  return (amount.gpus <= 0 || with.gpus <= node.spec.quota_gpus) &&
         (amount.cores <= 0 || with.cores <= node.spec.quota_cores);
}

bool QueueTree::BeyondQuota(size_t queue, const ComputeAmount& amount) const {
  const Node& node = nodes_[queue];
  const bool gpus = amount.gpus > 0 || amount.cores <= 0;
  const bool cores = amount.cores > 0 || amount.gpus <= 0;
  return (gpus && node.held.gpus > node.spec.quota_gpus) ||
         (cores && node.held.cores > node.spec.quota_cores);
}

bool QueueTree::Borrows(size_t queue, size_t top, const ComputeAmount& amount) const {
  for (;; queue = nodes_[queue].parent) {
    if (!BeyondQuota(queue, amount)) return false;
    if (queue == top) return true;
  }
}

double QueueTree::Share(size_t queue, const ComputeAmount& held) const {
  const QueueSpec& spec = nodes_[queue].spec;
  const auto part = [](int64_t have, int64_t quota, int64_t of) {
    return static_cast<double>(std::max<int64_t>(have - quota, 0)) /
           static_cast<double>(std::max<int64_t>(of, 1));
  };
  return std::max(part(held.gpus, spec.quota_gpus, total_.gpus),
                  part(held.cores, spec.quota_cores, total_.cores)) /
         spec.weight;
}

int QueueTree::CompareQuota(size_t queue, const ComputeAmount& amount, size_t other,
                            const ComputeAmount& other_amount) const {
  const auto [a, b] = SiblingsAbove(queue, other);
  if (a == b) return 0;
  return static_cast<int>(WithinQuota(b, other_amount)) - static_cast<int>(WithinQuota(a, amount));
}

int QueueTree::CompareShare(size_t queue, size_t other) const {
  const auto [a, b] = SiblingsAbove(queue, other);
  if (a == b) return 0;
  const double share = Share(a, nodes_[a].held), others = Share(b, nodes_[b].held);
  return share < others ? -1 : share > others ? 1 : 0;
}

bool QueueTree::MayReclaim(size_t queue, const ComputeAmount& amount, size_t victim) const {
  const auto [a, b] = SiblingsAbove(queue, victim);
  return a != b && WithinQuota(a, amount) && Borrows(victim, b, amount);
}

bool QueueTree::IsBorrower(size_t victim, size_t queue, const ComputeAmount& amount) const {
  const auto [a, b] = SiblingsAbove(victim, queue);
  return a == b || Borrows(victim, a, amount);
}

bool QueueTree::IsFairerWithout(size_t queue, const ComputeAmount& amount, size_t victim,
                                const ComputeAmount& held) const {
  const auto [a, b] = SiblingsAbove(queue, victim);
  if (a == b || !Borrows(victim, b, amount)) return false;
  ComputeAmount left = nodes_[b].held;
  left -= held;
  return Share(a, Sum(nodes_[a].held, amount)) <= Share(b, left);
}

}  // namespace weft::coordinator
