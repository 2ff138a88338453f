#include "kernels/cross_entropy/cross_entropy_check.h"

#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

// What both operations on a part share.
void CheckPart(ArgumentCheck& check, const TensorView& logits, const TensorView& targets,
               const LogitsPart& part, const TensorView& found) {
  check.That(logits.shape.rank == 2, "logits must be a matrix")
      .That(found.shape.rank == 2, "found must be a matrix");
  if (!check.status().ok()) return;
  const int64_t rows = logits.shape[0];
  check.Tensor("logits", logits, logits.shape, kFloatTypes)
      .ContiguousTensor("targets", targets, Shape{rows}, {DType::kI32})
      .ContiguousTensor("found", found, {found.shape[0], rows}, {DType::kF32})
      .That(part.columns >= 1 && part.columns <= logits.shape[1] && part.first >= 0 &&
                part.first + part.columns <= part.vocabulary,
            "tokens " + std::to_string(part.first) + " and " + std::to_string(part.columns - 1) +
                " more are not in " + std::to_string(logits.shape[1]) +
                " columns of logits of a vocabulary of " + std::to_string(part.vocabulary));
}

void CheckWeights(ArgumentCheck& check, const TensorView& weights, int64_t rows) {
  if (weights) check.ContiguousTensor("gradient_weights", weights, Shape{rows}, {DType::kF32});
}

}  // namespace

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
  CheckWeights(check, args.gradient_weights, rows);
  return check.status();
}

Status CheckMeasureLogitsPart(const Stream& stream, const MeasureLogitsPartArgs& args) {
  ArgumentCheck check(stream, "MeasureLogitsPart");
  CheckPart(check, args.logits, args.targets, args.part, args.found);
  check.That(args.found.shape[0] == kLogitsPartNumbers, "found is of one rank");
  return check.status();
}

Status CheckCrossEntropyOfParts(const Stream& stream, const CrossEntropyOfPartsArgs& args) {
  ArgumentCheck check(stream, "CrossEntropyOfParts");
  CheckPart(check, args.logits, args.targets, args.part, args.found);
  WEFT_RETURN_IF_ERROR(check.status());
  check
      .That(args.found.shape[0] >= kLogitsPartNumbers &&
                args.found.shape[0] % kLogitsPartNumbers == 0,
            "found is of whole ranks")
      .ContiguousTensor("losses", args.losses, Shape{args.logits.shape[0]}, {DType::kF32});
  CheckWeights(check, args.gradient_weights, args.logits.shape[0]);
  return check.status();
}

}  // namespace weft::kernels
