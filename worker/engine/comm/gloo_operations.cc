#include "worker/engine/comm/gloo_operations.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <new>

#include "common/model/reduction_staging.h"
#include "worker/engine/comm/local_collective.h"
#include "worker/engine/comm/pairwise_reduce.h"

namespace weft::engine {
namespace {

/// Longest message: a peer lost in the middle of a large tensor is noticed within one, and one, not
/// the tensor, is what the timeout covers.
constexpr int64_t kMessageBytes = int64_t{4} << 20;

/// Up to here the number of messages counts, not that of bytes.
constexpr int64_t kSmallBytes = 64 << 10;

/// What messages are, for their tags.
enum Message : uint64_t {
  kWhole,
  kAddends,
  kSums,
  kGathered,
  kScattered,
  kBroadcast,
  kTransposed,
  kLengths,
  kBytes,
  kBarrier,
};

/// [begin, end) of a tensor, in elements or bytes.
struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t length() const { return end - begin; }
};

/// What part `rank` of `ranks` is of [0, count): equal parts where that works out.
Range Part(int64_t count, int rank, int ranks) {
  return {count * rank / ranks, count * (rank + 1) / ranks};
}

Range Piece(const Range& part, int64_t piece, int64_t length) {
  return {std::min(part.begin + piece * length, part.end),
          std::min(part.begin + (piece + 1) * length, part.end)};
}

void SendInMessages(GlooLink::Buffer& buffer, int peer, uint64_t tag, const Range& bytes) {
  for (int64_t at = bytes.begin; at < bytes.end; at += kMessageBytes) {
    buffer.Send(peer, tag, static_cast<size_t>(at),
                static_cast<size_t>(std::min(kMessageBytes, bytes.end - at)));
  }
}

void ReceiveInMessages(GlooLink::Buffer& buffer, int peer, uint64_t tag, const Range& bytes) {
  for (int64_t at = bytes.begin; at < bytes.end; at += kMessageBytes) {
    buffer.Receive(peer, tag, static_cast<size_t>(at),
                   static_cast<size_t>(std::min(kMessageBytes, bytes.end - at)));
  }
}

}  // namespace

char* GlooOperations::Staging(size_t bytes) {
  if (bytes > staging_bytes_) {
    staging_ = kernels::cpu::AllocateAligned(bytes);
    staging_bytes_ = staging_ != nullptr ? bytes : 0;
    if (staging_ == nullptr) throw std::bad_alloc();
  }
  return static_cast<char*>(staging_.get());
}

void GlooOperations::Run(const CollectiveCall& call) {
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      if (static_cast<int64_t>(call.input.Bytes()) * (size_ - 1) <= kSmallBytes) {
        return AllReduceAtOnce(call);
      }
      return ReduceParts(call);
    case CollectiveKind::kReduceScatter:
      return ReduceParts(call);
    case CollectiveKind::kAllGather:
      return GatherParts(call);
    case CollectiveKind::kBroadcast:
      return Broadcast(call.output.data, static_cast<int64_t>(call.output.Bytes()), call.root);
    case CollectiveKind::kExchange:
    case CollectiveKind::kAllToAll:
      return Exchange(call);
    case CollectiveKind::kControl:
      break;
  }
}

// Everybody sends everything to everybody: one message's time instead of two.
void GlooOperations::AllReduceAtOnce(const CollectiveCall& call) {
  const size_t bytes = call.input.Bytes();
  const uint64_t tag = link_.NewTag(kWhole, bytes);
  char* const staging = Staging(bytes * static_cast<size_t>(size_));
  GlooLink::Buffer received(link_, staging, bytes * static_cast<size_t>(size_));
  GlooLink::Buffer own(link_, call.input.data, bytes);
  std::vector<const void*> inputs(static_cast<size_t>(size_), call.input.data);
  for (int step = 1; step < size_; ++step) {
    const int peer = Peer(step);
    const size_t offset = static_cast<size_t>(peer) * bytes;
    inputs[static_cast<size_t>(peer)] = staging + offset;
    received.Receive(peer, tag, offset, bytes);
    own.Send(peer, tag, 0, bytes);
  }
  received.WaitReceived();
  own.WaitSent();
  ReducePairwise(call.input.dtype, call.reduction, inputs, call.input.data,
                 call.input.shape.Elements());
}

