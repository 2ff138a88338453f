#pragma once

// The forward pass for Hopper (FlashAttention-3: Shah et al. 2024, arXiv 2407.08608): a warp copies
// tiles of keys and values ahead; warpgroups of 64 queries each start the scores of the next keys
// before they sum the values of the last, and take turns with the tensor cores, so that the softmax
// of one overlaps with the products of another.

#include "kernels/attention/attention_cuda_forward.h"
#include "kernels/attention/attention_hopper_work.h"

namespace weft::kernels::cuda {

template <class T, int kDim, bool kDrops>
struct HopperForward {
  static constexpr int kGroups = 2;           ///< Warpgroups that multiply.
  static constexpr int kRows = 64 * kGroups;  ///< Queries of a block.
  static constexpr int kKeys = kDim <= 128 ? 128 : 64;
  static constexpr int kStages = 2;
  static constexpr int kThreads = kWarpgroup * (kGroups + 1);
  /// Registers of a thread, where the kernel begins with 168.
  static constexpr int kCopierRegisters = 40;
  static constexpr int kRegisters = 232;
  static constexpr bool kTakesTurns = kDim <= 128;
  /// Named barriers: from kTurn on a warpgroup's turn, each with the one before it.
  static constexpr int kTurn = 1, kAllGroups = kTurn + kGroups;

  using Queries = PanelTile<kRows, kDim>;
  using Keys = PanelTile<kKeys, kDim>;
  struct Barriers {
    Places<1> q;
    Places<kStages> k, v;
  };
  static constexpr int kSharedBytes = kTileAlignment + Queries::kBytes +
                                      2 * kStages * Keys::kBytes +
                                      static_cast<int>(sizeof(Barriers));

  const AttentionTensors<T>& a;
  const HeadMaps& maps;
  Queries q;
  unsigned char* tiles;  ///< Of keys, then of values.
  Barriers& barriers;

  __device__ __forceinline__ HopperForward(const AttentionTensors<T>& tensors,
                                           const HeadMaps& tensor_maps, unsigned char* shared)
      : a(tensors),
        maps(tensor_maps),
        q{shared},
        tiles(shared + Queries::kBytes),
        barriers(*reinterpret_cast<Barriers*>(tiles + 2 * kStages * Keys::kBytes)) {}

  __device__ __forceinline__ Keys K(int stage) const { return {tiles + stage * Keys::kBytes}; }
  __device__ __forceinline__ Keys V(int stage) const {
    return {tiles + (kStages + stage) * Keys::kBytes};
  }

  /// A part of the work: some queries of a head, and the keys that they see.
  struct Item {
    SequencePart part;
    int head;
    int kv_head;
    int first;  ///< Query.
    int key;    ///< The first, of a whole tile.
    int end;    ///< Of the keys.

    __device__ __forceinline__ Item(const AttentionTensors<T>& a, int number)
        : part(FindPart(a, number / a.heads, kRows)), head(number % a.heads) {
      kv_head = head / (a.heads / a.kv_heads);
      // Last queries first: they may see the most keys.
      first = (part.count - 1 - part.index) * kRows;
      const IndexRange keys = KeysOf(a, part.length, first, kRows);
      key = keys.begin / kKeys * kKeys;
      end = keys.end;
    }
    /// After the last part come numbers of none.
    __device__ __forceinline__ bool IsThere() const { return part.length != 0; }
  };

  /// By one warp.
  __device__ __forceinline__ void Produce() {
    const bool copies = threadIdx.x % kWarp == 0;
    Turn<1> q_turn;
    Turn<kStages> turn;
    for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
      const Item item(a, number);
      if (!item.IsThere()) return;
      if (!copies) continue;
      barriers.q.WaitTillEmpty(q_turn);
      ptx::ArriveExpecting(&barriers.q.full[0], Queries::kBytes);
      q.Copy(maps.q, item.head, item.part.begin + item.first, &barriers.q.full[0]);
      q_turn.Next();
      for (int key = item.key; key < item.end; key += kKeys) {
        const int token = item.part.begin + key;
        Fill(barriers.k, turn, K(turn.stage()), maps.k, item.kv_head, token);
        Fill(barriers.v, turn, V(turn.stage()), maps.v, item.kv_head, token);
        turn.Next();
      }
    }
  }

