#include "kernels/argument_check.h"

#include <algorithm>
#include <string>

namespace weft::kernels {

ArgumentCheck::ArgumentCheck(const Stream& stream, std::string_view op) : stream_(stream), op_(op) {
  That(stream.device.type == DeviceType::kCpu || stream.cuda != nullptr,
       "the stream of a CUDA device has no state; hint: StreamState::Create() makes one");
}

void ArgumentCheck::Fail(std::string_view problem) {
  if (status_.ok()) status_ = InvalidError(std::string(op_) + ": " + std::string(problem));
}

ArgumentCheck& ArgumentCheck::That(bool condition, std::string_view problem) {
  if (!condition) Fail(problem);
  return *this;
}

ArgumentCheck& ArgumentCheck::Tensor(std::string_view name, const TensorView& view,
                                     const Shape& shape, std::initializer_list<DType> types) {
  if (!status_.ok()) return *this;
  std::string label(name);
  if (std::find(types.begin(), types.end(), view.dtype) == types.end()) {
    std::string wanted;
    for (DType type : types) {
      wanted += (wanted.empty() ? "" : " or ") + std::string(DTypeName(type));
    }
    Fail(label + " is " + std::string(DTypeName(view.dtype)) + ", not " + wanted);
  } else if (!(view.shape == shape)) {
    Fail(label + " has shape " + view.shape.ToString() + " instead of " + shape.ToString());
  } else if (!(view.device == stream_.device)) {
    Fail(label + " is on another device than the stream");
  } else if (view.data == nullptr && shape.Elements() > 0) {
    Fail(label + " has no memory");
  } else if (shape.rank > 0 && view.row_stride < shape[-1]) {
    Fail(label + " has row stride " + std::to_string(view.row_stride) + ", less than its width " +
         std::to_string(shape[-1]));
  }
  return *this;
}

ArgumentCheck& ArgumentCheck::ContiguousTensor(std::string_view name, const TensorView& view,
                                               const Shape& shape,
                                               std::initializer_list<DType> types) {
  Tensor(name, view, shape, types);
  if (status_.ok() && !view.Contiguous()) {
    Fail(std::string(name) + " has strided rows; hint: copy it into contiguous memory first");
  }
  return *this;
}

}  // namespace weft::kernels
