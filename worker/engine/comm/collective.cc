#include "worker/engine/comm/collective.h"

#include <algorithm>
#include <numeric>

namespace weft::engine {
namespace {

std::string Describe(const TensorView& view) {
  return std::string(DTypeName(view.dtype)) + view.shape.ToString() +
         (view.device.type == DeviceType::kCuda
              ? " on CUDA device " + std::to_string(view.device.index)
              : "");
}

/// Elements [begin, begin + count) of a contiguous tensor.
TensorView Slice(const TensorView& view, int64_t begin, int64_t count) {
  char* data = static_cast<char*>(view.data) + static_cast<size_t>(begin) * DTypeSize(view.dtype);
  return {data, view.dtype, {count}, view.device};
}

}  // namespace

Work Collective::StartChecked(const Stream& stream, CollectiveCall call) {
  const auto refuse = [&](const std::string& why) {
    return Work(InvalidError(std::string(CollectiveKindName(call.kind)) + " over " +
                             std::to_string(size_) + " ranks: " + why));
  };
  std::vector<TensorView> tensors = {call.input, call.output};
  for (const Transfer& transfer : call.sends) tensors.push_back(transfer.values);
  for (const Transfer& transfer : call.receives) tensors.push_back(transfer.values);
  for (const TensorView& tensor : tensors) {
    if (tensor.shape.Elements() == 0 || !tensor) continue;
    if (tensor.device != device_) {
      return refuse(Describe(tensor) + " is not on the device of the group");
    }
    if (!tensor.Contiguous()) return refuse(Describe(tensor) + " has gaps between its rows");
  }
  const bool reduces =
      call.kind == CollectiveKind::kAllReduce || call.kind == CollectiveKind::kReduceScatter;
  if (reduces &&
      std::find(kFloatTypes.begin(), kFloatTypes.end(), call.input.dtype) == kFloatTypes.end()) {
    return refuse("no reduction of " + Describe(call.input));
  }
  if (call.reduction == Reduction::kMaxMagnitude && call.input.dtype != DType::kF32) {
    return refuse("no largest magnitude of " + Describe(call.input));
  }
  if (call.input.dtype != call.output.dtype) {
    return refuse(Describe(call.input) + " into " + Describe(call.output));
  }
  if (call.label.empty()) call.label = CollectiveKindName(call.kind);

  const double others = size_ - 1;
  const double n = size_;
  call.bytes = static_cast<double>(std::max(call.input.Bytes(), call.output.Bytes()));
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      call.sent_bytes = call.bytes * 2 * others / n;
      break;
    case CollectiveKind::kReduceScatter:
    case CollectiveKind::kAllGather:
      call.sent_bytes = call.bytes * others / n;
      break;
    case CollectiveKind::kBroadcast:
      call.sent_bytes = rank_ == call.root ? call.bytes * 2 * others / n : call.bytes * (n - 2) / n;
      break;
    case CollectiveKind::kExchange:
    case CollectiveKind::kAllToAll: {
      double received = 0;
      double sent = 0;
      for (const Transfer& transfer : call.receives) {
        received += static_cast<double>(transfer.values.Bytes());
      }
      for (const Transfer& transfer : call.sends) {
        sent += static_cast<double>(transfer.values.Bytes());
        if (transfer.peer == rank_) continue;
        call.sent_bytes += static_cast<double>(transfer.values.Bytes());
      }
      call.bytes = std::max(sent, received);
      break;
    }
    case CollectiveKind::kControl:
      break;
  }
  return Start(stream, std::move(call));
}

Work Collective::AllReduce(const Stream& stream, const TensorView& values, Reduction reduction,
                           std::string_view label) {
  return StartChecked(stream, {.kind = CollectiveKind::kAllReduce,
                               .label = label,
                               .reduction = reduction,
                               .input = values,
                               .output = values});
}

Work Collective::ReduceScatter(const Stream& stream, const TensorView& input,
                               const TensorView& output, Reduction reduction,
                               std::string_view label) {
  if (input.shape.Elements() != output.shape.Elements() * size_) {
    return Work(InvalidError("reduce-scatter over " + std::to_string(size_) + " ranks: " +
                             Describe(input) + " is not as many parts like " + Describe(output)));
  }
  return StartChecked(stream, {.kind = CollectiveKind::kReduceScatter,
                               .label = label,
                               .reduction = reduction,
                               .input = input,
                               .output = output});
}

