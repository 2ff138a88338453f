#include "tests/gpu/host/fake_nccl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/dtype.h"
#include "tests/gpu/host/device_memory.h"
#include "tests/gpu/host/streams.h"
#include "worker/engine/comm/pairwise_reduce.h"

namespace {

/// One lock for everything. Never destroyed: operations wait for it until the process has ended.
std::mutex& mutex = *new std::mutex;

/// What one rank brings to an operation of all.
struct Arrival {
  const void* in = nullptr;
  void* out = nullptr;
  uint64_t recorded = 0;  ///< Which recorded operation of the communicator this is, from 1.
};
struct Meeting {
  std::map<int, Arrival> arrivals;
  bool done = false;
};
/// What the communicators of one group share.
struct World {
  int size = 0;
  int joined = 0;
  std::map<uint64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::string>> messages;  ///< By sender and receiver.
  std::set<std::pair<int, int>> sends, receives;                    ///< Called for once, likewise.
  struct Splitting {
    std::map<int, std::pair<int, ncclComm*>> ranks;  ///< Color and child, by rank.
  };
  std::map<uint64_t, Splitting> splittings;
  std::vector<ncclComm*> members;
  std::condition_variable changed;  ///< What its ranks wait for in operations.
};

int open_comms = 0;
bool ranks_elsewhere = false;
std::map<int, weft::engine::FakeFault> faults;

}  // namespace

struct ncclComm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  uint64_t meetings = 0;    ///< That it has come to.
  uint64_t recordings = 0;  ///< Called for.
  uint64_t splittings = 0;
  bool ready = false;
  std::set<std::pair<int, int>> connecting;  ///< Ways on which the peer has not called yet.
  bool aborted = false;
  int error = 0;
  std::atomic<int> recorded{0};  ///< Operations that graphs have.
};