  __device__ __forceinline__ void Fill(Places<kStages>& places, const Turn<kStages>& turn,
                                       const Keys& tile, const CUtensorMap& map, int head,
                                       int token) {
    places.WaitTillEmpty(turn);
    ptx::ArriveExpecting(&places.full[turn.stage()], Keys::kBytes);
    tile.Copy(map, head, token, &places.full[turn.stage()]);
  }

  __device__ __forceinline__ void WaitForTurn(int group) const {
    if constexpr (kTakesTurns) ptx::SyncNamed(kTurn + group, 2 * kWarpgroup);
  }
  __device__ __forceinline__ void PassTurn(int group) const {
    if constexpr (kTakesTurns) {
      ptx::ArriveNamed(kTurn + (group + 1) % kGroups, 2 * kWarpgroup);
    }
  }

  /// By a warpgroup, `group` of kGroups.
  __device__ __forceinline__ void Consume(int group) {
    // The first turn is the first group's.
    if (group == kGroups - 1) PassTurn(group);
    Turn<1> q_turn;
    Turn<kStages> turn;
    for (int number = static_cast<int>(blockIdx.x);; number += static_cast<int>(gridDim.x)) {
      const Item item(a, number);
      if (!item.IsThere()) return;
      barriers.q.WaitTillFull(q_turn);
      Sum(item, group, q_turn, turn);
      q_turn.Next();
    }
  }

  __device__ __forceinline__ void Sum(const Item& item, int group, const Turn<1>& q_turn,
                                      Turn<kStages>& turn) {
    const int warp_row = 64 * group + static_cast<int>(threadIdx.x) % kWarpgroup / kWarp * 16;
    const int query = item.first + warp_row;
    const DropoutBlocks blocks(a, item.part.begin, item.head);
    Accumulators<1, kDim / 8> out = {};
    Accumulators<1, kKeys / 8> scores;
    LeftFragments<1, kKeys / 16> weights;
    RunningSoftmax<1> softmax;
    float factors[1][2];

    // Scores of the first keys.
    barriers.k.WaitTillFull(turn);
    ptx::FenceProducts();
    StartByRows<T>(scores, q, 64 * group, K(turn.stage()));
    ptx::CommitProducts();
    ptx::WaitForProducts<0>();
    ptx::PinRegisters(scores[0]);
    barriers.k.Release(turn);
    int key = item.key;
    Hide(scores, item, query, key);
    softmax.Add(scores, a.log2_scale, factors);
    KeptOfQueries<kDrops, 1, kKeys / 8>(blocks, query, key).Apply(scores);
    RoundToLeft<T>(weights, scores);

    for (key += kKeys; key < item.end; key += kKeys) {
      // Values of the keys before are summed while the scores of these are computed.
      const Turn<kStages> values = turn;
      turn.Next();
      barriers.v.WaitTillFull(values);
      barriers.k.WaitTillFull(turn);
      WaitForTurn(group);
      ptx::PinRegisters(out[0]);
      ptx::PinRegisters(weights[0]);
      ptx::FenceProducts();
      StartByRows<T>(scores, q, 64 * group, K(turn.stage()));
      ptx::CommitProducts();
      StartByColumns<T>(out, weights, V(values.stage()));
      ptx::CommitProducts();
      PassTurn(group);
      ptx::WaitForProducts<1>();
      ptx::PinRegisters(scores[0]);
      barriers.k.Release(turn);
      Hide(scores, item, query, key);
      softmax.Add(scores, a.log2_scale, factors);
      KeptOfQueries<kDrops, 1, kKeys / 8>(blocks, query, key).Apply(scores);
      ptx::WaitForProducts<0>();
      ptx::PinRegisters(out[0]);
      barriers.v.Release(values);
      ScaleRows(out, factors);
      RoundToLeft<T>(weights, scores);
    }
    barriers.q.Release(q_turn);

    barriers.v.WaitTillFull(turn);
    const int rows = item.part.length - (key - kKeys);
    if (rows < kKeys) {
      // What follows the sequence has weight 0, which does not make it 0 if it is no number.
      V(turn.stage()).ClearRows(rows, static_cast<int>(threadIdx.x), kGroups * kWarpgroup);
      ptx::SyncNamed(kAllGroups, kGroups * kWarpgroup);
    }
    ptx::PinRegisters(out[0]);
    ptx::PinRegisters(weights[0]);
    ptx::FenceProducts();
    StartByColumns<T>(out, weights, V(turn.stage()));
    ptx::CommitProducts();
    ptx::WaitForProducts<0>();
    ptx::PinRegisters(out[0]);
    barriers.v.Release(turn);
    turn.Next();
    Store(item, query, out, softmax);
  }