Work Collective::AllGather(const Stream& stream, const TensorView& input, const TensorView& output,
                           std::string_view label) {
  if (input.shape.Elements() * size_ != output.shape.Elements()) {
    return Work(InvalidError("all-gather over " + std::to_string(size_) + " ranks: " +
                             Describe(output) + " is not as many parts like " + Describe(input)));
  }
  return StartChecked(
      stream,
      {.kind = CollectiveKind::kAllGather, .label = label, .input = input, .output = output});
}

Work Collective::Broadcast(const Stream& stream, const TensorView& values, int root,
                           std::string_view label) {
  if (root < 0 || root >= size_) {
    return Work(InvalidError("broadcast from rank " + std::to_string(root) + " of " +
                             std::to_string(size_)));
  }
  return StartChecked(stream, {.kind = CollectiveKind::kBroadcast,
                               .label = label,
                               .input = values,
                               .output = values,
                               .root = root});
}

Work Collective::Send(const Stream& stream, const TensorView& values, int peer,
                      std::string_view label) {
  return Exchange(stream, {{values, peer}}, {}, label);
}

Work Collective::Receive(const Stream& stream, const TensorView& values, int peer,
                         std::string_view label) {
  return Exchange(stream, {}, {{values, peer}}, label);
}

Work Collective::Exchange(const Stream& stream, std::vector<Transfer> sends,
                          std::vector<Transfer> receives, std::string_view label) {
  std::vector<size_t> to_self[2];
  for (const bool sending : {true, false}) {
    for (const Transfer& transfer : sending ? sends : receives) {
      if (transfer.peer < 0 || transfer.peer >= size_) {
        return Work(InvalidError("a message between rank " + std::to_string(rank_) + " and rank " +
                                 std::to_string(transfer.peer) + " of " + std::to_string(size_)));
      }
      if (transfer.peer == rank_) to_self[sending ? 0 : 1].push_back(transfer.values.Bytes());
    }
  }
  if (to_self[0] != to_self[1]) {
    return Work(InvalidError("rank " + std::to_string(rank_) +
                             " does not take in the same exchange what it sends to itself"));
  }
  return StartChecked(stream, {.kind = CollectiveKind::kExchange,
                               .label = label,
                               .sends = std::move(sends),
                               .receives = std::move(receives)});
}

Work Collective::AllToAll(const Stream& stream, const TensorView& input, const TensorView& output,
                          std::string_view label) {
  const int64_t part = input.shape.Elements() / size_;
  const std::vector<int64_t> counts(static_cast<size_t>(size_), part);
  return AllToAll(stream, input, counts, output, counts, label);
}

Work Collective::AllToAll(const Stream& stream, const TensorView& input,
                          std::span<const int64_t> send_counts, const TensorView& output,
                          std::span<const int64_t> receive_counts, std::string_view label) {
  const auto wrong = [this](std::span<const int64_t> counts, const TensorView& view) {
    return counts.size() != static_cast<size_t>(size_) ||
           std::any_of(counts.begin(), counts.end(), [](int64_t count) { return count < 0; }) ||
           std::accumulate(counts.begin(), counts.end(), int64_t{0}) != view.shape.Elements();
  };
  const auto own = static_cast<size_t>(rank_);
  if (wrong(send_counts, input) || wrong(receive_counts, output) ||
      send_counts[own] != receive_counts[own]) {
    return Work(InvalidError("all-to-all over " + std::to_string(size_) +
                             " ranks: the parts are not those of " + Describe(input) + " and " +
                             Describe(output)));
  }
  CollectiveCall call{.kind = CollectiveKind::kAllToAll,
                      .label = label,
                      .input = Slice(input, 0, 0),
                      .output = Slice(output, 0, 0)};
  int64_t sent = 0;
  int64_t received = 0;
  for (int peer = 0; peer < size_; ++peer) {
    const auto p = static_cast<size_t>(peer);
    call.sends.push_back({Slice(input, sent, send_counts[p]), peer});
    call.receives.push_back({Slice(output, received, receive_counts[p]), peer});
    sent += send_counts[p];
    received += receive_counts[p];
  }
  return StartChecked(stream, std::move(call));
}

}  // namespace weft::engine