// An all-reduce sends the reduced pieces straight back to the peers, into the places from which
// their shares of the sum came: those have left, or the sum would not be there.
void GlooOperations::ReduceParts(const CollectiveCall& call) {
  const bool gather = call.kind == CollectiveKind::kAllReduce;
  const auto width = static_cast<int64_t>(DTypeSize(call.input.dtype));
  const int64_t count = call.input.shape.Elements();
  const int64_t length = ReducedPieceBytes(size_) / width;
  const int64_t pieces = ((count + size_ - 1) / size_ + length - 1) / length;
  const uint64_t tag = link_.NewTag(kAddends, call.input.Bytes());
  const uint64_t gather_tag = link_.NewTag(kSums, call.input.Bytes());
  const auto piece_of = [&](int rank, int64_t piece) {
    const Range range = Piece(Part(count, rank, size_), piece, length);
    return Range{range.begin * width, range.end * width};
  };

  // Each half holds a piece of every peer.
  const int64_t half = length * width * (size_ - 1);
  char* const staging = Staging(static_cast<size_t>(2 * half));
  std::deque<GlooLink::Buffer> received;
  received.emplace_back(link_, staging, static_cast<size_t>(half));
  received.emplace_back(link_, staging + half, static_cast<size_t>(half));
  GlooLink::Buffer whole(link_, call.input.data, call.input.Bytes());

  const auto start = [&](int64_t piece) {
    const Range own = piece_of(rank_, piece);
    for (int step = 1; step < size_; ++step) {
      const int peer = Peer(step);
      const Range theirs = piece_of(peer, piece);
      received[static_cast<size_t>(piece % 2)].Receive(
          peer, tag, static_cast<size_t>((step - 1) * length * width),
          static_cast<size_t>(own.length()));
      if (gather) {
        whole.Receive(peer, gather_tag, static_cast<size_t>(theirs.begin),
                      static_cast<size_t>(theirs.length()));
      }
      whole.Send(peer, tag, static_cast<size_t>(theirs.begin),
                 static_cast<size_t>(theirs.length()));
    }
  };

  const Range part = Part(count, rank_, size_);
  auto* const input = static_cast<char*>(call.input.data);
  char* const result = gather ? input : static_cast<char*>(call.output.data) - part.begin * width;
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  if (pieces > 0) start(0);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    if (piece + 1 < pieces) start(piece + 1);
    const Range own = piece_of(rank_, piece);
    received[static_cast<size_t>(piece % 2)].WaitReceived();
    if (own.length() == 0) continue;
    inputs[static_cast<size_t>(rank_)] = input + own.begin;
    for (int step = 1; step < size_; ++step) {
      inputs[static_cast<size_t>(Peer(step))] =
          staging + piece % 2 * half + (step - 1) * length * width;
    }
    ReducePairwise(call.input.dtype, call.reduction, inputs, result + own.begin,
                   own.length() / width);
    for (int step = 1; gather && step < size_; ++step) {
      whole.Send(Peer(step), gather_tag, static_cast<size_t>(own.begin),
                 static_cast<size_t>(own.length()));
    }
  }
  whole.WaitReceived();
  whole.WaitSent();
}

void GlooOperations::GatherParts(const CollectiveCall& call) {
  const auto bytes = static_cast<int64_t>(call.input.Bytes());
  const uint64_t tag = link_.NewTag(kGathered, call.input.Bytes());
  GlooLink::Buffer input(link_, call.input.data, call.input.Bytes());
  GlooLink::Buffer output(link_, call.output.data, call.output.Bytes());
  for (int step = 1; step < size_; ++step) {
    const int from = Peer(size_ - step);
    ReceiveInMessages(output, from, tag, {from * bytes, (from + 1) * bytes});
    SendInMessages(input, Peer(step), tag, {0, bytes});
  }
  char* const own = static_cast<char*>(call.output.data) + rank_ * bytes;
  if (own != call.input.data && bytes > 0) {
    std::memcpy(own, call.input.data, static_cast<size_t>(bytes));
  }
  output.WaitReceived();
  input.WaitSent();
}

void GlooOperations::Broadcast(void* data, int64_t bytes, int root) {
  const uint64_t scatter_tag = link_.NewTag(kScattered, static_cast<size_t>(bytes));
  const uint64_t tag = link_.NewTag(kBroadcast, static_cast<size_t>(bytes));
  GlooLink::Buffer whole(link_, data, static_cast<size_t>(bytes));
  const bool is_root = rank_ == root;
  if (bytes <= kSmallBytes || size_ == 2) {
    for (int step = 1; is_root && step < size_; ++step) {
      SendInMessages(whole, Peer(step), tag, {0, bytes});
    }
    if (!is_root) ReceiveInMessages(whole, root, tag, {0, bytes});
    whole.WaitReceived();
    return whole.WaitSent();
  }
  const auto part = [&](int rank) { return Part(bytes, rank, size_); };
  for (int step = 1; step < size_; ++step) {
    const int from = Peer(size_ - step);
    if (is_root) {
      SendInMessages(whole, Peer(step), scatter_tag, part(Peer(step)));
    } else {
      ReceiveInMessages(whole, from, tag, part(from));
    }
  }
  if (!is_root) {
    // Apart, since it is waited for apart.
    GlooLink::Buffer own(link_, data, static_cast<size_t>(bytes));
    ReceiveInMessages(own, root, scatter_tag, part(rank_));
    own.WaitReceived();
  }
  for (int step = 1; step < size_; ++step) {
    if (Peer(step) != root) SendInMessages(whole, Peer(step), tag, part(rank_));
  }
  whole.WaitReceived();
  whole.WaitSent();
}

