#pragma once

// Products of a compressed matrix A and a dense one on Hopper: a warp brings tiles by the copy
// engine, and two warpgroups multiply them (wgmma.mma_async.sp).

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/cuda/panel_tile.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_ring.h"
#include "kernels/sparse24/sparse24_product.h"

namespace weft::kernels::cuda {

/// A block computes kRows rows of A times kLines columns of the dense matrix, 64 rows in each of
/// two warpgroups, which take turns on the tensor cores while the other one waits for its operands.
struct HopperSparseBlock {
  static constexpr int kStages = 5, kDepth = SparseBlock::kDepth;
  static constexpr int kRows = SparseBlock::kRows, kLines = 256;
  static constexpr int kReaders = SparseBlock::kThreads / kWarp;
  static constexpr int kThreads = SparseBlock::kThreads + kWarp;
  using Values = PanelTile<kRows, kDepth / 2, kDepth / 2>;
  using Lines = PanelTile<kLines, kDepth>;    ///< Of DenseLines.
  using Columns = PanelTile<kDepth, kLines>;  ///< Of DenseColumns.
  static_assert(Lines::kBytes == Columns::kBytes);

  struct Shared {
    unsigned char values[kStages][Values::kBytes];
    unsigned char dense[kStages][Lines::kBytes];
    uint32_t metadata[kStages][SparseBlock::kMetadataWords];
    Places<kStages> places;
  };
  static_assert(sizeof(Shared::values) + sizeof(Shared::dense) >=
                kRows * (kLines + 8) * sizeof(float));
};

/// The block of rows of A and that of lines which a block of the grid computes. Those that run at
/// the same time share few of both, so that the second-level cache holds them.
struct SparsePlace {
  int64_t row, line;

