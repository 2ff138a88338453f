#include "common/formats/bpe.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace weft {
namespace {

/// Up to this length scanning all pairs for the lowest rank beats a heap.
constexpr size_t kShort = 24;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t Mix(uint64_t key) {
  key *= 0x9e3779b97f4a7c15u;
  return key ^ key >> 29;
}

}  // namespace

size_t BpeMerges::Probe(uint64_t pair) const {
  size_t mask = slots_.size() - 1;
  size_t at = Mix(pair) & mask;
  while (slots_[at].pair != kEmpty && slots_[at].pair != pair) at = (at + 1) & mask;
  return at;
}

const BpeMerges::Slot* BpeMerges::Find(int32_t left, int32_t right) const {
  const Slot& slot = slots_[Probe(PairKey(left, right))];
  return slot.pair == kEmpty ? nullptr : &slot;
}

void BpeMerges::Grow() {
  std::vector<Slot> old = std::exchange(slots_, std::vector<Slot>(slots_.size() * 2));
  for (const Slot& slot : old) {
    if (slot.pair != kEmpty) slots_[Probe(slot.pair)] = slot;
  }
}

bool BpeMerges::Add(int32_t left, int32_t right, int32_t merged) {
  if (static_cast<size_t>(count_) * 2 >= slots_.size()) Grow();
  Slot& slot = slots_[Probe(PairKey(left, right))];
  if (slot.pair != kEmpty) return false;
  slot = {PairKey(left, right), count_++, merged};
  return true;
}

void BpeMerges::Apply(std::vector<int32_t>& tokens, size_t first) const {
  if (tokens.size() - first <= kShort) {
    ApplyShort(tokens, first);
  } else {
    ApplyLong(tokens, first);
  }
}

void BpeMerges::ApplyShort(std::vector<int32_t>& out, size_t first) const {
  // The merge of each token with its right neighbour; only two change with each merge.
  std::array<const Slot*, kShort> pairs{};
  size_t size = out.size() - first;
  int32_t* tokens = out.data() + first;
  for (size_t i = 0; i + 1 < size; ++i) pairs[i] = Find(tokens[i], tokens[i + 1]);
  while (size > 1) {
    size_t best = size;
    int32_t rank = std::numeric_limits<int32_t>::max();
    for (size_t i = 0; i + 1 < size; ++i) {
      if (pairs[i] != nullptr && pairs[i]->rank < rank) {
        rank = pairs[i]->rank;
        best = i;
      }
    }
    if (best == size) break;
    tokens[best] = pairs[best]->merged;
    std::copy(tokens + best + 2, tokens + size, tokens + best + 1);
    std::copy(pairs.begin() + best + 2, pairs.begin() + size, pairs.begin() + best + 1);
    --size;
    if (best > 0) pairs[best - 1] = Find(tokens[best - 1], tokens[best]);
    if (best + 1 < size) pairs[best] = Find(tokens[best], tokens[best + 1]);
  }
  out.resize(first + size);
}

void BpeMerges::ApplyLong(std::vector<int32_t>& out, size_t first) const {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  constexpr int32_t kDead = -1;
  struct Link {
    size_t previous;
    size_t next;
  };
  struct Candidate {
    int32_t rank;
    size_t at;
    int32_t left;
    int32_t right;
    int32_t merged;
    bool operator>(const Candidate& other) const {
      return std::tie(rank, at) > std::tie(other.rank, other.at);
    }
  };
  const size_t size = out.size() - first;
  int32_t* tokens = out.data() + first;
  std::vector<Link> links(size);
  std::vector<Candidate> storage;
  storage.reserve(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap(std::greater<>{},
                                                                              std::move(storage));
  auto push = [&](size_t at) {
    size_t next = links[at].next;
    if (next == kNone) return;
    if (const Slot* slot = Find(tokens[at], tokens[next])) {
      heap.push({slot->rank, at, tokens[at], tokens[next], slot->merged});
    }
  };
  for (size_t i = 0; i < size; ++i)
    links[i] = {i == 0 ? kNone : i - 1, i + 1 < size ? i + 1 : kNone};
  for (size_t i = 0; i + 1 < size; ++i) push(i);
  while (!heap.empty()) {
    Candidate top = heap.top();
    heap.pop();
    size_t right = links[top.at].next;
    // A candidate is stale once either side has been merged into something else.
    if (tokens[top.at] != top.left || right == kNone || tokens[right] != top.right) continue;
    tokens[top.at] = top.merged;
    tokens[right] = kDead;
    links[top.at].next = links[right].next;
    if (links[right].next != kNone) links[links[right].next].previous = top.at;
    if (links[top.at].previous != kNone) push(links[top.at].previous);
    push(top.at);
  }
  size_t kept = 0;
  for (size_t i = 0; i < size; ++i) {
    if (tokens[i] != kDead) tokens[kept++] = tokens[i];
  }
  out.resize(first + kept);
}

}  // namespace weft