namespace weft::engine {
namespace {

using N = NcclLibrary;
// Error numbers of CUDA and of NCCL.
constexpr int kInvalidValue = 1;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidHandle = 400;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
using Lock = std::unique_lock<std::mutex>;
namespace host = host_cuda;

/// Communicators that are aborted stay, for what still waits for them.
std::deque<ncclComm>& Comms() {
  static auto* comms = new std::deque<ncclComm>;
  return *comms;
}

DType TypeOf(int type) {
  return type == N::kFloat32                       ? DType::kF32
         : type == N::kBFloat16                    ? DType::kBF16
         : type == N::kFloat16                     ? DType::kF16
         : type == N::kInt32 || type == N::kUint32 ? DType::kI32
                                                   : DType::kU8;
}

int GetUniqueId(N::UniqueId* id) {
  static int next = 0;
  std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof id->bytes);
  std::memcpy(id->bytes, &++next, sizeof next);
  return N::kSuccess;
}

bool Wrong(const N::Config& config) {
  return config.size != sizeof(N::Config) || config.magic != 0xcafebeef || config.blocking != 0;
}

void Join(ncclComm* comm) {
  World& world = *comm->world;
  world.members.push_back(comm);
  comm->ready = ranks_elsewhere;
  if (++world.joined == world.size) {
    for (ncclComm* member : world.members) member->ready = true;
  }
}

int CommInitRankConfig(N::Comm* comm, int ranks, N::UniqueId id, int rank, N::Config* config) {
  static auto* worlds = new std::map<std::string, std::shared_ptr<World>>;
  std::lock_guard lock(mutex);
  if (Wrong(*config) || rank < 0 || rank >= ranks) return kInvalidArgument;
  std::shared_ptr<World>& world = (*worlds)[std::string(id.bytes, sizeof id.bytes)];
  if (world == nullptr) world = std::make_shared<World>();
  world->size = ranks;
  ++open_comms;
  *comm = &Comms().emplace_back();
  (*comm)->world = world;
  (*comm)->rank = rank;
  (*comm)->device = host::CurrentDevice();
  Join(*comm);
  return N::kInProgress;
}

int CommSplit(N::Comm comm, int color, int key, N::Comm* child, N::Config* config) {
  std::lock_guard lock(mutex);
  if (Wrong(*config) || key != comm->rank) return kInvalidArgument;
  *child = nullptr;
  if (color != N::kNoColor) {
    ++open_comms;
    *child = &Comms().emplace_back();
    (*child)->device = comm->device;
  }
  const uint64_t number = comm->splittings++;
  World::Splitting& splitting = comm->world->splittings[number];
  splitting.ranks[comm->rank] = {color, *child};
  comm->ready = false;
  if (static_cast<int>(splitting.ranks.size()) < comm->world->size) return N::kInProgress;
  std::map<int, std::shared_ptr<World>> worlds;
  for (auto& [rank, choice] : splitting.ranks) {
    if (choice.first == N::kNoColor) continue;
    std::shared_ptr<World>& world = worlds[choice.first];
    if (world == nullptr) world = std::make_shared<World>();
    choice.second->world = world;
    choice.second->rank = world->size++;
  }
  for (auto& [rank, choice] : splitting.ranks) {
    if (choice.second != nullptr) Join(choice.second);
  }
  for (ncclComm* member : comm->world->members) member->ready = true;
  return N::kInProgress;
}

int CommGetAsyncError(N::Comm comm, int* error) {
  std::lock_guard lock(mutex);
  if (comm->world != nullptr) {
    std::erase_if(comm->connecting, [&](const std::pair<int, int>& way) {
      return ranks_elsewhere ||
             (comm->world->sends.contains(way) && comm->world->receives.contains(way));
    });
  }
  const bool ready = comm->ready && comm->connecting.empty();
  *error = comm->error != 0 ? comm->error : ready ? N::kSuccess : N::kInProgress;
  return N::kSuccess;
}

int CommFinalize(N::Comm) {
  return N::kSuccess;
}

void WaitForGraphs(Lock& lock, ncclComm* comm) {
  while (comm->recorded > 0) comm->world->changed.wait_for(lock, std::chrono::milliseconds(1));
}

int CommDestroy(N::Comm comm) {
  Lock lock(mutex);
  WaitForGraphs(lock, comm);
  --open_comms;
  return N::kSuccess;
}

int CommAbort(N::Comm comm) {
  Lock lock(mutex);
  comm->aborted = true;
  if (comm->world != nullptr) {
    for (ncclComm* member : comm->world->members) {
      if (member != comm && member->error == 0) member->error = N::kRemoteError;
    }
    comm->world->changed.notify_all();
  }
  WaitForGraphs(lock, comm);
  --open_comms;
  return N::kSuccess;
}

const char* GetErrorString(int outcome) {
  return outcome == N::kRemoteError ? "remote process exited or there was a network error"
                                    : "some error";
}

/// Waits, as an operation that has begun, until `condition` holds; false when the group breaks.
bool WaitWithin(Lock& lock, ncclComm* comm, const std::function<bool()>& condition) {
  std::optional<FakeFault> fault;
  if (const auto found = faults.find(comm->rank); found != faults.end()) {
    fault = found->second;
    faults.erase(found);
  }
  if (fault == FakeFault::kError) comm->error = N::kRemoteError;
  comm->world->changed.wait(lock, [&] { return comm->aborted || (!fault && condition()); });
  return !comm->aborted;
}

/// What a graph has of a communicator, in all copies of the graph.
struct InGraph {
  explicit InGraph(ncclComm* its_comm) : comm(its_comm) { ++comm->recorded; }
  ~InGraph() { --comm->recorded; }
  ncclComm* comm;
};

void Enqueue(ncclComm* comm, N::Stream stream, std::function<void(Lock&)> work) {
  const auto in_graph =
      host::IsCaptured(stream) ? std::make_shared<InGraph>(comm) : std::shared_ptr<InGraph>();
  (void)host::Enqueue(stream, [work = std::move(work), in_graph]() -> std::string {
    Lock lock(mutex);
    work(lock);
    return "";
  });
}

/// Enqueues an operation at which all ranks meet; `finish` makes all outputs.
int Meet(ncclComm* comm, N::Stream stream, Arrival own,
         std::function<void(std::map<int, Arrival>&)> finish) {
  if (stream->device != comm->device) return kInvalidArgument;
  if (host::IsCaptured(stream)) own.recorded = ++comm->recordings;
  Enqueue(comm, stream, [=, finish = std::move(finish)](Lock& held) {
    Meeting& meeting = comm->world->meetings[comm->meetings++];
    const auto arrive = [&] {
      meeting.arrivals[comm->rank] = own;
      if (static_cast<int>(meeting.arrivals.size()) == comm->world->size && !meeting.done) {
        for (const auto& [rank, arrival] : meeting.arrivals) {
          if (arrival.recorded != own.recorded) comm->error = kInvalidUsage;
        }
        if (comm->error != 0) return false;
        finish(meeting.arrivals);
        meeting.done = true;
        comm->world->changed.notify_all();
      }
      return meeting.done;
    };
    (void)WaitWithin(held, comm, arrive);
  });
  return N::kSuccess;
}

template <class T>
void TakeLarger(char* result, const char* values, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, result + i * sizeof(T), sizeof(T));
    std::memcpy(&b, values + i * sizeof(T), sizeof(T));
    if constexpr (std::is_integral_v<T>) {
      a = std::max(a, b);
    } else {
      a = FromFloat<T>(std::fmax(ToFloat(a), ToFloat(b)));
    }
    std::memcpy(result + i * sizeof(T), &a, sizeof(T));
  }
}

