#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include <gtest/gtest.h>

#include "common/four_bit.h"
#include "common/spec/model_spec.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/techniques/weight_quantization/weight_quantization_cost.h"
#include "worker/engine/testing/parameter_values.h"

namespace weft::engine {

/// `model` with its weights as they are.
inline ModelSpec Unquantized(ModelSpec model) {
  model.weight_quantization = {};
  return model;
}

/// Makes the quantised weights of `model` those that `plain` has, and those of `plain` what they
/// stand for. Values besides become equal.
inline void Couple(const ModelSpec& spec, ParameterSet& quantized, ParameterSet& plain) {
  const FourBitFormat format = WeightFormatOf(spec);
  int64_t count = 0;
  for (int64_t i = 0; i < plain.size(); ++i) {
    const int64_t index = *quantized.Find(plain[i].name);
    const TensorView value = plain.value(i);
    if (quantized[index].quantized_words == 0) {
      std::memcpy(quantized.value(index).data, value.data, value.Bytes());
      continue;
    }
    ++count;
    const auto elements = static_cast<size_t>(value.shape.Elements());
    const std::vector<float> values = ValuesOf(value);
    ASSERT_TRUE(quantized.Quantize(index, values).ok());
    ASSERT_EQ(FourBitLayout(format, value.shape.Elements()).words,
              quantized[index].quantized_words);
    TensorView flat = value;
    flat.shape = {static_cast<int64_t>(elements)};
    flat.row_stride = flat.shape[0];
    ASSERT_TRUE(quantized.Dequantize({}, index, flat).ok());
  }
  EXPECT_GT(count, 0);
}

/// Codes and scales of all quantised weights, as far as this rank holds them.
inline std::vector<std::vector<char>> HeldWords(const ParameterSet& parameters) {
  std::vector<std::vector<char>> words;
  for (const NamedTensor& tensor : parameters.NamedValues()) {
    if (parameters[tensor.parameter].quantized_words == 0) continue;
    const auto* data = static_cast<const char*>(tensor.view.data);
    words.emplace_back(data, data + tensor.view.Bytes());
  }
  return words;
}

}  // namespace weft::engine
