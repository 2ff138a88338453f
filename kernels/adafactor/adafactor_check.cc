#include "kernels/adafactor/adafactor_check.h"

#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {

Status CheckAdafactor(const Stream& stream, const AdafactorArgs& args) {
  ArgumentCheck check(stream, "Adafactor");
  check.That(args.step >= 1, "step " + std::to_string(args.step) + " is before the first, 1");
  check.That(args.gradient_limit > 0, "gradient_limit must be more than 0");
  check.That(args.clip > 0, "clip must be more than 0");
  for (const AdafactorTensor& tensor : args.tensors) {
    check.That(tensor.rows >= 1 && tensor.columns >= 1, "a tensor is empty");
    check.That((tensor.parameter != nullptr) != (tensor.bf16_parameter != nullptr) &&
                   tensor.gradient != nullptr && tensor.column_moment != nullptr &&
                   (tensor.rows == 1 || tensor.row_moment != nullptr),
               "a tensor has no memory");
  }
  return check.status();
}

}  // namespace weft::kernels
