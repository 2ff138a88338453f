#include "worker/engine/optim/optimizer_state.h"

#include <utility>

#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

size_t OptimizerState::Add(std::string name, const Shape& shape) {
  WEFT_CHECK(!buffer_, "state is registered before it is allocated");
  constexpr int64_t kAlignElements = 16;  // 64 bytes
  entries_.push_back({std::move(name), shape, elements_});
  elements_ += (shape.Elements() + kAlignElements - 1) / kAlignElements * kAlignElements;
  return entries_.size() - 1;
}

Status OptimizerState::Allocate(Context& context) {
  if (elements_ == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(buffer_,
                        Tensor::New(context, Component::kOptimizer, DType::kF32, {elements_}));
  return Clear(context.stream, buffer_);
}

std::vector<NamedTensor> OptimizerState::Named() const {
  std::vector<NamedTensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.push_back(
        {entry.name,
         {buffer_.As<float>() + entry.offset, DType::kF32, entry.shape, buffer_.view().device}});
  }
  return tensors;
}

}  // namespace weft::engine
