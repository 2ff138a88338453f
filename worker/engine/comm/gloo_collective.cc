#include "worker/engine/comm/gloo_collective.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>

#include "common/secret.h"
#include "common/wait_name.h"
#include "worker/engine/comm/gloo_device.h"
#include "worker/engine/comm/gloo_link.h"
#include "worker/engine/comm/gloo_operations.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/comm/peer_watch.h"

namespace weft::engine {
namespace {

/// How long operations go on after a peer is lost.
constexpr std::chrono::seconds kGrace(1);

constexpr size_t kTokenBytes = 32;
constexpr const char* kTokenKey = "token";

/// Our Store as Gloo wants it: errors are exceptions, which Connect catches.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(engine::Store& store, std::string prefix, std::chrono::milliseconds timeout)
      : store_(store), prefix_(std::move(prefix)), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    if (Status status = store_.Set(prefix_ + key, {data.data(), data.size()}); !status.ok()) {
      throw gloo::IoException(status.message());
    }
  }

  std::vector<char> get(const std::string& key) override {
    Result<std::string> value = store_.Get(prefix_ + key, timeout_);
    if (!value.ok()) throw gloo::IoException(value.status().message());
    return {value->begin(), value->end()};
  }

  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }

  /// Gloo passes the timeout of operations here; joining has its own, longer one.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override {
    for (const std::string& key : keys) get(key);
  }

 private:
  engine::Store& store_;
  std::string prefix_;
  std::chrono::milliseconds timeout_;
};

/// What all groups of a process are made with.
struct GlooMeans {
  CollectiveOptions options;
  Store* store = nullptr;
  std::shared_ptr<gloo::transport::Device> device;
};

/// An operation in the queue of a group.
class QueuedWork : public Work::State {
 public:
  QueuedWork(std::function<void()> run, const CollectiveCall& call,
             std::shared_ptr<CollectiveAccount> account)
      : run_(std::move(run)),
        kind_(call.kind),
        label_(call.label),
        bytes_(call.bytes),
        account_(std::move(account)) {}

  Status Wait(const Stream&) override {
    std::unique_lock lock(mutex_);
    if (done_) return status_;
    const WaitName name(CollectiveKindShortName(kind_));
    Stopwatch watch;
    changed_.wait(lock, [this] { return done_; });
    account_->AddExposed(kind_, watch.Lap());
    return status_;
  }

  Status WaitUncounted(const Stream&) override {
    std::unique_lock lock(mutex_);
    if (done_) return status_;
    const WaitName name(CollectiveKindShortName(kind_));
    changed_.wait(lock, [this] { return done_; });
    return status_;
  }

  bool Done() override {
    const std::lock_guard lock(mutex_);
    return done_;
  }

  const std::function<void()>& run() const { return run_; }
  std::string Describe() const {
    return std::string(label_) +
           (bytes_ > 0 ? " of " + std::to_string(std::llround(bytes_)) + " bytes" : "");
  }

  void Finish(Status status, double seconds, double sent_bytes) {
    if (status.ok()) account_->AddDone(kind_, label_, bytes_, sent_bytes, seconds);
    std::lock_guard lock(mutex_);
    run_ = nullptr;
    status_ = std::move(status);
    done_ = true;
    changed_.notify_all();
  }

 private:
  std::function<void()> run_;
  const CollectiveKind kind_;
  const std::string_view label_;
  const double bytes_;
  const std::shared_ptr<CollectiveAccount> account_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  Status status_;
};

class GlooCollective : public Collective {
 public:
  GlooCollective(GlooMeans means, std::shared_ptr<gloo::Context> context, std::string prefix,
                 std::string name, std::vector<int> members)
      : Collective(context->rank, context->size, Device{}, std::move(name), std::move(members)),
        means_(std::move(means)),
        prefix_(std::move(prefix)),
        link_(std::move(context)),
        operations_(link_),
        watch_(link_.context(), this->members(), [this] { OnLost(); }),
        thread_([this] { Communicate(); }) {}

