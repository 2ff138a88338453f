#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/check.h"
#include "kernels/cpu/float_types.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/named_tensor.h"

namespace weft::engine {

/// Elements of a contiguous tensor of one of kFloatTypes, of bytes, of masks (u16) or of integers.
inline std::vector<float> ValuesOf(const TensorView& view) {
  std::vector<float> values;
  if (view.dtype == DType::kU8) {
    const auto* bytes = view.As<uint8_t>();
    return {bytes, bytes + view.shape.Elements()};
  }
  if (view.dtype == DType::kU16) {
    const auto* from = view.As<uint16_t>();
    for (int64_t i = 0; i < view.shape.Elements(); ++i) values.push_back(from[i]);
    return values;
  }
  if (view.dtype == DType::kI32) {
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      values.push_back(static_cast<float>(view.As<int32_t>()[i]));
    }
    return values;
  }
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    const T* from = view.As<T>();
    for (int64_t i = 0; i < view.shape.Elements(); ++i) values.push_back(ToFloat(from[i]));
  });
  return values;
}

/// Writes as many of `values` as a contiguous tensor of one of kFloatTypes, of bytes or of integers
/// has elements.
inline void SetValues(const TensorView& view, const float* values) {
  const int64_t count = view.shape.Elements();
  if (view.dtype == DType::kU8) {
    std::transform(values, values + count, view.As<uint8_t>(),
                   [](float value) { return static_cast<uint8_t>(value); });
    return;
  }
  if (view.dtype == DType::kI32) {
    std::transform(values, values + count, view.As<int32_t>(),
                   [](float value) { return static_cast<int32_t>(value); });
    return;
  }
  kernels::cpu::WithFloatType(view.dtype, [&]<class T>() {
    std::transform(values, values + count, view.As<T>(),
                   [](float value) { return FromFloat<T>(value); });
  });
}

/// Elements of a tensor of the training state on the host.
inline std::vector<float> ValuesOf(const NamedTensor& tensor) {
  if (tensor.stored == nullptr) return ValuesOf(tensor.view);
  std::vector<std::byte> bytes(tensor.view.Bytes());
  const Status read = tensor.stored->Read(0, bytes);
  WEFT_CHECK(read.ok(), read.message());
  TensorView view = tensor.view;
  view.data = bytes.data();
  return ValuesOf(view);
}

/// Values by parameter.
inline std::vector<std::vector<float>> ValuesOf(const ParameterSet& parameters) {
  std::vector<std::vector<float>> values;
  for (int64_t i = 0; i < parameters.size(); ++i) values.push_back(ValuesOf(parameters.value(i)));
  return values;
}

}  // namespace weft::engine
