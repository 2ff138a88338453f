#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "coordinator/store/forwarding_store.h"
#include "tests/simulation/timeline.h"

namespace weft::simulation {

/// What one life of the coordinator sees of a database: changes are stored after a while, in their
/// order, and answered after another one. When that life ends, those under way are stored or not.
class LateStore : public coordinator::ForwardingStore {
 public:
  using Stored = std::function<void(const coordinator::Transaction&)>;

  /// `stored` sees each change as soon as it is durable.
  LateStore(coordinator::Store& store, Timeline& timeline, Stored stored)
      : ForwardingStore(store), timeline_(timeline), stored_(std::move(stored)) {}

  /// No change can be stored for so long.
  void Fail(Duration duration) { fails_until_ = timeline_.now() + duration; }
  /// The process dies: some changes are stored yet, and nothing is answered.
  void Die();

  void Commit(coordinator::Transaction transaction,
              std::function<void(Result<coordinator::CommitResult>)> done) override;

 private:
  struct Change {
    coordinator::Transaction transaction;
    std::function<void(Result<coordinator::CommitResult>)> done;
  };

  void StoreFirst();
  Result<coordinator::CommitResult> StoreNow(const coordinator::Transaction& transaction);

  Timeline& timeline_;
  Stored stored_;
  std::deque<Change> changes_;
  Duration last_{0};         ///< When the last one of them is stored,
  Duration last_answer_{0};  ///< and answered.
  Duration fails_until_{0};
  bool dead_ = false;
  std::shared_ptr<char> alive_ = std::make_shared<char>();
};

}  // namespace weft::simulation
