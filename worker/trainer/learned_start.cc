#include "worker/trainer/learned_start.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/failpoint.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::trainer {
namespace {

using engine::ParameterSet;

Status SetValues(engine::LearnedGrowth& learned, ParameterSet& parameters) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    WEFT_ASSIGN_OR_RETURN(std::vector<float> values, learned.ValueOf(parameters[i].name));
    WEFT_RETURN_IF_ERROR(engine::SetWholeValue(parameters, i, std::move(values)));
  }
  engine::Context context;
  context.stream = parameters.stream();
  return parameters.OnValues(context, engine::ValuesFrom::kImported);
}

/// Adds the gradients of the parameters, which are `scale` times those of the loss. Frozen ones
/// have none.
Status AddGradients(const ParameterSet& parameters, double scale, engine::LearnedGrowth& learned) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const TensorView view = parameters.gradient(i);
    if (view.data == nullptr) continue;
    WEFT_ASSIGN_OR_RETURN(const engine::HostCopy copy,
                          engine::HostCopy::Of(parameters.stream(), view));
    const auto* numbers = copy.view().As<float>();
    std::vector<float> gradient(numbers, numbers + parameters[i].logical_shape().Elements());
    for (float& number : gradient) number = static_cast<float>(number / scale);
    WEFT_RETURN_IF_ERROR(learned.AddGradient(parameters[i].name, gradient));
  }
  return OkStatus();
}

/// Ranks of a replica have all computed the same; yet machines may round otherwise, and each rank
/// makes another part of the weights.
Status TakeThatOfTheFirst(engine::LearnedGrowth& learned, engine::Collective& group) {
  if (group.size() == 1) return OkStatus();
  for (const engine::LearnedGrowth::Numbers& each : learned.Learned()) {
    WEFT_RETURN_IF_ERROR(group.Broadcast(std::as_writable_bytes(each.values), 0));
  }
  return OkStatus();
}

}  // namespace

Result<LearnedStart> LearnGrowth(const AttemptSpec& spec, int64_t data_step,
                                 engine::LearnedGrowth growth, engine::Model& model,
                                 engine::Trainer& trainer, engine::Collective& group) {
  const GrowthSpec& asked = spec.start.growth;
  ParameterSet& parameters = model.parameters();
  engine::TrainCounters counters = trainer.counters();
  LearnedStart start{std::move(growth)};
  engine::LearnedGrowth& learned = start.growth;
  double of_values = 0;
  for (; start.steps < asked.fit_steps; ++start.steps) {
    WEFT_RETURN_IF_ERROR(Failpoint("trainer.before_fit_step"));
    WEFT_RETURN_IF_ERROR(SetValues(learned, parameters));
    if (start.steps == 0) of_values = learned.flops();
    counters.data_offset = data_step + start.steps;
    WEFT_RETURN_IF_ERROR(trainer.Restored(counters));
    WEFT_ASSIGN_OR_RETURN(const engine::StepReport report, trainer.Differentiate());
    if (!std::isfinite(report.loss)) {
      return InvalidError("the loss is not finite in step " + std::to_string(start.steps) +
                          " of those that learn the growth operator; hint: a smaller "
                          "growth.fit_learning_rate");
    }
    if (start.steps == 0) start.first_loss = report.loss;
    start.last_loss = report.loss;
    start.tokens += report.tokens;
    WEFT_RETURN_IF_ERROR(AddGradients(parameters, report.loss_scale, learned));
    WEFT_RETURN_IF_ERROR(learned.Update(asked.fit_learning_rate));
  }
  // Ranks make parts of the values from here on.
  start.flops = learned.flops() + of_values;
  WEFT_RETURN_IF_ERROR(TakeThatOfTheFirst(learned, group));
  return Result<LearnedStart>(std::move(start));
}

}  // namespace weft::trainer
