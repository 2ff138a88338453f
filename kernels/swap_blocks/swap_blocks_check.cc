#include "kernels/swap_blocks/swap_blocks_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckSwapBlocks(const Stream& stream, const SwapBlocksArgs& args) {
  ArgumentCheck check(stream, "SwapBlocks");
  check.That(args.x.shape.rank == 2, "x must be a matrix")
      .That(args.outer > 0 && args.inner > 0, "there are no blocks");
  WEFT_RETURN_IF_ERROR(check.status());
  return check.ContiguousTensor("x", args.x, args.x.shape, kFloatTypes)
      .ContiguousTensor("y", args.y, args.x.shape, {args.x.dtype})
      .That(args.x.shape[1] % (args.outer * args.inner) == 0, "columns are no whole blocks")
      .That(args.x.data != args.y.data || args.x.shape.Elements() == 0, "y is x")
      .status();
}

}  // namespace weft::kernels