  ~GlooCollective() override {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
    if (!link_.aborted()) watch_.Farewell(true);
  }

  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    std::vector<std::string> all;
    WEFT_RETURN_IF_ERROR(
        Control("gathering bytes", bytes.size(), [&] { all = operations_.Gather(bytes); }));
    return all;
  }

  Status Broadcast(std::span<std::byte> bytes, int root) override {
    if (root < 0 || root >= size()) {
      return InvalidError("broadcast from rank " + std::to_string(root) + " of " +
                          std::to_string(size()));
    }
    return Control("broadcasting bytes", bytes.size(), [&] {
      operations_.Broadcast(bytes.data(), static_cast<int64_t>(bytes.size()), root);
    });
  }

  Status Barrier() override {
    return Control("barrier", 0, [this] { operations_.Barrier(); });
  }

  Result<std::unique_ptr<Collective>> Split(int64_t color, const std::string& name) override;

  Status Health() override {
    const std::lock_guard lock(health_mutex_);
    return health_;
  }

  int64_t held_bytes() const override { return operations_.held_bytes(); }

  void Abort() override { GiveUp("the group was aborted here"); }

  /// `members`: of all ranks those that join here, by their rank here.
  static Result<std::unique_ptr<Collective>> Connect(GlooMeans means, int rank,
                                                     std::vector<int> members, std::string prefix,
                                                     std::string name);

 private:
  Work Start(const Stream&, CollectiveCall call) override {
    const auto shared = std::make_shared<CollectiveCall>(std::move(call));
    return Enqueue(*shared, [this, shared] { operations_.Run(*shared); });
  }

  Work Enqueue(const CollectiveCall& call, std::function<void()> run) {
    auto work = std::make_shared<QueuedWork>(std::move(run), call, shared_account());
    {
      std::lock_guard lock(mutex_);
      queue_.push_back(work);
    }
    changed_.notify_all();
    return Work(std::move(work));
  }

  Status Control(std::string_view label, size_t bytes, std::function<void()> run) {
    const CollectiveCall call{
        .kind = CollectiveKind::kControl, .label = label, .bytes = static_cast<double>(bytes)};
    return Enqueue(call, std::move(run)).Wait(Stream{});
  }

  void Communicate() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return closing_ || !queue_.empty(); });
      if (closing_) break;
      const std::shared_ptr<QueuedWork> work = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      RunOne(*work);
      lock.lock();
    }
    for (const std::shared_ptr<QueuedWork>& work : queue_) {
      work->Finish(UnavailableError(Where(*work) + ": the group was left"), 0, 0);
    }
    ended_ = true;
    changed_.notify_all();
  }

  std::string Where(const QueuedWork& work) const { return Who() + ", " + work.Describe(); }

  /// An operation under way may still have all it needs, or fails by itself. Not always: Gloo does
  /// not tell who waits for the rest of a message that was cut off.
  void OnLost() {
    SetHealth("");
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kGrace, [this] { return ended_ || link_.aborted(); })) return;
    lock.unlock();
    GiveUp("");
  }

  /// `why` counts the first time; empty: what the watch knows.
  void SetHealth(std::string why) {
    if (why.empty()) why = watch_.Lost();
    if (why.empty()) why = "a peer is lost";
    const std::lock_guard lock(health_mutex_);
    if (health_.ok()) health_ = UnavailableError(Who() + ": " + why);
  }

  /// The group is broken from now on.
  void GiveUp(const std::string& why) {
    SetHealth(why);
    watch_.Farewell(false);
    link_.Abort();
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  void RunOne(QueuedWork& work) {
    if (link_.aborted()) {
      work.Finish(
          UnavailableError(Where(work) + ": the group of ranks is broken: " + Health().message()),
          0, 0);
      return;
    }
    const double sent = link_.sent_bytes();
    Stopwatch watch;
    try {
      work.run()();
      work.Finish(OkStatus(), watch.Lap(), link_.sent_bytes() - sent);
    } catch (const std::exception& error) {
      const bool silent = PeerWatch::IsTimeout(error.what());
      std::string why = silent ? "a peer is silent" : watch_.Lost();
      if (why.empty()) why = "a peer is lost";
      why += std::string(": ") + error.what();
      if (silent) link_.Abort();  // There is no connection left to say more over.
      GiveUp(why);
      work.Finish(UnavailableError(Where(work) + ": " + why), 0, 0);
    }
  }

  const GlooMeans means_;
  const std::string prefix_;
  GlooLink link_;
  GlooOperations operations_;  ///< Of thread_ alone.
  int64_t splits_ = 0;
  std::mutex health_mutex_;
  Status health_;  ///< What broke the group.

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  std::deque<std::shared_ptr<QueuedWork>> queue_;
  bool closing_ = false;
  bool ended_ = false;  ///< Communicate is over.

  PeerWatch watch_;
  std::thread thread_;
};

