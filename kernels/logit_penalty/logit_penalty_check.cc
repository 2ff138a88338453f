#include "kernels/logit_penalty/logit_penalty_check.h"

#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckLogitPenalty(const Stream& stream, const LogitPenaltyArgs& args) {
  ArgumentCheck check(stream, "LogitPenalty");
  check.That(args.logits.shape.rank == 2, "logits must be a matrix");
  WEFT_RETURN_IF_ERROR(check.status());
  const int64_t rows = args.logits.shape[0], columns = args.logits.shape[1];
  return check.Tensor("logits", args.logits, args.logits.shape, kFloatTypes)
      .Tensor("gradient", args.gradient, args.logits.shape, {args.logits.dtype})
      .ContiguousTensor("targets", args.targets, Shape{rows}, {DType::kI32})
      .ContiguousTensor("squares", args.squares, Shape{rows}, {DType::kF32})
      .That(args.vocabulary >= 1 && args.vocabulary <= columns,
            "vocabulary " + std::to_string(args.vocabulary) + " is not in 1 to the " +
                std::to_string(columns) + " columns of logits")
      .That(args.gradient.data != args.logits.data, "the gradient is added to the logits")
      .status();
}

}  // namespace weft::kernels
