#include "kernels/sparse24_mvue/sparse24_mvue_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckMvue(const Stream& stream, const MvueArgs& args) {
  return ArgumentCheck(stream, "Mvue")
      .Tensor("x", args.x, args.x.shape, kFloatTypes)
      .That(args.x.shape.rank == 2, "x is no matrix")
      .Tensor("y", args.y, args.x.shape, {args.x.dtype})
      .That(args.first_row >= 0 && args.first_row % 4 == 0, "first_row is not a multiple of 4")
      .That(args.first_column >= 0 &&
                (args.all_columns == 0 ? args.first_column == 0
                                       : args.first_column + args.x.shape[1] <= args.all_columns),
            "the columns are none of all_columns")
      .status();
}

}  // namespace weft::kernels