/// The reduction of elements [begin, begin + count) of all inputs. A maximum of floating-point
/// numbers leaves out what is none, as fmax does.
std::string Reduce(std::map<int, Arrival>& arrivals, int type, int op, size_t begin, size_t count) {
  const size_t width = DTypeSize(TypeOf(type));
  std::vector<const void*> inputs;
  for (auto arrival = arrivals.rbegin(); arrival != arrivals.rend(); ++arrival) {
    inputs.push_back(static_cast<const char*>(arrival->second.in) + begin * width);
  }
  std::string result(count * width, '\0');
  if (op == N::kSum) {
    ReducePairwise(TypeOf(type), Reduction::kSum, inputs, result.data(),
                   static_cast<int64_t>(count));
    return result;
  }
  std::memcpy(result.data(), inputs[0], result.size());
  for (const void* input : inputs) {
    const auto* values = static_cast<const char*>(input);
    if (type == N::kUint32) {
      TakeLarger<uint32_t>(result.data(), values, count);
    } else {
      WithFloatType(TypeOf(type), [&]<class T>() { TakeLarger<T>(result.data(), values, count); });
    }
  }
  return result;
}

int AllReduce(const void* in, void* out, size_t count, int type, int op, N::Comm comm,
              N::Stream stream) {
  return Meet(comm, stream, {in, out}, [=](std::map<int, Arrival>& arrivals) {
    const std::string result = Reduce(arrivals, type, op, 0, count);
    for (auto& [rank, arrival] : arrivals) {
      std::memcpy(arrival.out, result.data(), result.size());
    }
  });
}

int ReduceScatter(const void* in, void* out, size_t count, int type, int op, N::Comm comm,
                  N::Stream stream) {
  return Meet(comm, stream, {in, out}, [=](std::map<int, Arrival>& arrivals) {
    std::vector<std::string> results;
    for (const auto& [rank, arrival] : arrivals) {
      results.push_back(Reduce(arrivals, type, op, static_cast<size_t>(rank) * count, count));
    }
    for (auto& [rank, arrival] : arrivals) {
      const std::string& result = results[static_cast<size_t>(rank)];
      std::memcpy(arrival.out, result.data(), result.size());
    }
  });
}

int AllGather(const void* in, void* out, size_t count, int type, N::Comm comm, N::Stream stream) {
  return Meet(comm, stream, {in, out}, [=](std::map<int, Arrival>& arrivals) {
    std::string all;
    for (const auto& [rank, arrival] : arrivals) {
      all.append(static_cast<const char*>(arrival.in), count * DTypeSize(TypeOf(type)));
    }
    for (auto& [rank, arrival] : arrivals) std::memcpy(arrival.out, all.data(), all.size());
  });
}

int Broadcast(const void* in, void* out, size_t count, int type, int root, N::Comm comm,
              N::Stream stream) {
  return Meet(comm, stream, {in, out}, [=](std::map<int, Arrival>& arrivals) {
    for (auto& [rank, arrival] : arrivals) {
      std::memmove(arrival.out, arrivals[root].in, count * DTypeSize(TypeOf(type)));
    }
  });
}

/// Sends and receives between the calls that group them, of this thread.
struct Message {
  bool sends = false;
  void* data = nullptr;
  size_t bytes = 0;
  int peer = 0;
  ncclComm* comm = nullptr;
  CUstream_st* stream = nullptr;
};
thread_local std::optional<std::vector<Message>> group;

/// As NCCL does: two ranks connect when both have called for a message between them, and until then
/// whoever has is in progress.
int Connect(const std::vector<Message>& messages) {
  std::lock_guard lock(mutex);
  for (const auto& [sends, data, bytes, peer, comm, stream] : messages) {
    const auto way = sends ? std::pair(comm->rank, peer) : std::pair(peer, comm->rank);
    if ((sends ? comm->world->sends : comm->world->receives).insert(way).second) {
      comm->connecting.insert(way);
    }
  }
  return N::kInProgress;
}

