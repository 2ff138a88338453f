#include "kernels/swiglu/swiglu_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckSwiGluForward(const Stream& stream, const SwiGluForwardArgs& args) {
  const TensorView& gate = args.gate;
  return ArgumentCheck(stream, "SwiGluForward")
      .That(gate.shape.rank == 2, "gate is not a matrix")
      .Tensor("gate", gate, gate.shape, kFloatTypes)
      .Tensor("up", args.up, gate.shape, {gate.dtype})
      .Tensor("y", args.y, gate.shape, {gate.dtype})
      .status();
}

Status CheckSwiGluBackward(const Stream& stream, const SwiGluBackwardArgs& args) {
  const TensorView& gate = args.gate;
  ArgumentCheck check(stream, "SwiGluBackward");
  check.That(gate.shape.rank == 2, "gate is not a matrix")
      .Tensor("gate", gate, gate.shape, kFloatTypes)
      .Tensor("up", args.up, gate.shape, {gate.dtype})
      .Tensor("dy", args.dy, gate.shape, {gate.dtype})
      .Tensor("dgate", args.dgate, gate.shape, {gate.dtype})
      .Tensor("dup", args.dup, gate.shape, {gate.dtype});
  if (args.y) check.Tensor("y", args.y, gate.shape, {gate.dtype});
  return check.status();
}

}  // namespace weft::kernels