  /// The place of this block, where blocks begin `rows` rows after each other.
  static __device__ __forceinline__ SparsePlace OfThisBlock(int rows) {
    constexpr unsigned kRowsTogether = 16;
    const unsigned number = blockIdx.x + gridDim.x * blockIdx.y;
    const unsigned first = number / (kRowsTogether * gridDim.y) * kRowsTogether;
    const unsigned rest = gridDim.x - first, together = rest < kRowsTogether ? rest : kRowsTogether;
    const unsigned within = number - first * gridDim.y;
    return {int64_t{first + within % together} * rows,
            int64_t{within / together} * HopperSparseBlock::kLines};
  }
};

/// By one thread: brings the tiles of the rows of `result` from `row` on and of lines from `line`
/// on, step by step of a part of the depth.
template <bool kByColumns, class T, class Result>
__device__ __forceinline__ void BringSparseTiles(HopperSparseBlock::Shared& shared,
                                                 const CUtensorMap& values,
                                                 const CUtensorMap& dense,
                                                 const CompressedMatrix<T>& a, const Result& result,
                                                 int64_t row, int line, const DepthParts& parts) {
  using B = HopperSparseBlock;
  constexpr int kPartBytes = B::Values::kBytes / Result::kParts;
  constexpr int kPartWords = SparseBlock::kMetadataWords / Result::kParts;
  Turn<B::kStages> turn;
  for (int i = 0; i < parts.Count(); ++i, turn.Next()) {
    const int stage = turn.stage(), step = parts.First() + i;
    shared.places.WaitTillEmpty(turn);
    ptx::PhaseBarrier* const full = &shared.places.full[stage];
    ptx::ArriveExpecting(
        full, B::Values::kBytes + B::Lines::kBytes + static_cast<int>(sizeof shared.metadata[0]));
#pragma unroll
    for (int part = 0; part < Result::kParts; ++part) {
      const int64_t first = result.RowOf(row, part);
      ptx::CopyTile(shared.values[stage] + part * kPartBytes, &values, step * B::kDepth / 2, 0,
                    static_cast<int>(first), full);
      ptx::CopyBytes(shared.metadata[stage] + part * kPartWords,
                     a.Metadata(first, int64_t{step} * B::kDepth), kPartWords * 4, full);
    }
    if constexpr (kByColumns) {
      for (int panel = 0; panel < B::Columns::kPanels; ++panel) {
        ptx::CopyTile(shared.dense[stage] + panel * B::Columns::kPanelBytes, &dense,
                      line + panel * kBoxColumns, 0, step * B::kDepth, full);
      }
    } else {
      ptx::CopyTile(shared.dense[stage], &dense, step * B::kDepth, 0, line, full);
    }
  }
}

/// result.Take(A times the dense matrix), which `dense` maps as it is with kByColumns, and
/// otherwise its transpose. Grid: blocks of rows of A, of lines, and parts of the depth.
template <class T, bool kByColumns, class Result>
__global__ void __launch_bounds__(HopperSparseBlock::kThreads, 1)
    HopperSparseProduct(const __grid_constant__ CUtensorMap values,
                        const __grid_constant__ CUtensorMap dense, CompressedMatrix<T> a,
                        DepthParts parts, Result result) {
  if constexpr (ptx::kHopper) {
    using B = HopperSparseBlock;
    auto& shared = *reinterpret_cast<B::Shared*>(AlignedShared());
    const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
    const auto [row, line] = SparsePlace::OfThisBlock(B::kRows / Result::kParts);
    if (thread == 0) {
      shared.places.Init(1, B::kReaders);
      ptx::FenceBarrierInit();
    }
    __syncthreads();
    if (warp == B::kReaders) {
      if (thread % kWarp == 0) {
        BringSparseTiles<kByColumns>(shared, values, dense, a, result, row, static_cast<int>(line),
                                     parts);
      }
    } else {
      const int group_row = WarpgroupIndex() * 64, warp_row = warp * 16;
      Accumulators<1, B::kLines / 8> sums = {};
      ptx::PinRegisters(sums[0]);
      Turn<B::kStages> turn;
      for (int step = 0; step < parts.Count(); ++step, turn.Next()) {
        const int stage = turn.stage();
        const B::Values left{shared.values[stage]};
        unsigned char* const right = shared.dense[stage];
        shared.places.WaitTillFull(turn);
        // Products read it while they run, and the assembler does not know that: nothing may take
        // its register before they have been waited for.
        const uint32_t metadata = shared.metadata[stage][thread];
        ptx::FenceProducts();
        const auto start = [&]<int kHalf>() {
          constexpr int kFrom = 32 * kHalf;
          ptx::MultiplyAddSparseAsync<T, kHalf, kByColumns>(
              sums[0], left.ByRows(group_row, kFrom / 2),
              kByColumns ? B::Columns{right}.ByColumns(kFrom, 0) : B::Lines{right}.ByRows(0, kFrom),
              metadata);
        };
        start.template operator()<0>();
        start.template operator()<1>();
        ptx::CommitProducts();
        ptx::WaitForProducts<0>();
        shared.places.Release(turn);
      }
      ptx::PinRegisters(sums[0]);
      // Both warpgroups have read the last tiles.
      ptx::SyncNamed(1, SparseBlock::kThreads);
      result.template Take<B::kLines>(sums, shared.values[0], row, line, warp_row, 0);
    }
  }
}

/// Enqueues it for `rows` rows of A and a dense matrix; `dense` is that matrix with kByColumns, and
/// otherwise its transpose. Its rows begin at multiples of 16
/// bytes, and have a multiple of 8 elements.
template <bool kByColumns, class T, class Result>
Status LaunchHopperSparseProduct(const Stream& stream, std::string_view op,
                                 const CompressedMatrix<T>& a, int64_t rows,
                                 const TensorView& dense, const DepthParts& parts,
                                 const Result& result) {
  using B = HopperSparseBlock;
  const int64_t lines = dense.shape[kByColumns ? 1 : 0];
  WEFT_ASSIGN_OR_RETURN(
      const CUtensorMap values,
      HeadTensorMap(
          op, dense.dtype,
          {.data = a.values, .tokens = a.rows, .head_dim = a.columns / 2, .stride = a.columns / 2},
          B::kRows / Result::kParts, B::kDepth / 2));
  WEFT_ASSIGN_OR_RETURN(const CUtensorMap map, HeadTensorMap(op, dense.dtype,
                                                             {.data = dense.data,
                                                              .tokens = dense.shape[0],
                                                              .head_dim = dense.shape[1],
                                                              .stride = dense.row_stride},
                                                             kByColumns ? B::kDepth : B::kLines));
  return Launch(stream, op,
                {.grid = {CeilDiv(rows, B::kRows), CeilDiv(lines, B::kLines), parts.count},
                 .block = {B::kThreads},
                 .shared_bytes = sizeof(B::Shared) + kTileAlignment},
                HopperSparseProduct<T, kByColumns, Result>, values, map, a, parts, result);
}

}  // namespace weft::kernels::cuda
