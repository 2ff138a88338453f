#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <utility>
#include <variant>
#include <vector>

#include "common/model/offloading_chain.h"
#include "common/model/optimal_chain.h"
#include "common/model/remat_schedule.h"

namespace weft::planner {

/// What tells chains apart whose schedules are looked for.
struct ChainName {
  std::vector<ChainStage> stages;
  int64_t bytes = 0;  ///< At most, in this many equal steps.
  int64_t slots = 1;
  /// The link of an OffloadingChain; none: it is an OptimalChain.
  std::optional<double> link_seconds_per_byte = {};

  bool operator==(const ChainName&) const = default;
};

/// The schedules of a chain, each found once. From several threads.
class CachedChain {
 public:
  CachedChain(ChainName name, std::stop_token stop)
      : name_(std::move(name)), stop_(std::move(stop)) {}

  const ChainName& name() const { return name_; }
  /// The schedule of the chain within `bytes`; none when they are too few, or it was asked to stop.
  std::optional<RematPlan> Schedule(int64_t bytes);

 private:
  const ChainName name_;
  const std::stop_token stop_;
  std::mutex mutex_;
  std::variant<std::monostate, OptimalChain, OffloadingChain> chain_;  ///< Once asked for.
  std::map<int64_t, std::optional<RematPlan>> found_;                  ///< By bytes.
};

/// Chains whose schedules were asked for last: they take long to find, and many plans of a search
/// have the same ones. From several threads.
class ChainCache {
 public:
  explicit ChainCache(std::stop_token stop = {}) : stop_(std::move(stop)) {}

  std::shared_ptr<CachedChain> At(ChainName name);
  /// Asks chains to look for no more.
  const std::stop_token& stop() const { return stop_; }

 private:
  static constexpr size_t kMost = 8;  // some MB each

  const std::stop_token stop_;
  std::mutex mutex_;
  std::list<std::shared_ptr<CachedChain>> chains_;  ///< The last one first.
};

}  // namespace weft::planner
