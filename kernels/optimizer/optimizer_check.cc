#include "kernels/optimizer/optimizer_check.h"

#include <cmath>
#include <string>

#include "kernels/argument_check.h"

namespace weft::kernels {
namespace {

/// Checks of all rules; `states` is how many state tensors the rule keeps.
ArgumentCheck CheckUpdate(const Stream& stream, const char* op, const UpdateInputs& update,
                          int states) {
  ArgumentCheck check(stream, op);
  check.That(update.gradient_limit > 0, "gradient_limit must be more than 0");
  for (const UpdateTensor& tensor : update.tensors) {
    check.That(tensor.count >= 0, "a tensor has a negative count");
    check.That(tensor.first_element >= 0, "first_element is negative");
    bool memory = (tensor.parameter != nullptr) != (tensor.bf16_parameter != nullptr) &&
                  tensor.gradient != nullptr;
    for (int k = 0; k < states; ++k) {
      memory = memory && tensor.state[k].data != nullptr;
      check.That(tensor.state[k].dtype == DType::kF32, "a tensor has state that is not f32");
    }
    check.That(tensor.count == 0 || memory, "a tensor has no memory");
  }
  return check;
}

void CheckDecays(ArgumentCheck& check, float first, float second) {
  check.That(first >= 0 && first < 1 && second >= 0 && second < 1,
             "beta1 and beta2 must be in [0, 1)");
}

void CheckStep(ArgumentCheck& check, int64_t step) {
  check.That(step >= 1, "step " + std::to_string(step) + " is before the first, 1");
}

void CheckFactor(ArgumentCheck& check, float momentum) {
  check.That(momentum >= 0 && momentum < 1, "momentum must be in [0, 1)");
}

}  // namespace

Status CheckSgd(const Stream& stream, const SgdArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Sgd", args.update, args.momentum != 0 ? 1 : 0);
  CheckFactor(check, args.momentum);
  return check.status();
}

Status CheckLars(const Stream& stream, const LarsArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Lars", args.update, 1);
  CheckFactor(check, args.momentum);
  check.That(std::isinf(args.update.gradient_limit), "gradient_limit does not go with norms");
  return check.status();
}

Status CheckAdam(const Stream& stream, const AdamArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Adam", args.update, 2);
  CheckStep(check, args.step.value);
  CheckDecays(check, args.beta1, args.beta2);
  return check.status();
}

Status CheckLamb(const Stream& stream, const LambArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Lamb", args.update, 2);
  CheckStep(check, args.step.value);
  CheckDecays(check, args.beta1, args.beta2);
  return check.status();
}

Status CheckLion(const Stream& stream, const LionArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Lion", args.update, 1);
  CheckDecays(check, args.beta1, args.beta2);
  return check.status();
}

Status CheckScheduleFreeAdamW(const Stream& stream, const ScheduleFreeArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "ScheduleFreeAdamW", args.update, 3);
  CheckStep(check, args.step.value);
  CheckDecays(check, args.beta1, args.beta2);
  check.That(args.average_weight >= 0 && args.average_weight <= 1,
             "average_weight must be in [0, 1]");
  return check.status();
}

Status CheckMomentum(const Stream& stream, const MomentumArgs& args) {
  ArgumentCheck check = CheckUpdate(stream, "Momentum", args.update, 2);
  CheckFactor(check, args.momentum);
  return check.status();
}

}  // namespace weft::kernels
