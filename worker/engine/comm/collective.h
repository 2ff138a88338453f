#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "kernels/tensor_view.h"
#include "worker/engine/comm/collective_account.h"
#include "worker/engine/comm/store.h"
#include "worker/engine/comm/work.h"

namespace weft::engine {

/// How the values of the ranks become one.
enum class Reduction : uint8_t {
  kSum,
  kMax,
  kMaxMagnitude,  ///< Of f32 numbers that are not negative: a NaN is larger than all.
};

/// Elements that go to, or come from, `peer`. A rank may send to itself.
struct Transfer {
  TensorView values;
  int peer = 0;
};

/// An operation with its arguments, as the back ends get it: checked.
struct CollectiveCall {
  CollectiveKind kind = CollectiveKind::kAllReduce;
  std::string_view label;
  Reduction reduction = Reduction::kSum;
  TensorView input = {};
  TensorView output = {};               ///< Same as the input where the operation works in place.
  int root = 0;                         ///< Of a broadcast.
  std::vector<Transfer> sends = {};     ///< Of kExchange and kAllToAll.
  std::vector<Transfer> receives = {};  ///< In the order in which the peer sends.
  double bytes = 0, sent_bytes = 0;     ///< For the account.
};

/// Operations that all ranks of a group do together.
///
/// **Tensors.** Contiguous, on the device of the group, of any type; reductions of f32, bf16 and
/// f16. Shapes do not matter, numbers of elements do. Each operation is enqueued behind those
/// before it and overlaps with the caller: on a CPU on a thread of the group, on a CUDA device on a
/// stream of the group. It begins after what `stream` was given before the call, and whoever uses
/// its results waits for the Work. Every rank calls the same operations with the same sizes in the
/// same order; messages between two ranks concern those two only. One thread at a time. A call that
/// is wrong in itself gives a Work that answers kInvalid, and does nothing.
///
/// **Reductions** have the same bits on every rank, and the same each time. On a CPU they depend on
/// the values alone: those of each element are added in f32 in a binary tree over the ranks
/// (pairwise_reduce.h), and rounded once to the type of the tensor; a maximum is NaN when a rank
/// has one. NCCL adds bf16 and f16 in f32 too, but in an order of its own, which the number of
/// elements and the machines fix, and its maxima (kMax) leave out what is NaN.
///
/// **Failures.** When a peer dies, falls silent for longer than the timeout, or aborts, the
/// operation under way answers kUnavailable, and so do all later ones: the group is broken for good
/// and the attempt has to be started again. Nothing waits forever. A peer that dies or aborts is
/// noticed at once, by its connections, and named; one whose machine is gone, by the timeout.
class Collective {
 public:
  virtual ~Collective() = default;
  Collective(const Collective&) = delete;
  Collective& operator=(const Collective&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  const Device& device() const { return device_; }
  /// Which ranks of a mesh these are, for people: "world", "data", ...
  const std::string& name() const { return name_; }
  /// Which of all ranks these are, by their rank here. Errors name ranks by these numbers.
  const std::vector<int>& members() const { return members_; }

  /// In place: `values` of every rank become their reduction. `label`: a string literal that
  /// profiles show.
  Work AllReduce(const Stream& stream, const TensorView& values,
                 Reduction reduction = Reduction::kSum, std::string_view label = {});

  /// `input` has size() parts of equal length; the reduction of the parts of number rank() goes to
  /// `output`, which may be that part of the input.
  Work ReduceScatter(const Stream& stream, const TensorView& input, const TensorView& output,
                     Reduction reduction = Reduction::kSum, std::string_view label = {});

  /// The inputs of all ranks one behind the other, by rank. `input` may be part rank() of `output`.
  Work AllGather(const Stream& stream, const TensorView& input, const TensorView& output,
                 std::string_view label = {});

  /// Overwrites `values` on every rank with those of `root`.
  Work Broadcast(const Stream& stream, const TensorView& values, int root,
                 std::string_view label = {});

  Work Send(const Stream& stream, const TensorView& values, int peer, std::string_view label = {});
  Work Receive(const Stream& stream, const TensorView& values, int peer,
               std::string_view label = {});

  /// Opens the channel of messages from rank `from` to rank `to`: all ranks may call it, and those
  /// two have to. Over NCCL the first message between two ranks holds the host until both have come
  /// to it: whoever asks for messages before their sender comes opens their channel first. Returns
  /// when done.
  virtual Status OpenChannel([[maybe_unused]] int from, [[maybe_unused]] int to) {
    return OkStatus();
  }

  /// All of these at once, so that ranks that send to each other do not wait in a circle. Between
  /// two ranks messages arrive in the order in which they are sent, over all calls.
  Work Exchange(const Stream& stream, std::vector<Transfer> sends, std::vector<Transfer> receives,
                std::string_view label = {});

  /// Part p of `input` goes to rank p, and what rank p has for this one becomes part p of `output`.
  Work AllToAll(const Stream& stream, const TensorView& input, const TensorView& output,
                std::string_view label = {});

  /// The same with parts of `send_counts[p]` and `receive_counts[p]` elements, one behind the
  /// other.
  Work AllToAll(const Stream& stream, const TensorView& input, std::span<const int64_t> send_counts,
                const TensorView& output, std::span<const int64_t> receive_counts,
                std::string_view label = {});

  /// Bytes of the host, of every rank, by rank; lengths may differ. Returns when done, as the two
  /// below, which take their turn with the tensors' operations on a CPU and are free of them on a
  /// CUDA device.
  virtual Result<std::vector<std::string>> AllGather(std::string_view bytes) = 0;

  /// Overwrites `bytes` of the host on every rank with those of `root`.
  virtual Status Broadcast(std::span<std::byte> bytes, int root) = 0;

  /// Returns once every rank has called it.
  virtual Status Barrier() = 0;

  /// Makes groups of the ranks that give the same `color`, ordered as here, and returns the
  /// caller's one. All ranks call it. A group of one costs nothing. Neither group uses the other
  /// afterwards, but the Store must outlive both.
  virtual Result<std::unique_ptr<Collective>> Split(int64_t color, const std::string& name) = 0;

  /// kUnavailable once the group is known to be broken, which a lost peer's connection shows at any
  /// time. Asks nobody; from any thread.
  virtual Status Health() { return OkStatus(); }

  /// Leaves the group: cuts the connections, so that the peers fail at once instead of waiting.
  /// Operations under way here fail. From any thread.
  virtual void Abort() = 0;

  /// Bytes of the host that the group keeps for its reductions, which no Allocator gave it. From
  /// any thread.
  virtual int64_t held_bytes() const { return 0; }

  /// What this rank has done in this group so far.
  CollectiveAccount& account() { return *account_; }

 protected:
  Collective(int rank, int size, Device device, std::string name, std::vector<int> members)
      : rank_(rank),
        size_(size),
        device_(device),
        name_(std::move(name)),
        members_(std::move(members)) {}

  /// "rank 5 (data)": the ranks that an error concerns.
  std::string Who() const {
    return "rank " + std::to_string(members_[static_cast<size_t>(rank_)]) + " (" + name_ + ")";
  }

  /// Enqueues a checked operation.
  virtual Work Start(const Stream& stream, CollectiveCall call) = 0;

  const std::shared_ptr<CollectiveAccount>& shared_account() const { return account_; }

 private:
  Work StartChecked(const Stream& stream, CollectiveCall call);

  const int rank_;
  const int size_;
  const Device device_;
  const std::string name_;
  std::shared_ptr<CollectiveAccount> account_ = std::make_shared<CollectiveAccount>(name_);
  const std::vector<int> members_;
};

/// What a rank needs to join its group.
struct CollectiveOptions {
  int rank = 0;
  int size = 1;
  std::string host = "127.0.0.1";  ///< Address of this machine that the peers can reach.

  /// How long joining may take: peers may still be preparing their data.
  std::chrono::milliseconds connect_timeout = std::chrono::minutes(30);

  /// Asked now and then while ranks connect over Gloo: an error ends that. Empty: they wait till
  /// the time is over.
  std::function<Status()> still_wanted;

  /// How long an operation waits for its peers before it takes them for lost.
  std::chrono::milliseconds timeout = std::chrono::minutes(2);

  /// Where the tensors are.
  Device device = {};
};

/// Joins the group of `options.size` ranks that share `store`, which outlives the group: Gloo over
/// TCP on CPUs, NCCL on CUDA devices with Gloo for the host, or nothing at all for a
/// single rank. kUnavailable when the peers do not come or there is no NCCL, kInvalid when the host
/// is not ours, or when some ranks have a GPU and others none, or two ranks the same one.
Result<std::unique_ptr<Collective>> ConnectCollective(const CollectiveOptions& options,
                                                      Store& store);

}  // namespace weft::engine