Result<std::unique_ptr<Collective>> GlooCollective::Split(int64_t color, const std::string& name) {
  const std::string own(reinterpret_cast<const char*>(&color), sizeof color);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> colors, AllGather(own));
  const auto before = std::count(colors.begin(), colors.begin() + rank(), own);
  std::vector<int> chosen;
  for (size_t peer = 0; peer < colors.size(); ++peer) {
    if (colors[peer] == own) chosen.push_back(members()[peer]);
  }
  const std::string prefix =
      prefix_ + "split " + std::to_string(splits_++) + "/" + std::to_string(color) + "/";
  if (chosen.size() == 1) return NewLocalCollective(device(), name, chosen[0]);
  return Connect(means_, static_cast<int>(before), std::move(chosen), prefix, name);
}

Result<std::unique_ptr<Collective>> GlooCollective::Connect(GlooMeans means, int rank,
                                                            std::vector<int> members,
                                                            std::string prefix, std::string name) {
  const auto size = static_cast<int>(members.size());
  const std::string failed = "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                             " could not join its peers from " + means.options.host + ": ";
  try {
    auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
    context->setTimeout(means.options.timeout);
    GlooStore store(*means.store, prefix, means.options.connect_timeout);
    context->connectFullMesh(store, means.device);
    auto group = std::make_unique<GlooCollective>(means, std::move(context), std::move(prefix),
                                                  std::move(name), members);
    // Nobody may leave before everybody has joined: a peer that connects to us last would see the
    // closed connection as a failure to join.
    WEFT_RETURN_IF_ERROR(group->Barrier());
    return std::unique_ptr<Collective>(std::move(group));
  } catch (const NoConnection& error) {
    const int peer = members[static_cast<size_t>(error.peer())];
    return UnavailableError(failed + "no connection to rank " + std::to_string(peer) + ": " +
                            error.what() +
                            "; hint: machines of a job must reach each other on all TCP ports that "
                            "ranks may open");
  } catch (const std::exception& error) {
    return UnavailableError(failed + error.what());
  }
}

/// What only the ranks of this attempt know, since only they reach its store.
Result<std::string> AgreeOnToken(const CollectiveOptions& options, Store& store) {
  if (options.rank != 0) return store.Get(kTokenKey, options.connect_timeout);
  std::string token = RandomBytes(kTokenBytes);
  WEFT_RETURN_IF_ERROR(store.Set(kTokenKey, token));
  return token;
}

}  // namespace

Result<std::unique_ptr<Collective>> ConnectGloo(const CollectiveOptions& options, Store& store) {
  GlooMeans means{options, &store, nullptr};
  WEFT_ASSIGN_OR_RETURN(const std::string token, AgreeOnToken(options, store));
  try {
    means.device = NewGlooDevice(options.host, token, options.still_wanted);
  } catch (const std::exception& error) {
    return InvalidError("listening on '" + options.host + "' for collectives: " + error.what() +
                        "; hint: the worker's address must be one of its own machine");
  }
  std::vector<int> all(static_cast<size_t>(options.size));
  std::iota(all.begin(), all.end(), 0);
  return GlooCollective::Connect(std::move(means), options.rank, std::move(all), "", "world");
}

}  // namespace weft::engine
