#include "kernels/cayley/cayley_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

/// Blocks [blocks * size, size] called `name`, and their numbers above the diagonals.
Status CheckBlocks(ArgumentCheck& check, const char* name, const TensorView& blocks,
                   const TensorView& q) {
  check.That(blocks.shape.rank == 2 && blocks.shape[1] > 0, "blocks have no columns")
      .That(q.shape.rank == 2, "q must be a matrix");
  if (!check.status().ok()) return check.status();
  const int64_t size = blocks.shape[1];
  return check.ContiguousTensor("q", q, {q.shape[0], NumbersAboveDiagonal(size)}, kMatrixTypes)
      .ContiguousTensor(name, blocks, {q.shape[0] * size, size}, {DType::kF32})
      .status();
}

}  // namespace

Status CheckCayleyForward(const Stream& stream, const CayleyForwardArgs& args) {
  ArgumentCheck check(stream, "CayleyForward");
  return CheckBlocks(check, "r", args.r, args.q);
}

Status CheckCayleyBackward(const Stream& stream, const CayleyBackwardArgs& args) {
  ArgumentCheck check(stream, "CayleyBackward");
  WEFT_RETURN_IF_ERROR(CheckBlocks(check, "dr", args.dr, args.q));
  return check.ContiguousTensor("dq", args.dq, args.q.shape, {DType::kF32}).status();
}

}  // namespace weft::kernels
