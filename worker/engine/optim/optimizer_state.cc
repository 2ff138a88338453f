#include "worker/engine/optim/optimizer_state.h"

#include <algorithm>
#include <utility>

#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

size_t OptimizerState::Add(std::string name, const Shape& shape) {
  WEFT_CHECK(!buffer_, "state is registered before it is allocated");
  constexpr int64_t kAlignElements = 16;  // 64 bytes
  entries_.push_back({std::move(name), shape, elements_, std::nullopt});
  elements_ += (shape.Elements() + kAlignElements - 1) / kAlignElements * kAlignElements;
  return entries_.size() - 1;
}

size_t OptimizerState::Add(std::string name, const ParameterPart& part, const Shape& whole) {
  const size_t index = Add(std::move(name), part.value.shape);
  if (!part.whole) entries_[index].part = {.whole = whole, .first = part.first};
  return index;
}

Status OptimizerState::Allocate(Context& context) {
  if (entries_.empty()) return OkStatus();
  elements_ = std::max<int64_t>(elements_, 1);  // parts may all be empty
  WEFT_ASSIGN_OR_RETURN(buffer_,
                        Tensor::New(context, Component::kOptimizer, DType::kF32, {elements_}));
  return Clear(context.stream, buffer_);
}

std::vector<NamedTensor> OptimizerState::Named() const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.push_back(
        {entry.name,
         {buffer_.As<float>() + entry.offset, DType::kF32, entry.shape, buffer_.view().device},
         entry.part});
  }
  return tensors;
}

}  // namespace weft::engine
