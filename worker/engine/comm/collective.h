#pragma once

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "worker/engine/comm/store.h"

namespace weft::engine {

/// Operations that all ranks of a group do together. Every rank calls the same operations in the
/// same order with the same sizes; one at a time (callers serialise), but for Abort.
///
/// When a peer dies, falls silent for longer than the timeout, or aborts, the operation under way
/// returns kUnavailable, and so do all later ones: the group is broken for good and the attempt
/// has to be started again. No operation waits forever.
class Collective {
 public:
  virtual ~Collective() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  /// Replaces each element by its sum over the ranks. The order of the additions depends only on
  /// the length and the number of ranks, and every rank gets the same bits.
  virtual Status AllReduceSum(std::span<float> values) = 0;
  virtual Status AllReduceSum(std::span<double> values) = 0;

  /// The bytes of every rank, by rank. Lengths may differ.
  virtual Result<std::vector<std::string>> AllGather(std::string_view bytes) = 0;

  /// Overwrites `bytes` on every rank with those of `root`.
  virtual Status Broadcast(std::span<std::byte> bytes, int root) = 0;

  /// Returns once every rank has called it.
  virtual Status Barrier() = 0;

  /// Leaves the group: cuts the connections, so that the peers fail at once instead of waiting.
  /// An operation under way here fails, at the latest after its timeout. From any thread.
  virtual void Abort() = 0;
};

/// What a rank needs to join its group.
struct CollectiveOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  ///< Address of this machine that the peers can reach.

  /// How long joining may take: peers may still be preparing their data.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(30);

  /// How long an operation waits for its peers before it takes them for lost.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);
};

/// Joins the group of `options.size` ranks that share `store`: Gloo over TCP, or nothing at all for
/// a single rank. kUnavailable when the peers do not come, kInvalid when the host is not ours.
Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store);

}  // namespace weft::engine