int Run(std::vector<Message> messages) {
  if (messages.empty()) return N::kSuccess;
  Enqueue(messages[0].comm, messages[0].stream, [messages](Lock& held) {
    for (const Message& message : messages) {
      if (!message.sends) continue;
      const auto nothing = [] { return true; };
      if (!WaitWithin(held, message.comm, nothing)) return;
      message.comm->world->messages[{message.comm->rank, message.peer}].emplace_back(
          static_cast<const char*>(message.data), message.bytes);
      message.comm->world->changed.notify_all();
    }
    for (const Message& message : messages) {
      if (message.sends) continue;
      auto& queue = message.comm->world->messages[{message.peer, message.comm->rank}];
      if (!WaitWithin(held, message.comm, [&] { return !queue.empty(); })) return;
      std::memcpy(message.data, queue.front().data(), message.bytes);
      queue.pop_front();
    }
  });
  return Connect(messages);
}

int Add(const Message& message) {
  if (!group) return Run({message});
  group->push_back(message);
  return N::kSuccess;
}

int Send(const void* in, size_t count, int type, int peer, N::Comm comm, N::Stream stream) {
  return Add({true, const_cast<void*>(in), count * DTypeSize(TypeOf(type)), peer, comm, stream});
}

int Receive(void* out, size_t count, int type, int peer, N::Comm comm, N::Stream stream) {
  return Add({false, out, count * DTypeSize(TypeOf(type)), peer, comm, stream});
}

int GroupStart() {
  group.emplace();
  return N::kSuccess;
}

int GroupEnd() {
  std::vector<Message> messages = std::move(*group);
  group.reset();
  return Run(std::move(messages));
}

int SetDevice(int device) {
  return host::SetCurrentDevice(device) ? 0 : kInvalidDevice;
}

int DeviceBusId(char* text, int length, int device) {
  (void)std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device);
  return 0;
}

int StreamCreate(N::Stream* stream, unsigned flags) {
  if (flags != N::kStreamNonBlocking) return kInvalidValue;
  *stream = host::NewStream(true);
  return 0;
}

int StreamDestroy(N::Stream stream) {
  host::EndStream(stream);
  return 0;
}

int StreamWaitEvent(N::Stream stream, N::Event event, unsigned) {
  return host::WaitForEvent(stream, event).empty() ? 0 : kInvalidHandle;
}

int EventCreate(N::Event* event, unsigned) {
  *event = host::NewEvent();
  return 0;
}

int EventDestroy(N::Event event) {
  delete event;
  return 0;
}

int EventRecordWithFlags(N::Event event, N::Stream stream, unsigned flags) {
  if (event->device != stream->device) return kInvalidHandle;
  const bool external = flags == N::kEventRecordExternal;
  return host::RecordEvent(event, stream, external).empty() ? 0 : kInvalidHandle;
}

int EventQuery(N::Event event) {
  if (!host::RefuseInCapture("an event is queried").empty()) return kInvalidHandle;
  return host::HasPassed(event) ? 0 : N::kCudaNotReady;
}

int EventElapsed(float* milliseconds, N::Event from, N::Event to) {
  *milliseconds = host::MillisecondsBetween(from, to);
  return 0;
}

}  // namespace

const NcclLibrary& FakeNccl() {
  static const NcclLibrary library = {.get_unique_id = GetUniqueId,
                                      .comm_init_rank_config = CommInitRankConfig,
                                      .comm_split = CommSplit,
                                      .comm_get_async_error = CommGetAsyncError,
                                      .comm_finalize = CommFinalize,
                                      .comm_destroy = CommDestroy,
                                      .comm_abort = CommAbort,
                                      .get_error_string = GetErrorString,
                                      .all_reduce = AllReduce,
                                      .reduce_scatter = ReduceScatter,
                                      .all_gather = AllGather,
                                      .broadcast = Broadcast,
                                      .send = Send,
                                      .receive = Receive,
                                      .group_start = GroupStart,
                                      .group_end = GroupEnd,
                                      .set_device = SetDevice,
                                      .device_bus_id = DeviceBusId,
                                      .stream_create = StreamCreate,
                                      .stream_destroy = StreamDestroy,
                                      .stream_wait_event = StreamWaitEvent,
                                      .event_create = EventCreate,
                                      .event_destroy = EventDestroy,
                                      .event_record = EventRecordWithFlags,
                                      .event_query = EventQuery,
                                      .event_elapsed = EventElapsed};
  return library;
}

void BreakFakeRank(int rank, FakeFault fault) {
  std::lock_guard lock(mutex);
  faults[rank] = fault;
}

void ExpectFakeRanksElsewhere(bool elsewhere) {
  std::lock_guard lock(mutex);
  ranks_elsewhere = elsewhere;
}

int OpenFakeComms() {
  std::lock_guard lock(mutex);
  return open_comms;
}

}  // namespace weft::engine
