#include "worker/engine/data/order.h"

#include <algorithm>
#include <utility>

#include "common/check.h"
#include "common/rng.h"
#include "worker/engine/data/permutation.h"

namespace weft::engine {
namespace {

constexpr uint32_t kOrderSite = SiteHash("data.order");
constexpr uint32_t kGroupSite = SiteHash("data.groups");
constexpr uint64_t kGroupsPerChunk = 50;

}  // namespace

SequenceOrder::SequenceOrder(uint64_t size, uint64_t seed, bool shuffle)
    : size_(size), seed_(seed), shuffle_(shuffle) {
  WEFT_CHECK(size > 0, "an order of nothing");
}

SequenceOrder SequenceOrder::ByLength(std::vector<uint32_t> lengths, uint64_t seed,
                                      uint64_t group) {
  WEFT_CHECK(group > 0, "groups must not be empty");
  SequenceOrder order(lengths.size(), seed, true);
  order.sorting_ = std::make_unique<Sorting>();
  order.sorting_->lengths = std::move(lengths);
  order.sorting_->group = group;
  return order;
}

uint64_t SequenceOrder::Drawn(uint64_t number) const {
  const auto epoch = static_cast<uint32_t>(number / size_);
  return Permute(number % size_, size_, {seed_, epoch, kOrderSite});
}

DrawnSequence SequenceOrder::At(uint64_t number) const {
  const auto epoch = static_cast<uint32_t>(number / size_);
  if (!shuffle_) return {number % size_, epoch};
  if (!sorting_) return {Drawn(number), epoch};
  const std::shared_ptr<const Chunk> chunk = ChunkOf(number);
  return {chunk->sequences[number - chunk->first], epoch};
}

std::shared_ptr<const SequenceOrder::Chunk> SequenceOrder::ChunkOf(uint64_t number) const {
  std::lock_guard lock(sorting_->mutex);
  const std::shared_ptr<const Chunk>& last = sorting_->last;
  if (last && number >= last->first && number - last->first < last->sequences.size()) return last;

  const uint64_t group = sorting_->group;
  const uint64_t span = group * kGroupsPerChunk;
  const uint64_t chunk_number = number / span;
  const uint64_t epoch_start = number / size_ * size_;
  auto chunk = std::make_shared<Chunk>();
  chunk->first = std::max(chunk_number * span, epoch_start);
  const uint64_t end = std::min((chunk_number + 1) * span, epoch_start + size_);
  std::vector<uint64_t>& sequences = chunk->sequences;
  for (uint64_t n = chunk->first; n < end; ++n) sequences.push_back(Drawn(n));
  std::stable_sort(sequences.begin(), sequences.end(), [&](uint64_t a, uint64_t b) {
    return sorting_->lengths[a] > sorting_->lengths[b];
  });
  // An epoch may begin or end within a group: these parts stay where they are.
  const uint64_t head = std::min<uint64_t>((group - chunk->first % group) % group,
                                           static_cast<uint64_t>(sequences.size()));
  const uint64_t groups = (sequences.size() - head) / group;
  PhiloxStream random({seed_, static_cast<uint32_t>(chunk_number), kGroupSite});
  for (uint64_t i = groups; i > 1; --i) {
    const uint64_t j = random.Below(i);
    auto begin = [&](uint64_t g) {
      return sequences.begin() + static_cast<ptrdiff_t>(head + g * group);
    };
    if (j != i - 1) std::swap_ranges(begin(i - 1), begin(i), begin(j));
  }
  sorting_->last = chunk;
  return chunk;
}

}  // namespace weft::engine
