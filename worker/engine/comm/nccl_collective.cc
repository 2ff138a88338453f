#include "worker/engine/comm/nccl_collective.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "common/wait_name.h"
#include "kernels/cuda/device.h"
#include "worker/engine/comm/collective_recorder.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/comm/nccl_calls.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using N = NcclLibrary;

constexpr auto kPoll = milliseconds(1);    ///< While a thread waits for NCCL.
constexpr auto kWatch = milliseconds(20);  ///< While operations are under way.
constexpr auto kNaming =
    milliseconds(300);  ///< How long NCCL's error waits for the lost one's name.

/// An operation on the stream of a group. The group guards it.
struct Enqueued {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string_view label;
  double bytes = 0;
  double sent_bytes = 0;
  N::Event begin = nullptr;
  N::Event end = nullptr;
  /// Where a stream begins and ends to wait for it.
  std::vector<std::pair<N::Event, N::Event>> waits;
  std::optional<steady_clock::time_point> begun;  ///< When it was first seen to have.
  bool ended = false;
  N::Event joined = nullptr;  ///< Of one that is recorded: its end within the graph.
  std::shared_ptr<CollectiveRecorder::Recorded> recorded;  ///< Has the events, of a repeated one.
};
using Operation = std::shared_ptr<Enqueued>;

struct RecordedOperations : CollectiveRecorder::Recorded {
  explicit RecordedOperations(const NcclLibrary& its_library) : library(its_library) {}
  ~RecordedOperations() override {
    for (N::Event event : events) (void)library.event_destroy(event);
  }

  const NcclLibrary& library;
  std::vector<Operation> operations;
  std::vector<N::Event> events;
};

class NcclCollective : public Collective, public CollectiveRecorder {
 public:
  NcclCollective(const NcclLibrary& library, const CollectiveOptions& options,
                 std::unique_ptr<Collective> host)
      : Collective(host->rank(), host->size(), options.device, host->name(), host->members()),
        library_(library),
        options_(options),
        host_(std::move(host)),
        shared_(std::make_shared<Shared>()) {
    shared_->group = this;
  }

  ~NcclCollective() override {
    if (watcher_.joinable()) {
      {
        std::lock_guard lock(mutex_);
        closing_ = true;
      }
      changed_.notify_all();
      watcher_.join();
    }
    {
      std::lock_guard lock(shared_->mutex);
      shared_->group = nullptr;
    }
    std::unique_lock lock(mutex_);
    Leave(lock);
    if (aborter_.joinable()) {
      lock.unlock();
      aborter_.join();
      lock.lock();
    }
    (void)library_.set_device(options_.device.index);
    for (const Operation& operation : operations_) Recycle(*operation);
    for (N::Event event : events_) (void)library_.event_destroy(event);
    if (stream_ != nullptr) (void)library_.stream_destroy(stream_);
  }

