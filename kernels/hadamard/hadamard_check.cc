#include "kernels/hadamard/hadamard_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckHadamard(const Stream& stream, const HadamardArgs& args) {
  return ArgumentCheck(stream, "Hadamard")
      .ContiguousTensor("a", args.a, args.a.shape, {DType::kF32})
      .ContiguousTensor("b", args.b, args.a.shape, {DType::kF32})
      .ContiguousTensor("y", args.y, args.a.shape, {DType::kF32})
      .status();
}

}  // namespace weft::kernels
