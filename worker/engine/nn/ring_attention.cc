#include "worker/engine/nn/ring_attention.h"

#include <utility>

#include "common/check.h"
#include "kernels/attention_part/attention_part.h"
#include "kernels/elementwise/elementwise.h"
#include "worker/engine/tensor/tensor.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

using kernels::AttendPartArgs;
using kernels::AttentionBackwardArgs;
using kernels::AttentionForwardArgs;

// `x` as f32: itself where it is.
Result<Tensor> Widened(Context& context, const Tensor& x) {
  if (x.dtype() == DType::kF32) return x;
  WEFT_ASSIGN_OR_RETURN(Tensor wide,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, x.shape()));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {x, wide}));
  return wide;
}

// `sums`, which are f32, in another type: themselves where it is the same.
Result<Tensor> Rounded(Context& context, const Tensor& sums, DType dtype) {
  if (dtype == DType::kF32) return sums;
  WEFT_ASSIGN_OR_RETURN(Tensor narrow,
                        Tensor::New(context, Component::kWorkspace, dtype, sums.shape()));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {sums, narrow}));
  return narrow;
}

// A transfer under way, for which whoever leaves its tensors waits.
class PendingTransfer {
 public:
  explicit PendingTransfer(const Stream& stream) : stream_(stream) {}
  ~PendingTransfer() { (void)work_.Wait(stream_); }
  PendingTransfer(const PendingTransfer&) = delete;
  PendingTransfer& operator=(const PendingTransfer&) = delete;

  void Start(Work work) { work_ = std::move(work); }
  Status Wait() { return std::exchange(work_, Work()).Wait(stream_); }

 private:
  Stream stream_;
  Work work_;
};

// Passes tensors on to the next rank of the ring, while others come from the one before.
class Ring {
 public:
  Ring(Context& context, const ContextParallel& ranks) : context_(&context), ranks_(&ranks) {}

  // Whose keys are here in a step: the own ones in step 0.
  int64_t OwnerIn(int64_t step) const {
    return (ranks_->rank() - step + ranks_->degree()) % ranks_->degree();
  }

  Work Pass(const Tensor& from, const Tensor& to, std::string_view label) const {
    const auto next = static_cast<int>((ranks_->rank() + 1) % ranks_->degree());
    const auto previous = static_cast<int>(OwnerIn(1));
    return ranks_->group().Exchange(context_->stream, {{from, next}}, {{to, previous}}, label);
  }

 private:
  Context* context_;
  const ContextParallel* ranks_;
};

// Keys and values of all tokens of a rank, one row a token: those here and those that come.
class RingKeysValues {
 public:
  RingKeysValues(Context& context, const Ring& ring)
      : context_(&context), ring_(&ring), transfer_(context.stream) {}

  // Begins with the own ones.
  Status Start(const AttentionForwardArgs& own) {
    width_ = own.k.shape[1];
    for (Tensor& buffer : buffers_) {
      WEFT_ASSIGN_OR_RETURN(buffer, Tensor::New(*context_, Component::kWorkspace, own.k.dtype,
                                                {own.k.shape[0], 2 * width_}));
    }
    WEFT_RETURN_IF_ERROR(CopyRows(context_->stream, own.k, k()));
    WEFT_RETURN_IF_ERROR(CopyRows(context_->stream, own.v, v()));
    Pass();
    return OkStatus();
  }

  // Those that are here go on, and the next ones come.
  void Pass() {
    transfer_.Start(ring_->Pass(buffers_[0], buffers_[1], "keys and values round the ring"));
  }
  // The next ones are here.
  Status Turn() {
    WEFT_RETURN_IF_ERROR(transfer_.Wait());
    std::swap(buffers_[0], buffers_[1]);
    return OkStatus();
  }

  Tensor k() const { return buffers_[0].Columns(0, width_); }
  Tensor v() const { return buffers_[0].Columns(width_, width_); }

 private:
  Context* context_;
  const Ring* ring_;
  int64_t width_ = 0;
  Tensor buffers_[2];
  PendingTransfer transfer_;
};

// The queries here that see keys of `owner`, and which they see.
AttendPartArgs PartOf(const AttentionForwardArgs& own, int64_t rank, int64_t owner,
                      const RingKeysValues& keys) {
  const int64_t length = own.length;
  AttendPartArgs part{.q = own.q,
                      .k = keys.k(),
                      .v = keys.v(),
                      .length = length,
                      .query_end = length,
                      .key_end = length,
                      .heads = own.heads,
                      .kv_heads = own.kv_heads,
                      .scale = own.scale,
                      .out = {},
                      .log_sum_exp = own.log_sum_exp};
  if (owner < rank) {
    part.key_end = length / 2;
  } else {
    part.query_begin = length / 2;
  }
  return part;
}

// Workspace for a part, on a device whose kernels want some.
Result<Tensor> NewPartWorkspace(Context& context, const AttendPartArgs& part) {
  if (context.stream.device.type == DeviceType::kCpu) return Tensor();
  return Tensor::New(context, Component::kWorkspace, DType::kU8,
                     {kernels::AttendPartWorkspaceBytes(part)});
}

