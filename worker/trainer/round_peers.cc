#include "worker/trainer/round_peers.h"

#include <algorithm>
#include <utility>

namespace weft::trainer {
namespace {

/// A machine that is lost is noticed by its lease, and the coordinator may be away for a while.
constexpr std::chrono::minutes kPatience(10);
/// It is asked so often whether it is of any use to wait on.
constexpr std::chrono::milliseconds kSlice(500);
/// Ranks may be amid a round when the others come together, and then in their step.
constexpr std::chrono::minutes kConnectPatience(5);

}  // namespace

RoundPeers::RoundPeers(Reporter& reporter, engine::Store& store, engine::RoundMembers members)
    : reporter_(reporter),
      attempt_store_(store),
      members_(std::move(members)),
      store_(std::make_unique<Store>(this, members_.membership)) {
  reporter_.WatchMembership([this](const MembershipMessage& membership) { Told(membership); });
}

RoundPeers::~RoundPeers() {
  reporter_.WatchMembership(nullptr);
}

int64_t RoundPeers::newest() const {
  const std::lock_guard lock(mutex_);
  return newest_ ? newest_->number : members_.membership;
}

bool RoundPeers::LostOne() const {
  return newest_ && newest_->number > members_.membership &&
         std::any_of(newest_->gone.begin(), newest_->gone.end(), [&](int64_t number) {
           return engine::PlaceAmong(members_.members, number) >= 0;
         });
}

void RoundPeers::Told(const MembershipMessage& membership) {
  const std::lock_guard lock(mutex_);
  newest_ = membership;
  if (group_ != nullptr && LostOne()) group_->Abort();
  changed_.notify_all();
}

void RoundPeers::Watch(engine::Collective* group) {
  const std::lock_guard lock(mutex_);
  group_ = group;
  if (group_ != nullptr && LostOne()) group_->Abort();
}

void RoundPeers::Leave() {
  const std::lock_guard lock(mutex_);
  left_ = true;
}

Result<bool> RoundPeers::Await(int64_t least, bool joins) {
  const auto until = std::chrono::steady_clock::now() + kPatience;
  std::unique_lock lock(mutex_);
  const auto awaited = [&] {
    return newest_ && newest_->number >= least &&
           (!joins || engine::PlaceAmong(newest_->members, members_.number) >= 0);
  };
  while (!awaited()) {
    if (reporter_.StopRequested()) return false;
    if (std::chrono::steady_clock::now() > until) {
      return UnavailableError("rank " + std::to_string(members_.number) +
                              " was not told within 10 minutes who goes on with the training "
                              "after membership " +
                              std::to_string(members_.membership));
    }
    changed_.wait_for(lock, kSlice);
  }
  members_.membership = newest_->number;
  members_.members = newest_->members;
  left_ = false;
  lock.unlock();
  if (engine::PlaceAmong(members_.members, members_.number) < 0) return false;
  store_ = std::make_unique<Store>(this, members_.membership);
  return true;
}

Result<std::unique_ptr<engine::Collective>> RoundPeers::Connect(engine::CollectiveOptions options) {
  options.rank = static_cast<int>(engine::PlaceAmong(members_.members, members_.number));
  options.size = static_cast<int>(members_.members.size());
  options.connect_timeout = options.timeout + kConnectPatience;
  options.still_wanted = [this] {
    const std::string why = WhyOver();
    return why.empty() ? OkStatus() : UnavailableError(why);
  };
  const auto set = [this](bool connecting) {
    const std::lock_guard lock(mutex_);
    connecting_ = connecting;
  };
  set(true);
  Result<std::unique_ptr<engine::Collective>> group = engine::ConnectCollective(options, *store_);
  set(false);
  return group;
}

std::string RoundPeers::WhyOver() const {
  const std::lock_guard lock(mutex_);
  if (left_) return "this rank has left";
  if (LostOne()) return "one of its ranks is gone";
  // Nobody need tell of a rank that was about to leave anyway.
  if (group_ != nullptr) {
    if (const Status health = group_->Health(); !health.ok()) return health.message();
  }
  const bool newer = newest_ && newest_->number > members_.membership;
  return connecting_ && newer ? "there is a newer one" : "";
}

RoundPeers::Store::Store(RoundPeers* peers, int64_t membership)
    : peers_(peers), prefix_("membership/" + std::to_string(membership) + "/") {}

Status RoundPeers::Store::Set(const std::string& key, std::string_view value) {
  return peers_->attempt_store_.Set(prefix_ + key, value);
}

Result<std::string> RoundPeers::Store::Get(const std::string& key,
                                           std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  for (;;) {
    Result<std::string> value =
        peers_->attempt_store_.Get(prefix_ + key, std::min(timeout, kSlice));
    if (value.ok() || value.status().code() != StatusCode::kUnavailable) return value;
    if (const std::string why = peers_->WhyOver(); !why.empty()) {
      return UnavailableError(prefix_ + key + " will not come: " + why);
    }
    if (std::chrono::steady_clock::now() > until) return value;
  }
}

}  // namespace weft::trainer
