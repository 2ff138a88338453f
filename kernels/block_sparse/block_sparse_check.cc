#include "kernels/block_sparse/block_sparse_check.h"

#include <string_view>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// `in` has the columns of the grid, `out` its rows.
Status CheckBlocks(const Stream& stream, std::string_view op, const BlockPattern* pattern,
                   const TensorView& in, const TensorView& out, const TensorView& blocks,
                   std::initializer_list<DType> types) {
  ArgumentCheck check(stream, op);
  check.That(pattern != nullptr, "there is no pattern")
      .That(in.shape.rank == 2 && out.shape.rank == 2, "x and y must be matrices");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t size = pattern->size(), rows = in.shape[0];
  return check
      .That(pattern->valid(),
            "the pattern needs blocks with a side of 16 to 256 in steps of 16, at places of the "
            "grid in rising order")
      .That(stream.device.type == DeviceType::kCpu || pattern->on_device(),
            "the pattern is not on the device; hint: BlockPattern::CopyTo")
      .Tensor("x", in, Shape{rows, pattern->columns() * size}, kFloatTypes)
      .Tensor("y", out, Shape{rows, pattern->rows() * size}, {in.dtype})
      .ContiguousTensor("blocks", blocks, Shape{pattern->count() * size, size}, types)
      .status();
}

}  // namespace

Status CheckBlockSparseForward(const Stream& stream, const BlockSparseForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckBlocks(stream, "BlockSparseForward", args.pattern, args.x, args.y,
                                   args.blocks, kMatrixTypes));
  if (!args.bias) return OkStatus();
  return ArgumentCheck(stream, "BlockSparseForward")
      .ContiguousTensor("bias", args.bias, Shape{args.y.shape[1]}, {DType::kF32})
      .That(!args.accumulate, "a bias of what is added")
      .status();
}

Status CheckBlockSparseBackwardInput(const Stream& stream,
                                     const BlockSparseBackwardInputArgs& args) {
  return CheckBlocks(stream, "BlockSparseBackwardInput", args.pattern, args.dx, args.dy,
                     args.blocks, kMatrixTypes);
}

Status CheckBlockSparseBackwardWeight(const Stream& stream,
                                      const BlockSparseBackwardWeightArgs& args) {
  return CheckBlocks(stream, "BlockSparseBackwardWeight", args.pattern, args.x, args.dy,
                     args.dblocks, {DType::kF32});
}

}  // namespace weft::kernels
