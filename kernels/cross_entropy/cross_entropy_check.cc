#include "kernels/cross_entropy/cross_entropy_check.h"

#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckCrossEntropy(const Stream& stream, const CrossEntropyArgs& args) {
  ArgumentCheck check(stream, "CrossEntropy");
  check.That(args.logits.shape.rank == 2, "logits must be a matrix");
  WEFT_RETURN_IF_ERROR(check.status());
  int64_t rows = args.logits.shape[0], columns = args.logits.shape[1];
  check.Tensor("logits", args.logits, args.logits.shape, kFloatTypes)
      .ContiguousTensor("targets", args.targets, Shape{rows}, {DType::kI32})
      .ContiguousTensor("losses", args.losses, Shape{rows}, {DType::kF32})
      .That(args.vocabulary >= 1 && args.vocabulary <= columns,
            "vocabulary " + std::to_string(args.vocabulary) + " is not in 1 to the " +
                std::to_string(columns) + " columns of logits");
  if (args.predictions) {
    check.ContiguousTensor("predictions", args.predictions, Shape{rows}, {DType::kI32});
  }
  return check.status();
}

}  // namespace weft::kernels
