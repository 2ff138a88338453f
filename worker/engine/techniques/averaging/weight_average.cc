#include "worker/engine/techniques/averaging/weight_average.h"

#include <algorithm>
#include <string>
#include <utility>

#include "kernels/cpu/parallel.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/optimizer/optimizer.h"
#include "worker/engine/techniques/averaging/averaging_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

constexpr int64_t kGrain = 16384;

}  // namespace

Result<std::unique_ptr<WeightAverage>> WeightAverage::New(Context& context,
                                                          const AveragingSpec& spec,
                                                          const ParameterSet& parameters,
                                                          std::span<const ParameterPart> parts) {
  std::unique_ptr<WeightAverage> average(new WeightAverage(spec));
  const std::vector<ParameterPart> whole =
      parts.empty() ? TrainedParts(parameters) : std::vector<ParameterPart>();
  if (parts.empty()) parts = whole;
  const int64_t slots = AverageSlots(spec);
  for (int64_t slot = 0; slot < slots; ++slot) {
    const std::string prefix = AverageSlotPrefix(spec, slot);
    for (const ParameterPart& part : parts) {
      average->state_.Add(prefix + parameters[part.index].name, parameters, part);
    }
  }
  WEFT_RETURN_IF_ERROR(average->state_.Allocate(context));
  for (size_t k = 0; k < parts.size(); ++k) {
    Entry entry = {parts[k], {}};
    for (int64_t slot = 0; slot < slots; ++slot) {
      entry.slots.push_back(average->state_[static_cast<size_t>(slot) * parts.size() + k]);
    }
    average->entries_.push_back(std::move(entry));
  }
  return average;
}

// The values of a parameter: those of a bf16 one in the place of its gradient.
Result<const float*> WeightAverage::InF32(Context& context, const Entry& entry) const {
  const TensorView& value = entry.part.value;
  if (value.dtype == DType::kF32 || entry.part.count() == 0) return value.As<float>();
  const TensorView& wide = entry.part.gradient;
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {value, wide}));
  return wide.As<float>();
}

Status WeightAverage::Observe(Context& context, int64_t updates) {
  if (updates % spec_.every_steps != 0) return OkStatus();
  const int64_t observed = updates / spec_.every_steps;  // this one included
  if (spec_.kind == "ema" && observed > 1) {
    // An exponential average descends the gradient of half its squared distance to the parameter.
    std::vector<kernels::UpdateTensor> tensors;
    for (const Entry& e : entries_) {
      WEFT_ASSIGN_OR_RETURN(const float* value, InF32(context, e));
      tensors.push_back({.parameter = e.slots[0].As<float>(),
                         .gradient = value,
                         .state = {},
                         .count = e.part.count(),
                         .weight_decay = 1});
    }
    return kernels::Sgd(context.stream,
                        {.update = {.tensors = tensors,
                                    .learning_rate = static_cast<float>(1 - spec_.decay),
                                    .gradient_scale = -1}});
  }
  const int64_t slot = spec_.kind == "ema" ? 0 : (observed - 1) % spec_.window;
  for (const Entry& e : entries_) {
    const TensorView& value = e.part.value;
    if (e.part.count() == 0) continue;
    WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {value, e.slots[slot]}));
  }
  return OkStatus();
}

Status WeightAverage::MeanOfSlots(Context& context, const Entry& entry, int64_t taken,
                                  const TensorView& mean) const {
  std::vector<HostCopy> slots;
  for (int64_t slot = 0; slot < taken; ++slot) {
    WEFT_ASSIGN_OR_RETURN(HostCopy copy, HostCopy::Of(context.stream, entry.slots[slot]));
    slots.push_back(std::move(copy));
  }
  return FillOnHost(context.stream, mean, [&](const TensorView& to) {
    kernels::cpu::ParallelFor(entry.part.count(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        double sum = 0;
        for (const HostCopy& slot : slots) sum += slot.view().As<float>()[i];
        to.As<float>()[i] = static_cast<float>(sum / static_cast<double>(taken));
      }
    });
  });
}

Result<std::vector<AveragedParameter>> WeightAverage::Averages(Context& context, int64_t updates) {
  std::vector<AveragedParameter> averages;
  const int64_t observed = updates / spec_.every_steps;
  if (observed == 0) return averages;
  for (const Entry& e : entries_) {
    if (spec_.kind == "ema") {
      WEFT_ASSIGN_OR_RETURN(const AveragedParameter average,
                            ExchangeableAverage(context, e.part, e.slots[0].As<float>()));
      averages.push_back(average);
      continue;
    }
    const TensorView& mean = e.part.gradient;
    if (e.part.count() > 0)
      WEFT_RETURN_IF_ERROR(MeanOfSlots(context, e, std::min(observed, spec_.window), mean));
    averages.push_back({e.part.value, mean.As<float>()});
  }
  return averages;
}

}  // namespace weft::engine
