#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "worker/engine/tensor/profiler.h"

namespace weft::engine {

/// What a group does for its ranks.
enum class CollectiveKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kExchange,  ///< Messages between two ranks.
  kAllToAll,
  kControl,  ///< Small things of the host: bytes and barriers.
};
inline constexpr int kCollectiveKinds = 7;

/// "all-reduce", "reduce-scatter", ...
std::string_view CollectiveKindName(CollectiveKind kind);

/// The same as WaitName shows it.
std::string_view CollectiveKindShortName(CollectiveKind kind);

/// Sums over the operations of one kind of one group, on this rank.
struct CollectiveTotals {
  int64_t calls = 0;
  double bytes = 0;            ///< Of the larger of input and output.
  double sent_bytes = 0;       ///< That left this rank.
  double seconds = 0;          ///< From the start of each operation to its end.
  double exposed_seconds = 0;  ///< Of these, what the rank waited for; the rest was hidden.

  CollectiveTotals& operator+=(const CollectiveTotals& other) {
    calls += other.calls;
    bytes += other.bytes;
    sent_bytes += other.sent_bytes;
    seconds += other.seconds;
    exposed_seconds += other.exposed_seconds;
    return *this;
  }
};

/// The account of one group. Thread-safe.
class CollectiveAccount {
 public:
  explicit CollectiveAccount(std::string group) : group_(std::move(group)) {}

  /// Tells `profiler` (null: nobody) too of each operation that ends from now on.
  void SetProfiler(Profiler* profiler) { profiler_ = profiler; }

  /// An operation that took `seconds` has ended; `label`, a string literal, is its name for people.
  void AddDone(CollectiveKind kind, std::string_view label, double bytes, double sent_bytes,
               double seconds);

  /// A rank waited for so long until an operation was done.
  void AddExposed(CollectiveKind kind, double seconds);

  CollectiveTotals totals(CollectiveKind kind) const;

  /// Totals of all kinds.
  CollectiveTotals totals() const;

 private:
  std::atomic<Profiler*> profiler_{nullptr};
  mutable std::mutex mutex_;
  std::array<CollectiveTotals, kCollectiveKinds> totals_;
  const std::string group_;  ///< Its name.
};

/// The account of a group along an axis of the mesh.
struct AxisAccount {
  std::string axis;
  CollectiveAccount* account = nullptr;
};

}  // namespace weft::engine
