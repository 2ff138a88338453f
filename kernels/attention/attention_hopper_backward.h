#pragma once

// The backward pass for Hopper, in the two kernels of attention_cuda_backward.h, for heads of up to
// 128 columns: a warp copies tiles ahead, and all left operands of the sums come from registers.

#include "kernels/attention/attention_cuda_backward.h"
#include "kernels/attention/attention_hopper_work.h"

namespace weft::kernels::cuda {

/// What both kernels have in common: a large tile of two matrices that stays for a part of the
/// work, and small ones that come and go.
template <int kDim>
struct HopperBackward {
  static constexpr int kGroups = 2;           ///< Warpgroups that multiply.
  static constexpr int kRows = 64 * kGroups;  ///< Of the large tiles.
  static constexpr int kColumns = 64;         ///< Rows of the small ones, columns of scores.
  static constexpr int kStages = 2;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  /// Registers of a thread, where the kernel begins with 168: wider sums leave the copier fewer.
  static constexpr int kCopierRegisters = kDim <= 64 ? 56 : 40;
  static constexpr int kRegisters = kDim <= 64 ? 224 : 232;
  static constexpr int kAllGroups = 1;  ///< Named barrier.

  using Large = PanelTile<kRows, kDim>;
  using Small = PanelTile<kColumns, kDim>;
  struct Shared {
    Places<1> large;
    Places<kStages> small;
    float log2_sums[kStages][kColumns];  ///< As QueryStats has them.
    float means[kStages][kColumns];
  };
  static constexpr int kSharedBytes = kTileAlignment + 2 * Large::kBytes +
                                      2 * kStages * Small::kBytes +
                                      static_cast<int>(sizeof(Shared));

  Large left, right;  ///< K and V, or Q and dO.
  unsigned char* tiles;
  Shared& shared;

  __device__ __forceinline__ explicit HopperBackward(unsigned char* at)
      : left{at},
        right{at + Large::kBytes},
        tiles(at + 2 * Large::kBytes),
        shared(*reinterpret_cast<Shared*>(tiles + 2 * kStages * Small::kBytes)) {}

  /// The first and the second matrix of the small tiles: Q and dO, or K and V.
  __device__ __forceinline__ Small First(int stage) const {
    return {tiles + stage * Small::kBytes};
  }
  __device__ __forceinline__ Small Second(int stage) const {
    return {tiles + (kStages + stage) * Small::kBytes};
  }

  /// By the whole block.
  __device__ __forceinline__ void Init() {
    if (threadIdx.x == 0) {
      shared.large.Init(1, 4 * kGroups);
      shared.small.Init(kWarp + 1, 4 * kGroups);  // Each lane's stores, and the copies.
      ptx::FenceBarrierInit();
    }
    __syncthreads();
  }

  /// By the copying warp.
  __device__ __forceinline__ void FillLarge(const Turn<1>& turn, const CUtensorMap& first,
                                            const CUtensorMap& second, int head, int token) {
    if (threadIdx.x % kWarp != 0) return;
    shared.large.WaitTillEmpty(turn);
    ptx::ArriveExpecting(&shared.large.full[0], 2 * Large::kBytes);
    left.Copy(first, head, token, &shared.large.full[0]);
    right.Copy(second, head, token, &shared.large.full[0]);
  }
  /// Likewise. With the stats of the first `rows` queries, nothing for more.
  __device__ __forceinline__ void FillSmall(const Turn<kStages>& turn, const CUtensorMap& first,
                                            const CUtensorMap& second, int head, int token,
                                            const QueryStats* stats, int rows) {
    shared.small.WaitTillEmpty(turn);
    ptx::PhaseBarrier* full = &shared.small.full[turn.stage()];
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
    if (lane == 0) {
      ptx::ArriveExpecting(full, 2 * Small::kBytes);
      First(turn.stage()).Copy(first, head, token, full);
      Second(turn.stage()).Copy(second, head, token, full);
    }
#pragma unroll 1
    for (int row = lane; stats != nullptr && row < kColumns; row += kWarp) {
      const bool there = row < rows;
      shared.log2_sums[turn.stage()][row] = there ? stats[row].log2_sum : 0.0f;
      shared.means[turn.stage()][row] = there ? stats[row].mean : 0.0f;
    }
    ptx::Arrive(full);
  }

