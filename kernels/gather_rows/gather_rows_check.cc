#include "kernels/gather_rows/gather_rows_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// `picked` has a row for each index, `all` is what they index.
Status Check(const Stream& stream, const char* op, const TensorView& all, const TensorView& rows,
             const TensorView& picked) {
  ArgumentCheck check(stream, op);
  check.That(all.shape.rank == 2 && picked.shape.rank == 2, "x and y must be matrices")
      .That(rows.shape.rank == 1, "rows is not a vector");
  WEFT_RETURN_IF_ERROR(check.status());
  return check.ContiguousTensor("rows", rows, rows.shape, {DType::kI32})
      .Tensor("the whole matrix", all, all.shape, kFloatTypes)
      .Tensor("the picked rows", picked, {rows.shape[0], all.shape[1]}, {all.dtype})
      .status();
}

}  // namespace

Status CheckGatherRows(const Stream& stream, const GatherRowsArgs& args) {
  return Check(stream, "GatherRows", args.x, args.rows, args.y);
}

Status CheckScatterRows(const Stream& stream, const ScatterRowsArgs& args) {
  return Check(stream, "ScatterRows", args.y, args.rows, args.x);
}

}  // namespace weft::kernels
