#include "worker/engine/optim/optimizer_state.h"

#include <algorithm>
#include <utility>

#include "common/number.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Shape ShapeOf(const StateTensor& tensor) {
  Shape shape;
  for (const int64_t extent : tensor.shape) shape.dims[shape.rank++] = extent;
  return shape;
}

}  // namespace

std::vector<StateTensor> StateTensorsOf(const OptimizerSpec& optimizer,
                                        const Parameter& parameter) {
  const auto begin = parameter.shape.dims.begin();
  return weft::StateTensorsOf(optimizer, parameter, {begin, begin + parameter.shape.rank});
}

size_t OptimizerState::Add(const OptimizerSpec& optimizer, const ParameterSet& parameters,
                           const ParameterPart& part) {
  const size_t first = entries_.size();
  const Parameter& parameter = parameters[part.index];
  for (const StateTensor& tensor : StateTensorsOf(optimizer, parameter)) {
    std::string name = optimizer.name;
    name.append("/").append(parameter.name).append("/").append(tensor.name);
    const Shape shape = ShapeOf(tensor);
    if (shape == parameter.shape) {
      Add(std::move(name), parameters, part, tensor.format, tensor.moment);
      continue;
    }
    WEFT_CHECK(part.whole, "what is no number for each element is of whole parameters");
    Add({.name = std::move(name),
         .shape = shape,
         .format = tensor.format,
         .parameter = part.index});
  }
  return first;
}

size_t OptimizerState::Add(std::string name, const ParameterSet& parameters,
                           const ParameterPart& part, const StateFormat& format,
                           MomentKind moment) {
  Entry entry = {.name = std::move(name),
                 .shape = part.value.shape,
                 .format = format,
                 .moment = moment,
                 .parameter = part.index};
  if (!part.whole) {
    WEFT_CHECK(format.scale_block == 0, "blocks with a scale are of whole parameters");
    entry.part = {.whole = parameters[part.index].shape, .first = part.first};
  }
  return Add(std::move(entry));
}

size_t OptimizerState::Add(Entry entry) {
  WEFT_CHECK(!buffer_, "state is registered before it is allocated");
  constexpr int64_t kAlign = 64;
  const auto take = [this](int64_t bytes) {
    return std::exchange(bytes_, bytes_ + RoundUp(bytes, kAlign));
  };
  const int64_t numbers = entry.shape.Elements();
  const int64_t scales = static_cast<int64_t>(sizeof(float)) * entry.format.Scales(numbers);
  entry.offset = take(entry.format.Bytes(numbers) - scales);
  entry.scales_offset = take(scales);
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

Status OptimizerState::Allocate(Context& context) {
  if (entries_.empty()) return OkStatus();
  bytes_ = std::max<int64_t>(bytes_, 1);  // parts may all be empty
  WEFT_ASSIGN_OR_RETURN(buffer_, Tensor::New(context, Component::kOptimizer, DType::kU8, {bytes_}));
  return Clear(context.stream, buffer_);
}

TensorView OptimizerState::operator[](size_t index) const {
  const Entry& entry = entries_[index];
  return {buffer_.As<uint8_t>() + entry.offset, entry.format.dtype, entry.shape,
          buffer_.view().device};
}

std::vector<NamedTensor> OptimizerState::Named() const {
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const Entry& entry = entries_[i];
    tensors.push_back({.name = entry.name,
                       .view = (*this)[i],
                       .part = entry.part,
                       .parameter = entry.parameter,
                       .moment = entry.moment});
    const int64_t scales = entry.format.Scales(entry.shape.Elements());
    if (scales == 0) continue;
    tensors.push_back({.name = entry.name + "/scales",
                       .view = {buffer_.As<uint8_t>() + entry.scales_offset,
                                DType::kF32,
                                {scales},
                                buffer_.view().device},
                       .parameter = entry.parameter});
  }
  return tensors;
}

}  // namespace weft::engine
