#include <cmath>
#include <cstdint>

#include "kernels/attention/attention.h"
#include "kernels/attention_part/attention_part.h"
#include "kernels/attention_part/attention_part_check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/row_map.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

/// Elements that a thread takes at once.
constexpr int kCount = 4;

/// Where the one sequence of a block begins and ends.
__global__ void StartsKernel(int32_t* starts, int tokens) {
  if (threadIdx.x < 2) starts[threadIdx.x] = threadIdx.x == 0 ? 0 : tokens;
}

/// The result of a block for its queries, which follow each other, and those of earlier ones.
template <class T>
struct MergeRows {
  const T* part;          ///< [rows, heads * head_dim]
  const float* part_log;  ///< [heads, rows]
  StridedRows<float> out;
  float* log;  ///< [heads, ...], `log_stride` apart
  int64_t log_stride;
  int rows;
  int heads;
  int head_dim;
};

/// A warp has a head of a row; the log of its denominator is written when all have read it.
template <class T, int kElements>
__global__ void __launch_bounds__(kBlockThreads) MergeKernel(MergeRows<T> a) {
  const int64_t number = (int64_t{blockIdx.x} * kBlockThreads + threadIdx.x) / kWarp;
  const int64_t row = number / a.heads;
  const int head = static_cast<int>(number % a.heads);
  if (row >= a.rows) return;
  float* const log = a.log + head * a.log_stride + row;
  const float before = *log, added = a.part_log[int64_t{head} * a.rows + row];
  const float most = fmaxf(before, added);
  const float sum = most + logf(expf(before - most) + expf(added - most));
  const float keep = expf(before - sum), add = expf(added - sum);
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int c = lane * kElements; c < a.head_dim; c += kWarp * kElements) {
    const int64_t column = int64_t{head} * a.head_dim + c;
    float part[kElements], out[kElements];
    LoadFloats(a.part + row * a.heads * a.head_dim + column, part);
    LoadFloats(a.out.At(row, column), out);
#pragma unroll
    for (int i = 0; i < kElements; ++i) out[i] = keep * out[i] + add * part[i];
    StoreFloats(a.out.At(row, column), out);
  }
  __syncwarp();
  if (lane == 0) *log = sum;
}

template <class T>
struct AddMap {
  StridedRows<const T> part;
  StridedRows<float> sum;

  template <int kElements>
  __device__ void Apply(int64_t row, int64_t column) const {
    float added[kElements], total[kElements];
    LoadFloats(part.At(row, column), added);
    LoadFloats(sum.At(row, column), total);
#pragma unroll
    for (int i = 0; i < kElements; ++i) total[i] += added[i];
    StoreFloats(sum.At(row, column), total);
  }
};

struct CopyMap {
  StridedRows<const float> from;
  StridedRows<float> to;

  template <int kElements>
  __device__ void Apply(int64_t row, int64_t column) const {
    float values[kElements];
    LoadFloats(from.At(row, column), values);
    StoreFloats(to.At(row, column), values);
  }
};

TensorView RowsFrom(const TensorView& view, int64_t row, int64_t rows) {
  TensorView part = view;
  part.shape = {rows, view.shape[1]};
  part.data = static_cast<char*>(view.data) +
              static_cast<size_t>(row * view.row_stride) * DTypeSize(view.dtype);
  return part;
}

/// One block of queries that sees one of keys: an attention of its own.
class Block {
 public:
  Block(const Stream& stream, std::string_view op, const AttendPartArgs& args)
      : stream_(stream), op_(op), args_(args), blocks_(BlocksOf(args)) {}

  Status Start() const {
    return Launch(stream_, op_, {.grid = {1}, .block = {kWarp}}, StartsKernel,
                  At<int32_t>(blocks_.starts), static_cast<int>(blocks_.tokens));
  }

  /// Calls fn(first row of the queries, first row of the keys) for each, in a fixed order.
  template <class Fn>
  Status ForEach(Fn&& fn) const {
    for (int64_t row = 0; row < args_.q.shape[0]; row += args_.length) {
      for (int64_t query = args_.query_begin; query < args_.query_end; query += blocks_.tokens) {
        for (int64_t key = args_.key_begin; key < args_.key_end; key += blocks_.tokens) {
          WEFT_RETURN_IF_ERROR(fn(row + query, row + key));
        }
      }
    }
    return OkStatus();
  }

