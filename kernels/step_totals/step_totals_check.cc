#include "kernels/step_totals/step_totals_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckAddLosses(const Stream& stream, const AddLossesArgs& args) {
  const Shape rows{args.losses.shape.Elements()};
  ArgumentCheck check(stream, "AddLosses");
  check.ContiguousTensor("losses", args.losses, rows, {DType::kF32});
  check.That(args.sum != nullptr, "there is no memory for the sum");
  if (!args.predictions) return check.status();
  check.ContiguousTensor("predictions", args.predictions, rows, {DType::kI32});
  check.ContiguousTensor("targets", args.targets, rows, {DType::kI32});
  return check.That(args.right != nullptr, "there is no memory for the right rows").status();
}

Status CheckDecideUpdate(const Stream& stream, const DecideUpdateArgs& args) {
  return ArgumentCheck(stream, "DecideUpdate")
      .That(args.loss_sum != nullptr && args.square_sum != nullptr && args.non_finite != nullptr,
            "there is no memory of what decides")
      .That(args.factor != nullptr && args.made != nullptr, "there is no memory for the results")
      .That(args.targets.value > 0, "targets must be more than 0")
      .That(args.loss_scale.value > 0, "loss_scale must be more than 0")
      .status();
}

}  // namespace weft::kernels
