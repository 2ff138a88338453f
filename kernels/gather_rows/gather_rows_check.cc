#include "kernels/gather_rows/gather_rows_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// `picked` has a row for each index, of each group of `period` rows of `all`, which they index.
Status Check(const Stream& stream, const char* op, const TensorView& all, const TensorView& rows,
             const TensorView& picked, int64_t period) {
  ArgumentCheck check(stream, op);
  check.That(all.shape.rank == 2 && picked.shape.rank == 2, "x and y must be matrices")
      .That(rows.shape.rank == 1, "rows is not a vector");
  WEFT_RETURN_IF_ERROR(check.status());
  check.That(period >= 0 && (period == 0 || all.shape[0] % period == 0),
             "period must divide the rows of the whole matrix");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t groups = period == 0 ? 1 : all.shape[0] / period;
  return check.ContiguousTensor("rows", rows, rows.shape, {DType::kI32})
      .Tensor("the whole matrix", all, all.shape, kFloatTypes)
      .Tensor("the picked rows", picked, {groups * rows.shape[0], all.shape[1]}, {all.dtype})
      .status();
}

}  // namespace

Status CheckGatherRows(const Stream& stream, const GatherRowsArgs& args) {
  return Check(stream, "GatherRows", args.x, args.rows, args.y, args.period);
}

Status CheckScatterRows(const Stream& stream, const ScatterRowsArgs& args) {
  return Check(stream, "ScatterRows", args.y, args.rows, args.x, args.period);
}

}  // namespace weft::kernels