  /// `make` starts the making of the communicator; returns when that is done.
  template <class Make>
  Status Open(Make&& make) {
    std::unique_lock lock(mutex_);
    WEFT_RETURN_IF_ERROR(Cuda("choosing the device", library_.set_device(options_.device.index)));
    WEFT_RETURN_IF_ERROR(
        Cuda("making a stream", library_.stream_create(&stream_, N::kStreamNonBlocking)));
    const int outcome = make(&comm_);
    WEFT_RETURN_IF_ERROR(Settle(lock, "joining", outcome, options_.connect_timeout));
    watcher_ = std::thread([this] { Watch(); });
    return OkStatus();
  }

  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    Result<std::vector<std::string>> all = host_->AllGather(bytes);
    (void)Notice(all.status());
    return all;
  }
  Status Broadcast(std::span<std::byte> bytes, int root) override {
    return Notice(host_->Broadcast(bytes, root));
  }
  Status Barrier() override { return Notice(host_->Barrier()); }

  Status OpenChannel(int from, int to) override;

  Result<std::unique_ptr<Collective>> Split(int64_t color, const std::string& name) override;

  Status Health() override {
    std::unique_lock lock(mutex_);
    return failure_.ok() ? host_->Health() : failure_;
  }

  void Abort() override {
    aborting_ = true;
    std::unique_lock lock(mutex_);
    Fail(UnavailableError(Where("any operation") + ": the group was aborted here"));
  }

  void StartRecording() override {
    std::lock_guard lock(mutex_);
    recording_ = std::make_shared<RecordedOperations>(library_);
  }
  std::shared_ptr<Recorded> TakeRecorded() override {
    std::lock_guard lock(mutex_);
    return std::exchange(recording_, nullptr);
  }
  Status Repeat(const std::shared_ptr<Recorded>& recorded) override;

 private:
  /// What the operations' handles know the group by, which may be gone before they are.
  struct Shared {
    std::mutex mutex;
    NcclCollective* group = nullptr;
  };
  struct Handle : Work::State {
    Handle(std::shared_ptr<Shared> its_shared, Operation its_operation)
        : shared(std::move(its_shared)), operation(std::move(its_operation)) {}
    Status Wait(const Stream& stream) override { return Wait(stream, true); }
    Status WaitUncounted(const Stream& stream) override { return Wait(stream, false); }
    Status Wait(const Stream& stream, bool counts) {
      std::lock_guard lock(shared->mutex);
      // Whoever ends a group waits for its operations.
      return shared->group != nullptr ? shared->group->WaitFor(*operation, stream, counts)
                                      : OkStatus();
    }
    std::shared_ptr<Shared> shared;
    Operation operation;
  };

  std::string Where(std::string_view what) const {
    return Who() + " over NCCL, " + std::string(what);
  }
  Status Cuda(std::string_view what, int error) const {
    if (error == 0) return OkStatus();
    return InternalError(Where(what) + ": CUDA error " + std::to_string(error));
  }

  /// Waits until what began with `outcome` is no longer in progress. Whoever aborts meanwhile gets
  /// the lock.
  Status Settle(std::unique_lock<std::mutex>& lock, std::string_view what, int outcome,
                milliseconds timeout) {
    const auto deadline = steady_clock::now() + timeout;
    while (outcome == N::kInProgress) {
      if (comm_ == nullptr) return failure_;
      if (const int polled = library_.comm_get_async_error(comm_, &outcome); polled != 0) {
        outcome = polled;
      }
      if (outcome != N::kInProgress) break;
      if (Status health = host_->Health(); !health.ok()) {
        Fail(UnavailableError(Where(what) + ": " + health.message()));
        return failure_;
      }
      if (aborting_ || steady_clock::now() >= deadline) {
        Fail(UnavailableError(Where(what) + ": not done within " + std::to_string(timeout.count()) +
                              " ms"));
        return failure_;
      }
      lock.unlock();
      std::this_thread::sleep_for(kPoll);
      lock.lock();
    }
    if (outcome == N::kSuccess) return OkStatus();
    Fail(UnavailableError(Where(what) + ": " + library_.get_error_string(outcome)));
    return failure_;
  }

  /// The group is broken from now on: what its streams wait for ends at once. With the lock held.
  void Fail(Status failure) {
    if (!failure_.ok()) return;
    failure_ = std::move(failure);
    if (comm_ != nullptr) {
      // Its operations end at once. It returns only when no graph has any of them, and who is to
      // give those up may be waiting for one.
      aborter_ = std::thread([this, comm = std::exchange(comm_, nullptr)] {
        (void)library_.set_device(options_.device.index);
        (void)library_.comm_abort(comm);
      });
    }
    host_->Abort();
    changed_.notify_all();
  }

  /// A peer that is lost to the host's group is lost to this one.
  Status Notice(Status status) {
    std::unique_lock lock(mutex_);
    if (!failure_.ok()) return failure_;
    Harvest();
    if (status.code() == StatusCode::kUnavailable) Fail(status);
    return status;
  }

  /// Waits for what is under way, as long as the watcher lets it, and gives the communicator back.
  void Leave(std::unique_lock<std::mutex>& lock) {
    if (comm_ == nullptr) return;
    int outcome = library_.comm_finalize(comm_);
    const auto deadline = steady_clock::now() + options_.timeout;
    while (outcome == N::kInProgress && steady_clock::now() < deadline) {
      if (library_.comm_get_async_error(comm_, &outcome) != 0) break;
      lock.unlock();
      std::this_thread::sleep_for(kPoll);
      lock.lock();
    }
    N::Comm comm = std::exchange(comm_, nullptr);
    (void)(outcome == N::kSuccess ? library_.comm_destroy(comm) : library_.comm_abort(comm));
  }

  Result<N::Event> NewEvent() {
    if (recording_ == nullptr && !events_.empty()) {
      N::Event event = events_.back();
      events_.pop_back();
      return event;
    }
    N::Event event = nullptr;
    WEFT_RETURN_IF_ERROR(Cuda("making an event", library_.event_create(&event, N::kEventTimed)));
    if (recording_ != nullptr) recording_->events.push_back(event);
    return event;
  }
  /// `flags`: within a graph an event orders its streams, or is passed by each launch.
  Result<N::Event> PlacedEvent(N::Stream stream, unsigned flags = N::kEventRecordDefault) {
    WEFT_ASSIGN_OR_RETURN(N::Event event, NewEvent());
    WEFT_RETURN_IF_ERROR(Cuda("marking a stream", library_.event_record(event, stream, flags)));
    return event;
  }
  /// For the account: to be asked whether and when it was passed.
  Result<N::Event> WatchedEvent(N::Stream stream) {
    return PlacedEvent(stream, recording_ ? N::kEventRecordExternal : N::kEventRecordDefault);
  }
  void Recycle(Enqueued& operation) {
    if (operation.recorded != nullptr) return;
    for (N::Event event : {operation.begin, operation.end}) {
      if (event != nullptr) events_.push_back(event);
    }
    for (const auto& [before, after] : operation.waits) {
      events_.push_back(before);
      events_.push_back(after);
    }
    operation.waits.clear();
    operation.begin = operation.end = nullptr;
  }

  Work Start(const Stream& stream, CollectiveCall call) override;
  /// `counts`: as exposed time.
  Status WaitFor(Enqueued& operation, const Stream& stream, bool counts);
  Status WaitInGraph(Enqueued& operation, const Stream& stream);
  Status WaitOnStream(Enqueued& operation, N::Event end, const Stream& stream, bool counts = true);
  void Harvest();
  void Watch();

  const NcclLibrary& library_;
  const CollectiveOptions options_;
  const std::unique_ptr<Collective> host_;
  const std::shared_ptr<Shared> shared_;
  std::atomic<bool> aborting_{false};

  std::mutex mutex_;  ///< Guards what follows.
  std::condition_variable changed_;
  N::Comm comm_ = nullptr;  ///< None once the group is broken.
  N::Stream stream_ = nullptr;
  std::deque<Operation> operations_;               ///< Not all done.
  std::vector<N::Event> events_;                   ///< Free.
  std::shared_ptr<RecordedOperations> recording_;  ///< Under way, or none.
  Status failure_;
  bool closing_ = false;
  std::thread aborter_;  ///< Once the group is broken.

  std::thread watcher_;
};