  /// Zeroes what follows a sequence that fills `rows` rows of the small tiles: weight 0 would not
  /// hide a value that is no number.
  __device__ __forceinline__ void ClearBehind(int stage, int rows) const {
    if (rows >= kColumns) return;
    const int thread = static_cast<int>(threadIdx.x);
    First(stage).ClearRows(rows, thread, kGroups * kWarpgroup);
    Second(stage).ClearRows(rows, thread, kGroups * kWarpgroup);
    ptx::SyncNamed(kAllGroups, kGroups * kWarpgroup);
  }

  /// Both products that scores and their gradients are made of.
  template <class T>
  __device__ __forceinline__ void Multiply(Accumulators<1, kColumns / 8>& p,
                                           Accumulators<1, kColumns / 8>& ds, int group,
                                           int stage) const {
    ptx::FenceProducts();
    StartByRows<T>(p, left, 64 * group, First(stage));
    StartByRows<T>(ds, right, 64 * group, Second(stage));
    ptx::CommitProducts();
    ptx::WaitForProducts<0>();
    ptx::PinRegisters(p[0]);
    ptx::PinRegisters(ds[0]);
  }

  /// Runs `copy` on the copying warp, and `multiply(group)` on the warpgroups.
  template <class Copy, class Work>
  __device__ __forceinline__ void Share(const Copy& copy, const Work& multiply) {
    const int group = WarpgroupIndex();
    if (group == kGroups) {
      ptx::LowerRegisters<kCopierRegisters>();
      if (static_cast<int>(threadIdx.x) / kWarp == 4 * kGroups) copy();
    } else {
      ptx::RaiseRegisters<kRegisters>();
      multiply(group);
    }
  }
};

/// dK and dV of kRows keys of a head, from transposed scores: rows of keys.
template <class T, int kDim, bool kDrops>
__global__ void __launch_bounds__(HopperBackward<kDim>::kThreads, 1)
    AttentionHopperKeyGradientKernel(const __grid_constant__ HeadMaps keys,
                                     const __grid_constant__ HeadMaps queries,
                                     AttentionTensors<T> a) {
  if constexpr (ptx::kHopper) {
    using Work = HopperBackward<kDim>;
    constexpr int kQueries = Work::kColumns;
    struct Item {
      SequencePart part;
      int kv_head, first;
      IndexRange queries;
      int tiles;  ///< Of queries, of a head.

      __device__ __forceinline__ Item(const AttentionTensors<T>& tensors, int number)
          : part(FindPart(tensors, number / tensors.kv_heads, Work::kRows)),
            kv_head(number % tensors.kv_heads),
            first(part.index * Work::kRows),
            queries(QueriesOf(tensors, part.length, first, Work::kRows)),
            tiles((queries.end - queries.begin + kQueries - 1) / kQueries) {}
    };
    Work work(AlignedShared());
    work.Init();
    const int group_heads = a.heads / a.kv_heads;
    const auto copy = [&] {
      Turn<1> large;
      Turn<Work::kStages> turn;
      for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
        const Item item(a, number);
        if (item.part.length == 0) return;
        work.FillLarge(large, keys.k, keys.v, item.kv_head, item.part.begin + item.first);
        large.Next();
        // One head of the group after another.
        const int begin = item.part.begin + item.queries.begin;
        const int end = item.part.begin + item.queries.end;
        const int behind = item.part.begin + item.part.length;
        int head = item.kv_head * group_heads, token = begin;
#pragma unroll 1
        for (int left = item.tiles * group_heads; left > 0; --left) {
          work.FillSmall(turn, queries.q, queries.dout, head, token,
                         a.stats + int64_t{head} * a.tokens + token, behind - token);
          turn.Next();
          token += kQueries;
          if (token >= end) {
            token = begin;
            ++head;
          }
        }
      }
    };
    const auto multiply = [&](int group) {
      const int warp_row = 64 * group + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
      Turn<1> large;
      Turn<Work::kStages> turn;
      for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
        const Item item(a, number);
        if (item.part.length == 0) return;
        work.shared.large.WaitTillFull(large);
        const int key = item.first + warp_row;
        Accumulators<1, kDim / 8> dk = {}, dv = {};
        int query = item.queries.begin, head = item.kv_head * group_heads;
#pragma unroll 1
        for (int left = item.tiles * group_heads; left > 0; --left) {
          if (query >= item.queries.end) {
            query = item.queries.begin;
            ++head;
          }
          work.shared.small.WaitTillFull(turn);
          work.ClearBehind(turn.stage(), item.part.length - query);
          Accumulators<1, kQueries / 8> p, ds;
          work.template Multiply<T>(p, ds, group, turn.stage());
          if (!a.AllSee(query, kQueries, key, 16)) {
            HideUnseen(p, [&](int row, int column) { return a.Sees(query + column, key + row); });
          }
          const DropoutBlocks blocks(a, item.part.begin, head);
          const auto kept = KeptOfKeys<kDrops, 1, kQueries / 8>(blocks, query, key);
          LeftFragments<1, kQueries / 16> weights, gradients;
          // Two columns at a time. Queries that are not there are zeros, and add nothing.
          const float* log2_sums = work.shared.log2_sums[turn.stage()] + AccumulatorColumn(0);
#pragma unroll
          for (int n = 0; n < kQueries / 8; ++n) {
            const auto two = LoadPacked<2>(log2_sums + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              p[0][n][i] = ptx::Exp2(p[0][n][i] * a.log2_scale - two[i % 2]);
            }
          }
          const float* means = work.shared.means[turn.stage()] + AccumulatorColumn(0);
#pragma unroll
          for (int n = 0; n < kQueries / 8; ++n) {
            const auto two = LoadPacked<2>(means + 8 * n);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              ds[0][n][i] = p[0][n][i] * (kept.Of(0, n, i, ds[0][n][i]) - two[i % 2]);
            }
          }
          kept.Apply(p);
          RoundToLeft<T>(weights, p);
          RoundToLeft<T>(gradients, ds);
          ptx::PinRegisters(weights[0]);
          ptx::PinRegisters(gradients[0]);
          ptx::PinRegisters(dk[0]);
          ptx::PinRegisters(dv[0]);
          ptx::FenceProducts();
          StartByColumns<T>(dv, weights, work.Second(turn.stage()));
          StartByColumns<T>(dk, gradients, work.First(turn.stage()));
          ptx::CommitProducts();
          ptx::WaitForProducts<0>();
          ptx::PinRegisters(dk[0]);
          ptx::PinRegisters(dv[0]);
          work.shared.small.Release(turn);
          turn.Next();
          query += kQueries;
        }
        work.shared.large.Release(large);
        large.Next();
        ScaleAll(dk, a.gradient_scale);
        ScaleAll(dv, a.value_scale);
        const int64_t token = item.part.begin + key, column = int64_t{item.kv_head} * a.head_dim;
        const int rows = item.part.length - key;
        StoreSums(a.dk.At(token, column), a.dk.stride, rows, a.head_dim, dk);
        StoreSums(a.dv.At(token, column), a.dv.stride, rows, a.head_dim, dv);
      }
    };
    work.Share(copy, multiply);
  }
}

