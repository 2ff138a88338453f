#include "worker/engine/techniques/weight_quantization/weight_dequantizer.h"

#include <algorithm>
#include <utility>

namespace weft::engine {

WeightDequantizer::WeightDequantizer(ParameterSet* parameters, DType compute)
    : parameters_(parameters), compute_(compute) {
  parameters->SetPrefetcher(this);
}

std::vector<WeightDequantizer::Stack> WeightDequantizer::StacksOf(int64_t unit) const {
  const ParameterSet& parameters = *parameters_;
  std::vector<Stack> stacks;
  for (const ParameterSet::CopiesOf& each : parameters.copies()) {
    if (parameters[each.first].unit != unit || parameters[each.first].quantized_words == 0)
      continue;
    const auto known = std::find_if(stacks.begin(), stacks.end(),
                                    [&](const Stack& stack) { return stack.first == each.first; });
    if (known != stacks.end()) {
      known->copies.push_back(each.copies.get());
      continue;
    }
    Stack stack{.first = each.first, .copies = {each.copies.get()}};
    stack.elements = parameters[each.first].shape.Elements();
    for (int64_t i = each.first + 1; i < parameters.size() && parameters[i].stacked; ++i) {
      stack.elements += parameters[i].shape.Elements();
      ++stack.count;
    }
    stacks.push_back(stack);
  }
  return stacks;
}

// Weights whose packed copies are all that products read share the memory.
Status WeightDequantizer::Reserve(Context& context, const std::vector<Stack>& stacks) {
  int64_t read = 0, packed = 0;
  for (const Stack& stack : stacks) {
    for (DerivedCopies* const copies : stack.copies) {
      WEFT_RETURN_IF_ERROR(copies->Reserve(context));
    }
    if (stack.read_values()) {
      read += stack.elements;
    } else {
      packed = std::max(packed, stack.elements);
    }
  }
  if (memory_ && memory_.shape().Elements() >= read + packed) return OkStatus();
  memory_ = {};
  // CPUs pack halves from f32.
  const bool on_cuda = context.stream.device.type == DeviceType::kCuda;
  const DType type = compute_ == DType::kF16 && !on_cuda ? DType::kF32 : compute_;
  WEFT_ASSIGN_OR_RETURN(memory_,
                        Tensor::New(context, Component::kParameters, type, Shape{read + packed}));
  return OkStatus();
}

Status WeightDequantizer::Fetch(Context& context, int64_t unit, Pass) {
  if (unit == unit_) return OkStatus();
  if (unit_ >= 0) WEFT_RETURN_IF_ERROR(Release(unit_));
  std::vector<Stack> stacks = StacksOf(unit);
  if (stacks.empty()) return OkStatus();
  ProfileScope scope(context.profiler, "dequantise weights");
  WEFT_RETURN_IF_ERROR(Reserve(context, stacks));
  int64_t at = 0;
  for (const Stack& stack : stacks) {
    int64_t end = at;
    for (int64_t i = stack.first; i < stack.first + stack.count; ++i) {
      const int64_t elements = (*parameters_)[i].shape.Elements();
      const TensorView values = memory_.Elements(end, elements).view();
      WEFT_RETURN_IF_ERROR(parameters_->Dequantize(context.stream, i, values));
      parameters_->PlaceDequantized(i, values);
      end += elements;
    }
    for (DerivedCopies* const copies : stack.copies) WEFT_RETURN_IF_ERROR(copies->Make(context));
    if (stack.read_values()) {
      at = end;
    } else {
      PlaceNowhere(stack);
    }
  }
  unit_ = unit;
  there_ = std::move(stacks);
  return OkStatus();
}

void WeightDequantizer::PlaceNowhere(const Stack& stack) const {
  for (int64_t i = stack.first; i < stack.first + stack.count; ++i) {
    parameters_->PlaceDequantized(i, {});
  }
}

Status WeightDequantizer::Release(int64_t unit) {
  if (unit != unit_) return OkStatus();
  for (const Stack& stack : there_) {
    for (DerivedCopies* const copies : stack.copies) copies->Drop();
    PlaceNowhere(stack);
  }
  there_.clear();
  unit_ = -1;
  return OkStatus();
}

}  // namespace weft::engine