Work NcclCollective::Start(const Stream& stream, CollectiveCall call) {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return Work(failure_);
  if (stream.device != device() || stream.cuda == nullptr) {
    return Work(InvalidError(Where(call.label) + ": the stream is not of the group's device"));
  }
  // A thread that records a graph may not ask for events.
  if (recording_ == nullptr) Harvest();
  auto operation = std::make_shared<Enqueued>();
  operation->kind = call.kind;
  operation->label = call.label;
  operation->bytes = call.bytes;
  operation->sent_bytes = call.sent_bytes;
  const auto enqueue = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(Cuda("choosing the device", library_.set_device(device().index)));
    WEFT_ASSIGN_OR_RETURN(N::Event ready, PlacedEvent(stream.cuda->handle()));
    // Waiting takes what is recorded now: it may be recorded again.
    if (recording_ == nullptr) events_.push_back(ready);
    WEFT_RETURN_IF_ERROR(Cuda("ordering streams", library_.stream_wait_event(stream_, ready, 0)));
    WEFT_ASSIGN_OR_RETURN(operation->begin, WatchedEvent(stream_));
    WEFT_RETURN_IF_ERROR(
        Settle(lock, call.label, EnqueueCall(library_, comm_, stream_, call), options_.timeout));
    WEFT_ASSIGN_OR_RETURN(operation->end, WatchedEvent(stream_));
    if (recording_ == nullptr) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(operation->joined, PlacedEvent(stream_));
    return OkStatus();
  };
  if (Status status = enqueue(); !status.ok()) {
    if (recording_ != nullptr) return Work(status);
    Fail(status);
    return Work(failure_);
  }
  if (recording_ != nullptr) {
    recording_->operations.push_back(operation);
  } else {
    operations_.push_back(operation);
    changed_.notify_all();
  }
  return Work(std::make_shared<Handle>(shared_, std::move(operation)));
}

