#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "worker/engine/data/batch_source.h"
#include "worker/engine/data/sequence_range.h"

namespace weft::engine {

/// What of the global batch a rank asks for in a step, each range at once, in order; never empty.
using RangesOfStep = std::function<std::vector<SequenceRange>(int64_t step)>;

/// Prepares, on a thread of its own, the batch that will be asked for next. Any other request is
/// answered too, only without the head start. Not thread-safe.
class Prefetcher : public BatchSource {
 public:
  Prefetcher(std::unique_ptr<BatchSource> source, RangesOfStep ranges);
  ~Prefetcher() override;
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  int64_t Sequences() const override { return source_->Sequences(); }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override;

 private:
  struct Request {
    int64_t step = 0;
    SequenceRange range;
    bool operator==(const Request&) const = default;
  };

  Request Next(const Request& request) const;
  void Work();

  const std::unique_ptr<BatchSource> source_;
  const RangesOfStep ranges_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Request> wanted_;  ///< Being prepared, or prepared when `ready_` is set.
  std::optional<Result<Batch>> ready_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the members above
};

}  // namespace weft::engine