/// dQ of kRows queries of a head.
template <class T, int kDim, bool kDrops>
__global__ void __launch_bounds__(HopperBackward<kDim>::kThreads, 1)
    AttentionHopperQueryGradientKernel(const __grid_constant__ HeadMaps keys,
                                       const __grid_constant__ HeadMaps queries,
                                       AttentionTensors<T> a) {
  if constexpr (ptx::kHopper) {
    using Work = HopperBackward<kDim>;
    constexpr int kKeys = Work::kColumns;
    struct Item {
      SequencePart part;
      int head, first;
      IndexRange keys;

      __device__ __forceinline__ Item(const AttentionTensors<T>& tensors, int number)
          : part(FindPart(tensors, number / tensors.heads, Work::kRows)),
            head(number % tensors.heads),
            first((part.count - 1 - part.index) * Work::kRows),
            keys(KeysOf(tensors, part.length, first, Work::kRows)) {
        keys.begin = keys.begin / kKeys * kKeys;
      }
    };
    Work work(AlignedShared());
    work.Init();
    const auto copy = [&] {
      Turn<1> large;
      Turn<Work::kStages> turn;
      for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
        const Item item(a, number);
        if (item.part.length == 0) return;
        work.FillLarge(large, queries.q, queries.dout, item.head, item.part.begin + item.first);
        large.Next();
        const int kv_head = item.head / (a.heads / a.kv_heads);
        for (int key = item.keys.begin; key < item.keys.end; key += kKeys) {
          work.FillSmall(turn, keys.k, keys.v, kv_head, item.part.begin + key, nullptr, 0);
          turn.Next();
        }
      }
    };
    const auto multiply = [&](int group) {
      const int warp_row = 64 * group + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
      Turn<1> large;
      Turn<Work::kStages> turn;
      for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
        const Item item(a, number);
        if (item.part.length == 0) return;
        const int query = item.first + warp_row;
        QueryStats stats[2] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = query + AccumulatorRow(2 * half);
          if (row < item.part.length) {
            stats[half] = a.stats[int64_t{item.head} * a.tokens + item.part.begin + row];
          }
        }
        work.shared.large.WaitTillFull(large);
        const DropoutBlocks blocks(a, item.part.begin, item.head);
        Accumulators<1, kDim / 8> dq = {};
        for (int key = item.keys.begin; key < item.keys.end; key += kKeys) {
          work.shared.small.WaitTillFull(turn);
          work.ClearBehind(turn.stage(), item.part.length - key);
          Accumulators<1, kKeys / 8> p, ds;
          work.template Multiply<T>(p, ds, group, turn.stage());
          if (key + kKeys > item.part.length || !a.AllSee(query, 16, key, kKeys)) {
            HideUnseen(p, [&](int row, int column) {
              return (key + column < item.part.length) & a.Sees(query + row, key + column);
            });
          }
          const auto kept = KeptOfQueries<kDrops, 1, kKeys / 8>(blocks, query, key);
#pragma unroll
          for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const QueryStats& row = stats[i / 2];
              const float probability = ptx::Exp2(p[0][n][i] * a.log2_scale - row.log2_sum);
              ds[0][n][i] = probability * (kept.Of(0, n, i, ds[0][n][i]) - row.mean);
            }
          }
          LeftFragments<1, kKeys / 16> gradients;
          RoundToLeft<T>(gradients, ds);
          ptx::PinRegisters(gradients[0]);
          ptx::PinRegisters(dq[0]);
          ptx::FenceProducts();
          StartByColumns<T>(dq, gradients, work.First(turn.stage()));
          ptx::CommitProducts();
          ptx::WaitForProducts<0>();
          ptx::PinRegisters(dq[0]);
          work.shared.small.Release(turn);
          turn.Next();
        }
        work.shared.large.Release(large);
        large.Next();
        ScaleAll(dq, a.gradient_scale);
        StoreSums(a.dq.At(item.part.begin + query, int64_t{item.head} * a.head_dim), a.dq.stride,
                  item.part.length - query, a.head_dim, dq);
      }
    };
    work.Share(copy, multiply);
  }
}

