#include "kernels/cuda/row_map.h"
#include "kernels/swap_blocks/swap_blocks.h"
#include "kernels/swap_blocks/swap_blocks_check.h"

namespace weft::kernels::cuda {
namespace {

// A row is a block of y; elements of any type, by their bits.
template <class Bits>
struct SwapMap {
  const Bits* x;
  Bits* y;
  int64_t outer, inner, width;

  template <int kCount>
  __device__ void Apply(int64_t block, int64_t column) const {
    const int64_t blocks = outer * inner;
    const int64_t row = block / blocks, place = block % blocks;
    const int64_t source = row * blocks + place % outer * inner + place / outer;
    const Bits* from = x + source * width + column;
    Bits* to = y + block * width + column;
    if constexpr (kCount == 1) {
      *to = *from;
    } else {
      static_assert(kCount == kWide<Bits>);
      ptx::Store16(to, ptx::Load16(from));
    }
  }
};

template <class Bits>
Status Run(const Stream& stream, const SwapBlocksArgs& args) {
  const int64_t blocks = args.outer * args.inner, width = args.x.shape[1] / blocks;
  const SwapMap<Bits> map = {static_cast<const Bits*>(args.x.data), static_cast<Bits*>(args.y.data),
                             args.outer, args.inner, width};
  const bool aligned = Aligned16(args.x.data) && Aligned16(args.y.data) &&
                       width * static_cast<int64_t>(sizeof(Bits)) % 16 == 0;
  return LaunchRowMap<kWide<Bits>>(stream, "SwapBlocks", map, args.x.shape[0] * blocks, width,
                                   aligned);
}

}  // namespace

Status SwapBlocks(const Stream& stream, const SwapBlocksArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckSwapBlocks(stream, args));
  if (args.x.shape.Elements() == 0) return OkStatus();
  return DTypeSize(args.x.dtype) == 4 ? Run<uint32_t>(stream, args) : Run<uint16_t>(stream, args);
}

}  // namespace weft::kernels::cuda
