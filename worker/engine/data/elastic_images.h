#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/rng.h"
#include "worker/engine/data/batch_source.h"

namespace weft::engine {

/// The same images in several sizes: each batch has one of them. As pure a function as its sources,
/// and thread-safe when they are.
class ElasticImages : public BatchSource {
 public:
  /// One source for each size; they yield the same images in the same order.
  ElasticImages(std::vector<std::unique_ptr<BatchSource>> sizes, int64_t seed)
      : sizes_(std::move(sizes)), seed_(seed) {}

  int64_t Sequences() const override { return sizes_.front()->Sequences(); }

  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    return sizes_[SizeOf(step)]->Get(step, first_sequence, count);
  }

  /// Which size the batch of `step` has, each as likely as the others: the same on all ranks.
  size_t SizeOf(int64_t step) const {
    constexpr uint32_t kSite = SiteHash("elastic_images");
    const PhiloxKey key{static_cast<uint64_t>(seed_), static_cast<uint32_t>(step), kSite};
    PhiloxStream random(key);
    return static_cast<size_t>(random.Below(static_cast<uint32_t>(sizes_.size())));
  }

  /// The batches of all steps in one size.
  BatchSource* OfSize(size_t index) { return sizes_[index].get(); }

 private:
  std::vector<std::unique_ptr<BatchSource>> sizes_;
  int64_t seed_;
};

}  // namespace weft::engine
