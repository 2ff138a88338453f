#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "worker/engine/comm/collective.h"
#include "worker/engine/comm/store.h"
#include "worker/engine/train/round_members.h"
#include "worker/trainer/reporter.h"

namespace weft::trainer {

/// Who makes rounds by time with this rank, where ranks come and go: what the daemon tells of it,
/// and the groups in which they come together, one for each membership. Used by one thread, except
/// that memberships come on another.
class RoundPeers {
 public:
  /// `reporter` and `store` outlive this. The attempt starts with `members`.
  RoundPeers(Reporter& reporter, engine::Store& store, engine::RoundMembers members);
  ~RoundPeers();
  RoundPeers(const RoundPeers&) = delete;
  RoundPeers& operator=(const RoundPeers&) = delete;

  const engine::RoundMembers& members() const { return members_; }

  /// The number of the newest membership that is known.
  int64_t newest() const;

  /// A store of the present membership, for what its ranks do together besides the group. Get gives
  /// up with kUnavailable soon after one of them is known to be gone or the watched group has
  /// broken, or after Leave.
  engine::Store& store() { return *store_; }

  /// The group of the present membership: it is cut as soon as one of its ranks is known to be
  /// gone. It lives until the next call, null: none.
  void Watch(engine::Collective* group);

  /// The present membership is over.
  void Leave();

  /// Waits for a membership of at least that number, and makes it the present one; with `joins` for
  /// one with this rank. False: this rank is none of it, or was asked to stop meanwhile.
  /// kUnavailable when none comes.
  Result<bool> Await(int64_t least, bool joins);

  /// Joins the group of the present membership; `options` says all but rank and size. kUnavailable
  /// also when a newer membership comes meanwhile.
  Result<std::unique_ptr<engine::Collective>> Connect(engine::CollectiveOptions options);

 private:
  /// The keys of one membership in the store of the attempt.
  class Store : public engine::Store {
   public:
    Store(RoundPeers* peers, int64_t membership);
    Status Set(const std::string& key, std::string_view value) override;
    Result<std::string> Get(const std::string& key, std::chrono::milliseconds timeout) override;

   private:
    RoundPeers* peers_;
    const std::string prefix_;
  };

  void Told(const MembershipMessage& membership);
  /// Why nobody waits for ranks of the present membership any more; "": they may come.
  std::string WhyOver() const;
  /// Needs mutex_.
  bool LostOne() const;

  Reporter& reporter_;
  engine::Store& attempt_store_;

  mutable std::mutex mutex_;  ///< Guards what follows. The caller's thread alone changes members_.
  std::condition_variable changed_;
  engine::RoundMembers members_;
  std::optional<MembershipMessage> newest_;
  engine::Collective* group_ = nullptr;
  bool left_ = false;
  bool connecting_ = false;

  std::unique_ptr<Store> store_;
};

}  // namespace weft::trainer
