#include <algorithm>
#include <cstdint>
#include <string>
#include <type_traits>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_check.h"
#include "kernels/attention/attention_cuda_plain.h"
#include "kernels/attention/attention_cuda_tensor_cores.h"
#include "kernels/attention/attention_cuda_work.h"
#include "kernels/attention/attention_cudnn.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ptx_hopper.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;

// Lanes that share a row of a head in StatsKernel.
constexpr int kStatsLanes = 8;

template <class T, int kCount>
__global__ void __launch_bounds__(kBlockThreads) StatsKernel(AttentionTensors<T> a) {
  const int64_t row =
      (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) / kStatsLanes;  // token and head
  const int64_t token = row / a.heads, head = row % a.heads;
  float sum = 0;
  if (token < a.tokens) {
    const T* out = a.out.At(token, head * a.head_dim);
    const T* dout = a.dout.At(token, head * a.head_dim);
    for (int c = static_cast<int>(threadIdx.x) % kStatsLanes * kCount; c < a.head_dim;
         c += kStatsLanes * kCount) {
      const Packed<T, kCount> left = LoadPacked<kCount>(out + c);
      const Packed<T, kCount> right = LoadPacked<kCount>(dout + c);
#pragma unroll
      for (int i = 0; i < kCount; ++i) sum += left[i] * right[i];
    }
  }
#pragma unroll
  for (int bits = kStatsLanes / 2; bits > 0; bits /= 2) {
    sum += __shfl_xor_sync(kAllLanes, sum, bits);
  }
  if (token < a.tokens && threadIdx.x % kStatsLanes == 0) {
    const int64_t at = head * a.tokens + token;
    a.stats[at] = {.log2_sum = a.log_sum_exp[at] * kLog2E, .mean = sum * a.dropout.kept};
  }
}

template <class T>
TokenRows<T> Rows(const TensorView& view) {
  return {.data = view.As<std::remove_const_t<T>>(), .stride = view.row_stride};
}

template <class T>
AttentionTensors<T> Tensors(const AttentionForwardArgs& args) {
  const auto tokens = static_cast<int>(args.q.shape[0]);
  const AttentionDraw dropout = DrawOf(args.dropout);
  return {
      .q = Rows<const T>(args.q),
      .k = Rows<const T>(args.k),
      .v = Rows<const T>(args.v),
      .out = Rows<T>(args.out),
      .log_sum_exp = args.log_sum_exp.As<float>(),
      .dout = {},
      .dq = {},
      .dk = {},
      .dv = {},
      .stats = nullptr,
      .sequence_starts = args.sequence_starts.As<int32_t>(),
      .sequences = static_cast<int>(args.sequence_starts.shape[0] - 1),
      .tokens = tokens,
      .heads = static_cast<int>(args.heads),
      .kv_heads = static_cast<int>(args.kv_heads),
      .head_dim = static_cast<int>(args.q.shape[1] / args.heads),
      .scale = args.scale,
      .log2_scale = args.scale * kLog2E,
      .gradient_scale = args.scale / dropout.kept,
      .value_scale = 1.0f / dropout.kept,
      .causal = args.causal,
      .window = args.window > 0 ? static_cast<int>(std::min<int64_t>(args.window, tokens)) : tokens,
      .dropout = dropout,
      .step = {dropout.key.step, args.dropout.step}};
}

// Tokens and blocks are counted in 32 bits.
Status CheckSize(std::string_view op, const AttentionForwardArgs& args) {
  constexpr int64_t kMostTokens = 1 << 30, kMostBlocks = 0x7fffffff / 2;
  const int64_t tokens = args.q.shape[0];
  const int64_t parts = MostParts(tokens, args.sequence_starts.shape[0] - 1, kPlainSide);
  if (tokens <= kMostTokens && parts <= kMostBlocks / args.heads) return OkStatus();
  return InvalidError(std::string(op) + ": " + std::to_string(tokens) + " tokens of " +
                      std::to_string(args.heads) +
                      " heads are too many for one launch; hint: smaller micro-batches");
}

template <class T>
bool IsAligned(const TokenRows<T>& rows) {
  return Aligned16(rows.data) && rows.stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

template <class... Some>
bool AreAligned(const Some&... some) {
  return (IsAligned(some) && ...);
}

// Its instructions are of this one generation.
bool UsesHopper(const Stream& stream) {
  return ptx::BuiltForHopper() && stream.cuda->limits().major == 9;
}

template <class T>
Status Forward(const Stream& stream, std::string_view op, const AttentionTensors<T>& a) {
  if constexpr (!std::is_same_v<T, float>) {
    if (AreAligned(a.q, a.k, a.v, a.out)) {
      return UsesHopper(stream) ? AttentionForwardOnHopper(stream, op, a)
                                : AttentionForwardOnTensorCores(stream, op, a);
    }
  }
  return LaunchPlainForward(stream, op, a);
}

template <class T>
Status Backward(const Stream& stream, std::string_view op, AttentionTensors<T> a) {
  const int64_t rows = int64_t{a.tokens} * a.heads;
  WEFT_ASSIGN_OR_RETURN(a.stats, ScratchOf<QueryStats>(stream, op, rows));
  WEFT_RETURN_IF_ERROR(Launch(
      stream, op, {.grid = {CeilDiv(rows * kStatsLanes, kBlockThreads)}, .block = {kBlockThreads}},
      AreAligned(a.out, a.dout) ? StatsKernel<T, kWide<T>> : StatsKernel<T, 1>, a));
  if constexpr (!std::is_same_v<T, float>) {
    if (AreAligned(a.q, a.k, a.v, a.dout, a.dq, a.dk, a.dv)) {
      return UsesHopper(stream) && a.head_dim <= kHopperBackwardDim
                 ? AttentionBackwardOnHopper(stream, op, a)
                 : AttentionBackwardOnTensorCores(stream, op, a);
    }
  }
  WEFT_RETURN_IF_ERROR(LaunchPlainKeyGradient(stream, op, a));
  return LaunchPlainQueryGradient(stream, op, a);
}

}  // namespace

Status AttentionForward(const Stream& stream, const AttentionForwardArgs& args) {
  constexpr std::string_view kOp = "AttentionForward";
  WEFT_RETURN_IF_ERROR(CheckAttentionForward(stream, args));
  WEFT_RETURN_IF_ERROR(CheckSize(kOp, args));
  WEFT_ASSIGN_OR_RETURN(const bool done, CudnnAttentionForward(stream, kOp, args));
  if (done) return OkStatus();
  return WithFloatType(args.q.dtype,
                       [&]<class T>() { return Forward<T>(stream, kOp, Tensors<T>(args)); });
}

Status AttentionBackward(const Stream& stream, const AttentionBackwardArgs& args) {
  constexpr std::string_view kOp = "AttentionBackward";
  WEFT_RETURN_IF_ERROR(CheckAttentionBackward(stream, args));
  WEFT_RETURN_IF_ERROR(CheckSize(kOp, args.forward));
  WEFT_ASSIGN_OR_RETURN(const bool done, CudnnAttentionBackward(stream, kOp, args));
  if (done) return OkStatus();
  return WithFloatType(args.forward.q.dtype, [&]<class T>() {
    AttentionTensors<T> a = Tensors<T>(args.forward);
    a.dout = Rows<const T>(args.dout);
    a.dq = Rows<T>(args.dq);
    a.dk = Rows<T>(args.dk);
    a.dv = Rows<T>(args.dv);
    return Backward<T>(stream, kOp, a);
  });
}

}  // namespace weft::kernels::cuda
