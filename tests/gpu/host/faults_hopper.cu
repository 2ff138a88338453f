#include "tests/gpu/host/faults_hopper.h"

#include "kernels/cuda/launch.h"
#include "kernels/cuda/panel_tile.h"
#include "kernels/cuda/shared_memory.h"

namespace weft::kernels::cuda {
namespace {

using Tile = PanelTile<64, 64>;

__global__ void Faulty(const __grid_constant__ CUtensorMap map, HopperFault fault, float* out) {
  auto& barrier = *reinterpret_cast<ptx::PhaseBarrier*>(AlignedShared() + Tile::kBytes + 128);
  const Tile tile{AlignedShared() + (fault == HopperFault::kUnalignedTile ? 128 : 0)};
  const auto is = [fault](HopperFault other) { return fault == other; };
  if (threadIdx.x == 0) {
    ptx::InitBarrier(&barrier, 1);
    ptx::FenceBarrierInit();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    ptx::ArriveExpecting(&barrier, Tile::kBytes - (is(HopperFault::kBytesForgotten) ? 16 : 0));
    tile.Copy(map, 0, 0, &barrier);
  }
  if (is(HopperFault::kNeverAwaited)) return;
  if (is(HopperFault::kTooManyRegisters)) {
    ptx::RaiseRegisters<256>();
    if (threadIdx.x >= kWarpgroup) return;
  }
  if (!is(HopperFault::kCopyNotAwaited)) {
    ptx::WaitForPhase(&barrier, is(HopperFault::kOtherParity) ? 1 : 0);
  }
  if (is(HopperFault::kStoreNotFenced) && threadIdx.x == 3) {
    ptx::Store16(tile.at + 64, ptx::Load16(tile.at + 64));
  }
  if (is(HopperFault::kStoreNotFenced)) __syncthreads();
  if (is(HopperFault::kMetadataChanged)) {
    float products[32][4] = {};
    uint32_t places = 0x44444444;
    ptx::FenceProducts();
    ptx::MultiplyAddSparseAsync<BFloat16, 0, false>(products, tile.ByRows(0, 0), tile.ByRows(0, 0),
                                                    places);
    ptx::CommitProducts();
    places = 0x99999999;
    ptx::WaitForProducts<0>();
    return;
  }
  uint64_t change = 0;
  if (is(HopperFault::kOtherStride)) change = uint64_t{1024 / 16 ^ 512 / 16} << 32;
  if (is(HopperFault::kOtherSwizzle)) change = uint64_t{1 ^ 2} << 62;
  float sums[8][4] = {};
  if (!is(HopperFault::kProductNotFenced)) ptx::FenceProducts();
  for (int depth = 0; depth < 64; depth += 16) {
    ptx::MultiplyAddAsync<BFloat16, 64>(sums, tile.ByRows(0, depth), tile.ByRows(0, depth) ^ change,
                                        depth > 0);
  }
  ptx::CommitProducts();
  if (is(HopperFault::kTileOverwritten)) {
    __syncthreads();
    if (threadIdx.x == 5) tile.ClearRows(63, 0, 1);
    __syncthreads();
  }
  const auto store = [&] {
    for (int n = 0; n < 8; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int row = static_cast<int>(threadIdx.x) / kWarp * 16 + AccumulatorRow(i);
        out[row * 64 + 8 * n + AccumulatorColumn(i)] = sums[n][i];
      }
    }
  };
  if (is(HopperFault::kProductNotAwaited)) store();
  ptx::WaitForProducts<0>();
  ptx::PinRegisters(sums);
  if (!is(HopperFault::kProductNotAwaited)) store();
  if (is(HopperFault::kCopyNotAwaited)) ptx::WaitForPhase(&barrier, 0);
}

}  // namespace

Status RunHopperFault(const Stream& stream, HopperFault fault, const void* a, float* out) {
  WEFT_ASSIGN_OR_RETURN(
      const CUtensorMap map,
      HeadTensorMap("HopperFault", DType::kBF16,
                    {.data = a, .tokens = 64, .heads = 1, .head_dim = 64, .stride = 64}, 64));
  const unsigned groups = fault == HopperFault::kTooManyRegisters ? 3 : 1;
  return Launch(stream, "HopperFault",
                {.grid = {1},
                 .block = {groups * kWarpgroup},
                 .shared_bytes = kTileAlignment + 4 * Tile::kBytes},
                Faulty, map, fault, out);
}

Status TryTensorMap(const void* data, int64_t head_dim, int64_t stride, int rows) {
  return HeadTensorMap(
             "Test", DType::kF16,
             {.data = data, .tokens = 4, .heads = 2, .head_dim = head_dim, .stride = stride}, rows)
      .status();
}

}  // namespace weft::kernels::cuda
