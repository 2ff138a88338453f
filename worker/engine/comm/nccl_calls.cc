#include "worker/engine/comm/nccl_calls.h"

#include <cstddef>

namespace weft::engine {
namespace {

using N = NcclLibrary;

int TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return N::kFloat32;
    case DType::kBF16:
      return N::kBFloat16;
    case DType::kF16:
      return N::kFloat16;
    case DType::kI32:
      return N::kInt32;
    default:
      break;
  }
  return N::kUint8;
}

/// Elements as NCCL counts them: all but these types it moves as bytes.
size_t CountOf(const TensorView& view) {
  return TypeOf(view.dtype) == N::kUint8 ? view.Bytes()
                                         : static_cast<size_t>(view.shape.Elements());
}

/// Sends and receives of one call, as one group of NCCL.
int Transfers(const NcclLibrary& library, N::Comm comm, N::Stream stream,
              const CollectiveCall& call) {
  int outcome = library.group_start();
  if (outcome != N::kSuccess) return outcome;
  const auto keep = [&outcome](int next) {
    if (outcome == N::kSuccess || outcome == N::kInProgress) outcome = next;
  };
  for (const Transfer& transfer : call.sends) {
    const TensorView& values = transfer.values;
    if (values.Bytes() == 0) continue;
    keep(library.send(values.data, CountOf(values), TypeOf(values.dtype), transfer.peer, comm,
                      stream));
  }
  for (const Transfer& transfer : call.receives) {
    const TensorView& values = transfer.values;
    if (values.Bytes() == 0) continue;
    keep(library.receive(values.data, CountOf(values), TypeOf(values.dtype), transfer.peer, comm,
                         stream));
  }
  const int end = library.group_end();
  keep(end);
  return outcome;
}

}  // namespace

int EnqueueCall(const NcclLibrary& library, NcclLibrary::Comm comm, NcclLibrary::Stream stream,
                const CollectiveCall& call) {
  const TensorView& in = call.input;
  const TensorView& out = call.output;
  const int op = call.reduction == Reduction::kSum ? N::kSum : N::kMax;
  // The bits of numbers that are not negative are ordered as they are, with NaN above all, which
  // NCCL's maximum of floating-point numbers leaves out.
  const int type = call.reduction == Reduction::kMaxMagnitude ? int{N::kUint32} : TypeOf(in.dtype);
  const bool empty = CountOf(in) == 0;
  switch (call.kind) {
    case CollectiveKind::kAllReduce:
      if (empty) return N::kSuccess;
      return library.all_reduce(in.data, out.data, CountOf(in), type, op, comm, stream);
    case CollectiveKind::kReduceScatter:
      if (empty) return N::kSuccess;
      return library.reduce_scatter(in.data, out.data, CountOf(out), type, op, comm, stream);
    case CollectiveKind::kAllGather:
      if (empty) return N::kSuccess;
      return library.all_gather(in.data, out.data, CountOf(in), type, comm, stream);
    case CollectiveKind::kBroadcast:
      if (empty) return N::kSuccess;
      return library.broadcast(in.data, out.data, CountOf(in), type, call.root, comm, stream);
    case CollectiveKind::kExchange:
    case CollectiveKind::kAllToAll:
      return Transfers(library, comm, stream, call);
    case CollectiveKind::kControl:
      break;
  }
  return N::kSuccess;
}

}  // namespace weft::engine