  __device__ __forceinline__ void Hide(Accumulators<1, kKeys / 8>& scores, const Item& item,
                                       int query, int key) const {
    if (key + kKeys <= item.part.length && a.AllSee(query, 16, key, kKeys)) return;
    HideUnseen(scores, [&](int row, int column) {
      return (key + column < item.part.length) & a.Sees(query + row, key + column);
    });
  }

  __device__ __forceinline__ void Store(const Item& item, int query, Accumulators<1, kDim / 8>& out,
                                        const RunningSoftmax<1>& softmax) const {
    const int rows = item.part.length - query;
    float inverses[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float sum = SumOfFour(softmax.sums[0][half]);
      inverses[0][half] = a.value_scale / sum;
      const int row = AccumulatorRow(2 * half);
      if (threadIdx.x % 4 == 0 && row < rows) {
        a.log_sum_exp[int64_t{item.head} * a.tokens + item.part.begin + query + row] =
            softmax.maxima[0][half] * a.scale + logf(sum);
      }
    }
    ScaleRows(out, inverses);
    StoreSums(a.out.At(item.part.begin + query, int64_t{item.head} * a.head_dim), a.out.stride,
              rows, a.head_dim, out);
  }
};

template <class T, int kDim, bool kDrops>
__global__ void __launch_bounds__(HopperForward<T, kDim, kDrops>::kThreads, 1)
    AttentionHopperForwardKernel(const __grid_constant__ HeadMaps maps, AttentionTensors<T> a) {
  if constexpr (ptx::kHopper) {
    using Work = HopperForward<T, kDim, kDrops>;
    Work work(a, maps, AlignedShared());
    if (threadIdx.x == 0) {
      constexpr int kReaders = 4 * Work::kGroups;
      work.barriers.q.Init(1, kReaders);
      work.barriers.k.Init(1, kReaders);
      work.barriers.v.Init(1, kReaders);
      ptx::FenceBarrierInit();
    }
    __syncthreads();
    const int group = WarpgroupIndex();
    if (group == Work::kGroups) {
      ptx::LowerRegisters<Work::kCopierRegisters>();
      if (static_cast<int>(threadIdx.x) / kWarp == 4 * Work::kGroups) work.Produce();
    } else {
      ptx::RaiseRegisters<Work::kRegisters>();
      work.Consume(group);
    }
  }
}

template <class T, int kDim>
Status LaunchHopperForward(const Stream& stream, std::string_view op,
                           const AttentionTensors<T>& a) {
  using Work = HopperForward<T, kDim, false>;
  const int64_t items = MostParts(a.tokens, a.sequences, Work::kRows) * a.heads;
  if (items == 0) return OkStatus();
  HeadMaps maps = {};
  WEFT_ASSIGN_OR_RETURN(maps.q, MapOf(op, a.q, a.heads, a, Work::kRows));
  WEFT_ASSIGN_OR_RETURN(maps.k, MapOf(op, a.k, a.kv_heads, a, Work::kKeys));
  WEFT_ASSIGN_OR_RETURN(maps.v, MapOf(op, a.v, a.kv_heads, a, Work::kKeys));
  return Launch(stream, op,
                {.grid = {PersistentBlocks(stream, items)},
                 .block = {Work::kThreads},
                 .shared_bytes = Work::kSharedBytes},
                a.Drops() ? AttentionHopperForwardKernel<T, kDim, true>
                          : AttentionHopperForwardKernel<T, kDim, false>,
                maps, a);
}

}  // namespace weft::kernels::cuda
