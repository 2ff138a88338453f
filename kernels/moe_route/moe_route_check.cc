#include "kernels/moe_route/moe_route_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckMoeRoute(const Stream& stream, const MoeRouteArgs& args) {
  ArgumentCheck check(stream, "MoeRoute");
  check
      .That(args.logits.shape.rank == 2 && args.chosen.shape.rank == 2,
            "logits and chosen must be matrices")
      .That(args.chosen.shape[1] >= 1 && args.chosen.shape[1] <= args.logits.shape[1],
            "this many experts cannot be chosen");
  WEFT_RETURN_IF_ERROR(check.status());
  const Shape all = args.logits.shape, some = {all[0], args.chosen.shape[1]};
  check.Tensor("logits", args.logits, all, kFloatTypes)
      .ContiguousTensor("probabilities", args.probabilities, all, {DType::kF32})
      .ContiguousTensor("chosen", args.chosen, some, {DType::kI32})
      .ContiguousTensor("weights", args.weights, some, {DType::kF32});
  if (args.lengths) {
    const int64_t sequences = args.lengths.shape.rank == 1 ? args.lengths.shape[0] : 0;
    check.That(sequences > 0 && all[0] % sequences == 0, "lengths must be of equal parts of tokens")
        .ContiguousTensor("lengths", args.lengths, args.lengths.shape, {DType::kI32});
  }
  return check.status();
}

Status CheckMoeRouteBackward(const Stream& stream, const MoeRouteBackwardArgs& args) {
  ArgumentCheck check(stream, "MoeRouteBackward");
  check.That(args.probabilities.shape.rank == 2 && args.chosen.shape.rank == 2,
             "probabilities and chosen must be matrices");
  WEFT_RETURN_IF_ERROR(check.status());
  const Shape all = args.probabilities.shape, some = {all[0], args.chosen.shape[1]};
  return check.ContiguousTensor("probabilities", args.probabilities, all, {DType::kF32})
      .ContiguousTensor("chosen", args.chosen, some, {DType::kI32})
      .ContiguousTensor("weights", args.weights, some, {DType::kF32})
      .ContiguousTensor("dweights", args.dweights, some, {DType::kF32})
      .ContiguousTensor("balance", args.balance, {all[1]}, {DType::kF32})
      .Tensor("dlogits", args.dlogits, all, kFloatTypes)
      .status();
}

Status CheckMoeDispatch(const Stream& stream, const MoeDispatchArgs& args) {
  ArgumentCheck check(stream, "MoeDispatch");
  check.That(args.chosen.shape.rank == 2, "chosen must be a matrix")
      .That(args.wanted_count.shape.rank == 1, "wanted_count must be a vector")
      .That(args.capacity >= 0, "the capacity is negative");
  WEFT_RETURN_IF_ERROR(check.status());
  const Shape some = args.chosen.shape, experts = args.wanted_count.shape;
  check.ContiguousTensor("chosen", args.chosen, some, {DType::kI32})
      .ContiguousTensor("rows", args.rows, {some.Elements()}, {DType::kI32})
      .ContiguousTensor("places", args.places, some, {DType::kI32})
      .ContiguousTensor("wanted_count", args.wanted_count, experts, {DType::kI32})
      .ContiguousTensor("taken_count", args.taken_count, experts, {DType::kI32});
  if (args.capacities) {
    check.ContiguousTensor("capacities", args.capacities, experts, {DType::kI32});
  }
  return check.status();
}

}  // namespace weft::kernels
