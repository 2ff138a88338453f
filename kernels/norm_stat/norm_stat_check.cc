#include "kernels/norm_stat/norm_stat_check.h"

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckNormStat(const Stream& stream, const NormStatArgs& args) {
  ArgumentCheck check(stream, "NormStat");
  check.That(args.sum_of_squares != nullptr && args.non_finite != nullptr,
             "there is no memory for the results");
  for (const NormTensor& tensor : args.tensors) {
    check.That(tensor.count >= 0, "a tensor has a negative count");
    check.That(tensor.count == 0 || tensor.data != nullptr || tensor.bf16_data != nullptr,
               "a tensor has no memory");
  }
  return check.status();
}

}  // namespace weft::kernels