// A byte goes the way, on the group's stream: no operation has begun there yet that it could wait
// for.
Status NcclCollective::OpenChannel(int from, int to) {
  if (rank() != from && rank() != to) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(const auto byte, kernels::cuda::DeviceMemory::Allocate(device().index, 1));
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  auto operation = std::make_shared<Enqueued>();
  operation->kind = CollectiveKind::kControl;
  operation->label = "opening a way";
  const auto enqueue = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(Cuda("choosing the device", library_.set_device(device().index)));
    WEFT_ASSIGN_OR_RETURN(operation->begin, WatchedEvent(stream_));
    const int outcome = rank() == from
                            ? library_.send(byte.data(), 1, N::kUint8, to, comm_, stream_)
                            : library_.receive(byte.data(), 1, N::kUint8, from, comm_, stream_);
    WEFT_RETURN_IF_ERROR(Settle(lock, operation->label, outcome, options_.connect_timeout));
    WEFT_ASSIGN_OR_RETURN(operation->end, WatchedEvent(stream_));
    return OkStatus();
  };
  if (Status status = enqueue(); !status.ok()) {
    Fail(status);
    return failure_;
  }
  operations_.push_back(operation);
  changed_.notify_all();
  changed_.wait(lock, [&] { return operation->ended || !failure_.ok(); });
  return failure_;
}

Status NcclCollective::Repeat(const std::shared_ptr<Recorded>& recorded) {
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  Harvest();
  for (const Operation& each : static_cast<RecordedOperations&>(*recorded).operations) {
    auto again = std::make_shared<Enqueued>(*each);
    again->recorded = recorded;
    operations_.push_back(std::move(again));
  }
  changed_.notify_all();
  return OkStatus();
}

Status NcclCollective::WaitFor(Enqueued& operation, const Stream& stream, bool counts) {
  std::unique_lock lock(mutex_);
  if (recording_ != nullptr) return WaitInGraph(operation, stream);
  // Its graph has what waits for it.
  if (operation.joined != nullptr) return failure_;
  if (stream.device.type != DeviceType::kCuda) {
    // The watcher ends what takes too long.
    const WaitName name(CollectiveKindShortName(operation.kind));
    Stopwatch watch;
    changed_.wait(lock, [&] { return operation.ended || !failure_.ok(); });
    if (counts) account().AddExposed(operation.kind, watch.Lap());
    return failure_;
  }
  if (!failure_.ok() || operation.ended) return failure_;
  if (Status status = WaitOnStream(operation, operation.end, stream, counts); !status.ok()) {
    Fail(status);
  }
  return failure_;
}

Status NcclCollective::WaitInGraph(Enqueued& operation, const Stream& stream) {
  if (!failure_.ok() || operation.ended) return failure_;
  if (stream.device.type != DeviceType::kCuda || operation.joined == nullptr) {
    return InternalError(Where(operation.label) + ": waited for while a graph is recorded");
  }
  return WaitOnStream(operation, operation.joined, stream);
}

Status NcclCollective::WaitOnStream(Enqueued& operation, N::Event end, const Stream& stream,
                                    bool counts) {
  WEFT_RETURN_IF_ERROR(Cuda("choosing the device", library_.set_device(device().index)));
  const auto wait = [&] {
    return Cuda("ordering streams", library_.stream_wait_event(stream.cuda->handle(), end, 0));
  };
  if (!counts) return wait();
  WEFT_ASSIGN_OR_RETURN(N::Event before, WatchedEvent(stream.cuda->handle()));
  WEFT_RETURN_IF_ERROR(wait());
  WEFT_ASSIGN_OR_RETURN(N::Event after, WatchedEvent(stream.cuda->handle()));
  operation.waits.emplace_back(before, after);
  return OkStatus();
}

// Enters what is done into the account. With the lock held.
void NcclCollective::Harvest() {
  const auto passed = [this](N::Event event) { return library_.event_query(event) == 0; };
  for (const Operation& operation : operations_) {
    if (operation->ended) continue;
    if (!operation->begun && passed(operation->begin)) operation->begun = steady_clock::now();
    if (!passed(operation->end)) break;
    float elapsed_ms = 0;
    (void)library_.event_elapsed(&elapsed_ms, operation->begin, operation->end);
    account().AddDone(operation->kind, operation->label, operation->bytes, operation->sent_bytes,
                      elapsed_ms * 1e-3);
    operation->ended = true;
    changed_.notify_all();
  }
  // Events of an operation are used again once nobody's stream has yet to come to them.
  while (!operations_.empty() && operations_.front()->ended) {
    Enqueued& first = *operations_.front();
    const bool waited = std::all_of(first.waits.begin(), first.waits.end(),
                                    [&](const auto& wait) { return passed(wait.second); });
    if (!waited) break;
    for (const auto& [before, after] : first.waits) {
      float elapsed_ms = 0;
      (void)library_.event_elapsed(&elapsed_ms, before, after);
      account().AddExposed(first.kind, elapsed_ms * 1e-3);
    }
    Recycle(first);
    operations_.pop_front();
  }
}

