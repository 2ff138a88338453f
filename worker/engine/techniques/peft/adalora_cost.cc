#include "worker/engine/techniques/peft/adalora_cost.h"

#include <algorithm>
#include <string>

#include "common/model/parameter_list.h"

namespace weft {
namespace {

/// Calls fn(factor, side, rank) for each factor, [rank, in] or [out, rank]: with its other side.
template <class Fn>
void ForEachFactor(const ModelSpec& model, Fn&& fn) {
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.adapter == AdapterSide::kNone || !parameter.matrix()) continue;
    const int64_t rank = model.peft.adalora.init_r;
    fn(parameter, parameter.Elements() / rank, rank);
  }
}

}  // namespace

Status CheckAdaLora(const JobSpec& job) {
  if (!IsAdaLora(job.model.peft)) return OkStatus();
  const AdaLoraSpec& spec = job.model.peft.adalora;
  if (spec.target_r >= spec.init_r) {
    return InvalidError("model.peft.adalora.target_r " + std::to_string(spec.target_r) +
                        " takes no ranks away from init_r " + std::to_string(spec.init_r) +
                        "; hint: a smaller target_r, or model.peft.method lora");
  }
  if (spec.tinit + spec.tfinal >= job.train.steps) {
    return InvalidError("model.peft.adalora.tinit " + std::to_string(spec.tinit) + " and tfinal " +
                        std::to_string(spec.tfinal) + " leave none of the " +
                        std::to_string(job.train.steps) +
                        " steps to choose ranks in; hint: smaller ones, or more train.steps");
  }
  return OkStatus();
}

// A factor P takes P Pᵀ, the product of its gradient, and the sums of its scores.
void AddAdaLoraWork(const ModelSpec& model, StepWork& work) {
  ForEachFactor(model, [&](const ParameterInfo& factor, int64_t side, int64_t rank) {
    work.products.push_back({.role = factor.role, .m = rank, .n = rank, .k = side, .count = 2});
    work.products.push_back({.role = factor.role, .m = side, .n = rank, .k = rank, .count = 1});
    // The scores read a number and its gradient, and pass over their two means.
    constexpr double kPasses = 24;
    work.f32_numbers += kPasses * static_cast<double>(side * rank);
    work.flops += kPasses / 2 * static_cast<double>(side * rank);
  });
}

// A factor and its gradient in f32, with the product over its side; sensitivities and their signs
// are less.
int64_t AdaLoraWorkspace(const ModelSpec& model) {
  int64_t most = 0;
  ForEachFactor(model, [&](const ParameterInfo&, int64_t side, int64_t rank) {
    most = std::max(most, (2 * side + rank) * rank);
  });
  return most;
}

}  // namespace weft