// Validation (CheckContextParallel and the table of refusals) and ChunksOfRank refuse all else.
void Check(const AttentionForwardArgs& own) {
  WEFT_CHECK(own.causal && own.window == 0, "context-parallel attention is causal, no window");
  WEFT_CHECK(own.length > 0 && own.length % 2 == 0, "a rank has two equal chunks of a sequence");
}

}  // namespace

Status RingAttentionForward(Context& context, const ContextParallel& ranks,
                            const AttentionForwardArgs& own) {
  Check(own);
  const Ring ring(context, ranks);
  RingKeysValues keys(context, ring);
  WEFT_RETURN_IF_ERROR(keys.Start(own));
  WEFT_RETURN_IF_ERROR(kernels::AttentionForward(context.stream, own));
  const bool narrow = own.out.dtype != DType::kF32;
  Tensor wide;
  if (narrow) {
    WEFT_ASSIGN_OR_RETURN(wide,
                          Tensor::New(context, Component::kWorkspace, DType::kF32, own.out.shape));
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {own.out, wide}));
  }
  for (int64_t step = 1; step < ranks.degree(); ++step) {
    WEFT_RETURN_IF_ERROR(keys.Turn());
    if (step + 1 < ranks.degree()) keys.Pass();
    AttendPartArgs part = PartOf(own, ranks.rank(), ring.OwnerIn(step), keys);
    part.out = narrow ? wide.view() : own.out;
    WEFT_ASSIGN_OR_RETURN(const Tensor workspace, NewPartWorkspace(context, part));
    part.workspace = workspace;
    WEFT_RETURN_IF_ERROR(kernels::AttendPart(context.stream, part));
  }
  return narrow ? kernels::Cast(context.stream, {wide, own.out}) : OkStatus();
}

Status RingAttentionBackward(Context& context, const ContextParallel& ranks,
                             const AttentionBackwardArgs& own) {
  const AttentionForwardArgs& forward = own.forward;
  Check(forward);
  const Ring ring(context, ranks);
  RingKeysValues keys(context, ring);
  WEFT_RETURN_IF_ERROR(keys.Start(forward));
  const DType dtype = forward.q.dtype;
  const int64_t kv_width = forward.k.shape[1];
  const Shape pairs = {forward.k.shape[0], 2 * kv_width};
  Tensor dq, dkv;
  {
    WEFT_ASSIGN_OR_RETURN(const Tensor queries,
                          Tensor::New(context, Component::kWorkspace, dtype, forward.q.shape));
    WEFT_ASSIGN_OR_RETURN(const Tensor keys_values,
                          Tensor::New(context, Component::kWorkspace, dtype, pairs));
    AttentionBackwardArgs diagonal = own;
    diagonal.dq = queries;
    diagonal.dk = keys_values.Columns(0, kv_width);
    diagonal.dv = keys_values.Columns(kv_width, kv_width);
    WEFT_RETURN_IF_ERROR(kernels::AttentionBackward(context.stream, diagonal));
    WEFT_ASSIGN_OR_RETURN(dq, Widened(context, queries));
    WEFT_ASSIGN_OR_RETURN(dkv, Widened(context, keys_values));
  }
  // Sums of the ranks before, for the keys that are here now; and what this rank adds to them.
  WEFT_ASSIGN_OR_RETURN(Tensor coming,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, pairs));
  WEFT_ASSIGN_OR_RETURN(Tensor added,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, pairs));
  PendingTransfer transfer(context.stream);
  const auto pass = [&] {
    transfer.Start(ring.Pass(dkv, coming, "gradients of keys and values round the ring"));
  };
  pass();
  for (int64_t step = 1; step < ranks.degree(); ++step) {
    WEFT_RETURN_IF_ERROR(keys.Turn());
    if (step + 1 < ranks.degree()) keys.Pass();
    WEFT_RETURN_IF_ERROR(Clear(context.stream, added));
    AttendPartArgs part = PartOf(forward, ranks.rank(), ring.OwnerIn(step), keys);
    WEFT_ASSIGN_OR_RETURN(const Tensor workspace, NewPartWorkspace(context, part));
    part.workspace = workspace;
    WEFT_RETURN_IF_ERROR(
        kernels::AttendPartBackward(context.stream, {.part = part,
                                                     .out = forward.out,
                                                     .dout = own.dout,
                                                     .dq = dq,
                                                     .dk = added.Columns(0, kv_width),
                                                     .dv = added.Columns(kv_width, kv_width)}));
    WEFT_RETURN_IF_ERROR(transfer.Wait());
    WEFT_RETURN_IF_ERROR(kernels::AddScaled(context.stream, {.x = added, .y = coming}));
    std::swap(dkv, coming);
    pass();
  }
  // The last turn brings them home.
  WEFT_RETURN_IF_ERROR(transfer.Wait());
  dkv = added = {};
  WEFT_ASSIGN_OR_RETURN(const Tensor queries, Rounded(context, dq, dtype));
  WEFT_ASSIGN_OR_RETURN(const Tensor keys_values, Rounded(context, coming, dtype));
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, queries, own.dq));
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, keys_values.Columns(0, kv_width), own.dk));
  return CopyRows(context.stream, keys_values.Columns(kv_width, kv_width), own.dv);
}

}  // namespace weft::engine