void NcclCollective::Watch() {
  std::unique_lock lock(mutex_);
  (void)library_.set_device(device().index);
  std::optional<steady_clock::time_point> failing_since;
  while (failure_.ok()) {
    changed_.wait(lock, [this] { return closing_ || !failure_.ok() || !operations_.empty(); });
    if (!failure_.ok()) return;
    Harvest();
    const auto in_flight = std::find_if(operations_.begin(), operations_.end(),
                                        [](const Operation& each) { return !each->ended; });
    if (in_flight == operations_.end() && closing_) return;
    // NCCL may not notice that a peer on the same machine is gone, and does not say which one is.
    if (Status health = host_->Health(); in_flight != operations_.end() && !health.ok()) {
      Fail(UnavailableError(Where((*in_flight)->label) + ": " + health.message()));
      return;
    }
    int error = N::kSuccess;
    if (library_.comm_get_async_error(comm_, &error) == 0 && error != N::kSuccess &&
        error != N::kInProgress) {
      if (!failing_since) failing_since = steady_clock::now();
      if (steady_clock::now() - *failing_since < kNaming) {
        changed_.wait_for(lock, kWatch, [this] { return !failure_.ok(); });
        continue;
      }
      Fail(UnavailableError(Where("any operation") +
                            ": a peer is lost: " + library_.get_error_string(error)));
      return;
    }
    if (in_flight != operations_.end() && (*in_flight)->begun &&
        steady_clock::now() - *(*in_flight)->begun > options_.timeout) {
      Fail(UnavailableError(Where((*in_flight)->label) + ": a peer is silent for more than " +
                            std::to_string(options_.timeout.count()) + " ms"));
      return;
    }
    changed_.wait_for(lock, kWatch, [this] { return !failure_.ok(); });
  }
}

Result<std::unique_ptr<Collective>> NcclCollective::Split(int64_t color, const std::string& name) {
  const std::string own(reinterpret_cast<const char*>(&color), sizeof color);
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> colors, AllGather(own));
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Collective> host, host_->Split(color, name));
  const std::set<std::string> distinct(colors.begin(), colors.end());
  const bool alone = host->size() == 1;
  const int number =
      alone ? N::kNoColor : static_cast<int>(std::distance(distinct.begin(), distinct.find(own)));
  const int key = rank();
  auto group = std::make_unique<NcclCollective>(library_, options_, std::move(host));
  std::unique_lock lock(mutex_);
  if (!failure_.ok()) return failure_;
  N::Comm child = nullptr;
  N::Config config = N::kNonBlocking;
  const int outcome = library_.comm_split(comm_, number, key, &child, &config);
  WEFT_RETURN_IF_ERROR(Settle(lock, "splitting", outcome, options_.connect_timeout));
  if (alone) return NewLocalCollective(device(), name, members()[static_cast<size_t>(key)]);
  WEFT_RETURN_IF_ERROR(group->Open([child](N::Comm* comm) {
    *comm = child;
    return N::kInProgress;
  }));
  return std::unique_ptr<Collective>(std::move(group));
}

}  // namespace

Result<std::unique_ptr<Collective>> ConnectNccl(const NcclLibrary& library,
                                                const CollectiveOptions& options, Store& store,
                                                std::unique_ptr<Collective> host) {
  constexpr const char* kKey = "nccl unique id";
  N::UniqueId id;
  if (host->rank() == 0) {
    if (const int outcome = library.get_unique_id(&id); outcome != N::kSuccess) {
      return UnavailableError(std::string("making NCCL's unique id: ") +
                              library.get_error_string(outcome));
    }
    WEFT_RETURN_IF_ERROR(store.Set(kKey, {id.bytes, sizeof id.bytes}));
  } else {
    WEFT_ASSIGN_OR_RETURN(const std::string bytes, store.Get(kKey, options.connect_timeout));
    if (bytes.size() != sizeof id.bytes) {
      return InternalError("the rendezvous has " + std::to_string(bytes.size()) +
                           " bytes where NCCL's unique id should be");
    }
    std::memcpy(id.bytes, bytes.data(), sizeof id.bytes);
  }
  const int rank = host->rank();
  const int size = host->size();
  auto group = std::make_unique<NcclCollective>(library, options, std::move(host));
  WEFT_RETURN_IF_ERROR(group->Open([&](N::Comm* comm) {
    N::Config config = N::kNonBlocking;
    return library.comm_init_rank_config(comm, size, id, rank, &config);
  }));
  return std::unique_ptr<Collective>(std::move(group));
}

}  // namespace weft::engine