  AttentionForwardArgs Attention(int64_t query, int64_t key) const {
    const int64_t rows = blocks_.tokens;
    return {.q = RowsFrom(args_.q, query, rows),
            .k = RowsFrom(args_.k, key, rows),
            .v = RowsFrom(args_.v, key, rows),
            .sequence_starts = Workspace(blocks_.starts, DType::kI32, {2}),
            .heads = args_.heads,
            .kv_heads = args_.kv_heads,
            .scale = args_.scale,
            .causal = false,
            .out = Out(),
            .log_sum_exp = Workspace(blocks_.log_sum_exp, DType::kF32, {args_.heads, rows}),
            .length = rows};
  }
  TensorView Out() const {
    return Workspace(blocks_.out, args_.q.dtype, {blocks_.tokens, args_.q.shape[1]});
  }
  TensorView KeyGradient() const {
    return Workspace(blocks_.dk, args_.k.dtype, {blocks_.tokens, args_.k.shape[1]});
  }
  TensorView ValueGradient() const {
    return Workspace(blocks_.dv, args_.v.dtype, {blocks_.tokens, args_.v.shape[1]});
  }

  template <class T>
  Status Merge(int64_t query) const {
    const TensorView out = RowsFrom(args_.out, query, blocks_.tokens);
    const int64_t pairs = blocks_.tokens * args_.heads;
    const MergeRows<T> rows{.part = At<T>(blocks_.out),
                            .part_log = At<float>(blocks_.log_sum_exp),
                            .out = RowsOf<float>(out),
                            .log = args_.log_sum_exp.As<float>() + query,
                            .log_stride = args_.q.shape[0],
                            .rows = static_cast<int>(blocks_.tokens),
                            .heads = static_cast<int>(args_.heads),
                            .head_dim = static_cast<int>(args_.q.shape[1] / args_.heads)};
    return Launch(stream_, op_,
                  {.grid = {CeilDiv(pairs * kWarp, kBlockThreads)}, .block = {kBlockThreads}},
                  RowsAligned16(out) ? MergeKernel<T, kCount> : MergeKernel<T, 1>, rows);
  }

  /// Takes the log-sum-exps of the queries from those of all queries.
  Status TakeLogSumExp(int64_t query) const {
    const TensorView from{args_.log_sum_exp.As<float>() + query,
                          DType::kF32,
                          {args_.heads, blocks_.tokens},
                          args_.q.device};
    const CopyMap map{.from = {from.As<float>(), args_.q.shape[0]},
                      .to = {At<float>(blocks_.log_sum_exp), blocks_.tokens}};
    return LaunchRowMap<kCount>(stream_, op_, map, args_.heads, blocks_.tokens, false);
  }

  template <class T>
  Status Add(const TensorView& part, const TensorView& sums, int64_t row) const {
    const TensorView to = RowsFrom(sums, row, blocks_.tokens);
    return LaunchRowMap<kCount>(stream_, op_, AddMap<T>{RowsOf<const T>(part), RowsOf<float>(to)},
                                blocks_.tokens, part.shape[1], RowsAligned16(part, to));
  }

 private:
  template <class T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(args_.workspace.As<uint8_t>() + offset);
  }
  TensorView Workspace(int64_t offset, DType dtype, const Shape& shape) const {
    return {At<uint8_t>(offset), dtype, shape, args_.q.device};
  }

  const Stream& stream_;
  std::string_view op_;
  const AttendPartArgs& args_;
  AttendPartBlocks blocks_;
};

}  // namespace

Status AttendPart(const Stream& stream, const AttendPartArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAttendPart(stream, args));
  if (SeesNothing(args)) return OkStatus();
  const Block block(stream, "AttendPart", args);
  WEFT_RETURN_IF_ERROR(block.Start());
  return WithFloatType(args.q.dtype, [&]<class T>() {
    return block.ForEach([&](int64_t query, int64_t key) -> Status {
      WEFT_RETURN_IF_ERROR(cuda::AttentionForward(stream, block.Attention(query, key)));
      return block.Merge<T>(query);
    });
  });
}

Status AttendPartBackward(const Stream& stream, const AttendPartBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAttendPartBackward(stream, args));
  const AttendPartArgs& part = args.part;
  if (SeesNothing(part)) return OkStatus();
  const Block block(stream, "AttendPartBackward", part);
  WEFT_RETURN_IF_ERROR(block.Start());
  return WithFloatType(part.q.dtype, [&]<class T>() {
    return block.ForEach([&](int64_t query, int64_t key) -> Status {
      WEFT_RETURN_IF_ERROR(block.TakeLogSumExp(query));
      AttentionBackwardArgs attention{.forward = block.Attention(query, key),
                                      .dout = {},
                                      .dq = block.Out(),
                                      .dk = block.KeyGradient(),
                                      .dv = block.ValueGradient()};
      const int64_t rows = attention.forward.q.shape[0];
      attention.forward.out = RowsFrom(args.out, query, rows);
      attention.dout = RowsFrom(args.dout, query, rows);
      WEFT_RETURN_IF_ERROR(cuda::AttentionBackward(stream, attention));
      WEFT_RETURN_IF_ERROR(block.Add<T>(attention.dq, args.dq, query));
      WEFT_RETURN_IF_ERROR(block.Add<T>(attention.dk, args.dk, key));
      return block.Add<T>(attention.dv, args.dv, key);
    });
  });
}

}  // namespace weft::kernels::cuda