/// With the stats in place.
template <class T, int kDim>
Status LaunchHopperBackward(const Stream& stream, std::string_view op,
                            const AttentionTensors<T>& a) {
  using Work = HopperBackward<kDim>;
  const int64_t parts = MostParts(a.tokens, a.sequences, Work::kRows);
  if (parts == 0) return OkStatus();
  const auto maps = [&](int rows) -> Result<HeadMaps> {
    HeadMaps some;
    WEFT_ASSIGN_OR_RETURN(some.q, MapOf(op, a.q, a.heads, a, rows));
    WEFT_ASSIGN_OR_RETURN(some.k, MapOf(op, a.k, a.kv_heads, a, rows));
    WEFT_ASSIGN_OR_RETURN(some.v, MapOf(op, a.v, a.kv_heads, a, rows));
    WEFT_ASSIGN_OR_RETURN(some.dout, MapOf(op, a.dout, a.heads, a, rows));
    return some;
  };
  WEFT_ASSIGN_OR_RETURN(const HeadMaps large, maps(Work::kRows));
  WEFT_ASSIGN_OR_RETURN(const HeadMaps small, maps(Work::kColumns));
  const auto shape = [&](int heads) -> LaunchShape {
    return {.grid = {PersistentBlocks(stream, parts * heads)},
            .block = {Work::kThreads},
            .shared_bytes = Work::kSharedBytes};
  };
  WEFT_RETURN_IF_ERROR(Launch(stream, op, shape(a.kv_heads),
                              a.Drops() ? AttentionHopperKeyGradientKernel<T, kDim, true>
                                        : AttentionHopperKeyGradientKernel<T, kDim, false>,
                              large, small, a));
  return Launch(stream, op, shape(a.heads),
                a.Drops() ? AttentionHopperQueryGradientKernel<T, kDim, true>
                          : AttentionHopperQueryGradientKernel<T, kDim, false>,
                small, large, a);
}

}  // namespace weft::kernels::cuda