void GlooOperations::Exchange(const CollectiveCall& call) {
  const uint64_t all_to_all_tag =
      call.kind == CollectiveKind::kAllToAll ? link_.NewTag(kTransposed, 0) : 0;
  const auto tag_of = [&](const Transfer& transfer) {
    return call.kind == CollectiveKind::kAllToAll ? all_to_all_tag
                                                  : GlooLink::MessageTag(transfer.values.Bytes());
  };
  std::deque<GlooLink::Buffer> buffers;
  for (const Transfer& transfer : call.receives) {
    if (transfer.peer == rank_) continue;
    GlooLink::Buffer& buffer =
        buffers.emplace_back(link_, transfer.values.data, transfer.values.Bytes());
    ReceiveInMessages(buffer, transfer.peer, tag_of(transfer),
                      {0, static_cast<int64_t>(transfer.values.Bytes())});
  }
  for (const Transfer& transfer : call.sends) {
    if (transfer.peer == rank_) continue;
    GlooLink::Buffer& buffer =
        buffers.emplace_back(link_, transfer.values.data, transfer.values.Bytes());
    SendInMessages(buffer, transfer.peer, tag_of(transfer),
                   {0, static_cast<int64_t>(transfer.values.Bytes())});
  }
  CopyToSelf(call, rank_);
  for (GlooLink::Buffer& buffer : buffers) {
    buffer.WaitReceived();
    buffer.WaitSent();
  }
}

std::vector<std::string> GlooOperations::Gather(std::string_view bytes) {
  const auto ranks = static_cast<size_t>(size_);
  const uint64_t tag = link_.NewTag(kLengths, 0);
  const uint64_t bytes_tag = link_.NewTag(kBytes, 0);
  std::vector<uint64_t> lengths(ranks, bytes.size());
  uint64_t own_length = bytes.size();
  {
    GlooLink::Buffer own(link_, &own_length, sizeof(uint64_t));
    GlooLink::Buffer all(link_, lengths.data(), ranks * sizeof(uint64_t));
    for (int step = 1; step < size_; ++step) {
      const int peer = Peer(step);
      all.Receive(peer, tag, static_cast<size_t>(peer) * sizeof(uint64_t), sizeof(uint64_t));
      own.Send(peer, tag, 0, sizeof(uint64_t));
    }
    all.WaitReceived();
    own.WaitSent();
  }
  std::string own_bytes(bytes);
  std::vector<std::string> all(ranks);
  std::deque<GlooLink::Buffer> buffers;
  GlooLink::Buffer& own = buffers.emplace_back(link_, own_bytes.data(), own_bytes.size());
  for (int step = 1; step < size_; ++step) {
    const int peer = Peer(step);
    std::string& theirs = all[static_cast<size_t>(peer)];
    theirs.resize(lengths[static_cast<size_t>(peer)]);
    ReceiveInMessages(buffers.emplace_back(link_, theirs.data(), theirs.size()), peer, bytes_tag,
                      {0, static_cast<int64_t>(theirs.size())});
    SendInMessages(own, peer, bytes_tag, {0, static_cast<int64_t>(bytes.size())});
  }
  for (GlooLink::Buffer& buffer : buffers) {
    buffer.WaitReceived();
    buffer.WaitSent();
  }
  all[static_cast<size_t>(rank_)] = bytes;
  return all;
}

void GlooOperations::Barrier() {
  const uint64_t tag = link_.NewTag(kBarrier, 0);
  std::string bytes(static_cast<size_t>(size_), '\0');
  GlooLink::Buffer buffer(link_, bytes.data(), bytes.size());
  for (int step = 1; step < size_; ++step) {
    const int peer = Peer(step);
    buffer.Receive(peer, tag, static_cast<size_t>(peer), 1);
    buffer.Send(peer, tag, static_cast<size_t>(rank_), 1);
  }
  buffer.WaitReceived();
  buffer.WaitSent();
}

}  // namespace weft::engine
