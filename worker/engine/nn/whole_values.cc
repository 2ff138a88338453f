#include "worker/engine/nn/whole_values.h"

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "kernels/quantize_4bit/quantize_4bit.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

TensorView ViewOf(std::vector<float>& floats) {
  return {floats.data(), DType::kF32, {std::ssize(floats)}};
}

Result<std::vector<float>> FloatsOf(const Stream& stream, const TensorView& view) {
  WEFT_ASSIGN_OR_RETURN(const HostCopy copy, HostCopy::Of(stream, view));
  std::vector<float> floats(static_cast<size_t>(view.shape.Elements()));
  WEFT_RETURN_IF_ERROR(kernels::Cast({}, {copy.view().Flat(), ViewOf(floats)}));
  return floats;
}

/// Replaces a value in a file.
Status WriteToFile(ParameterSet& parameters, int64_t index, std::vector<float>& floats) {
  const auto stored = parameters.file()->Stored(index);
  if (parameters[index].dtype == DType::kF32) {
    return stored->Write(0, std::as_bytes(std::span(floats)));
  }
  std::vector<BFloat16> rounded(floats.size());
  const TensorView to(rounded.data(), DType::kBF16, {std::ssize(rounded)});
  WEFT_RETURN_IF_ERROR(kernels::Cast({}, {ViewOf(floats), to}));
  return stored->Write(0, std::as_bytes(std::span(rounded)));
}

}  // namespace

Result<std::vector<float>> HeldFloats(const ParameterSet& parameters, int64_t index) {
  if (parameters[index].quantized_words == 0) {
    return FloatsOf(parameters.stream(), parameters.held_value(index).view);
  }
  std::vector<float> floats(static_cast<size_t>(parameters[index].shape.Elements()));
  WEFT_ASSIGN_OR_RETURN(const HostCopy words,
                        HostCopy::Of(parameters.stream(), parameters.QuantizedWords(index)));
  WEFT_RETURN_IF_ERROR(kernels::Dequantize4Bit({}, {.words = words.view(),
                                                    .format = parameters.four_bit_format(),
                                                    .y = ViewOf(floats),
                                                    .part = parameters[index].four_bit_part}));
  return floats;
}

// Each rank sends the others its runs: where in the whole one begins, its length, its numbers.
Result<std::vector<float>> WholeOfParts(const Parameter& parameter, std::vector<float> own,
                                        Collective* tensor_ranks) {
  if (tensor_ranks == nullptr || parameter.shard.whole()) return own;
  std::string message;
  const auto append = [&](const void* from, size_t bytes) {
    message.append(static_cast<const char*>(from), bytes);
  };
  parameter.shard.ForEachRun(parameter.shape, [&](int64_t from, int64_t to, int64_t count) {
    append(&to, sizeof(to));
    append(&count, sizeof(count));
    append(own.data() + from, static_cast<size_t>(count) * sizeof(float));
  });
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, tensor_ranks->AllGather(message));
  std::vector<float> whole(static_cast<size_t>(parameter.logical_shape().Elements()));
  for (const std::string& part : all) {
    for (const char* at = part.data(); at < part.data() + part.size();) {
      int64_t to = 0, count = 0;
      std::memcpy(&to, at, sizeof(to));
      std::memcpy(&count, at + sizeof(to), sizeof(count));
      at += sizeof(to) + sizeof(count);
      const size_t bytes = static_cast<size_t>(count) * sizeof(float);
      std::memcpy(whole.data() + to, at, bytes);
      at += bytes;
    }
  }
  return whole;
}

Result<std::vector<float>> WholeValue(const ParameterSet& parameters, int64_t index,
                                      Collective* tensor_ranks) {
  const Parameter& parameter = parameters[index];
  WEFT_ASSIGN_OR_RETURN(std::vector<float> own,
                        parameters.values_sharded() && parameter.quantized_words == 0
                            ? FloatsOf(parameters.stream(), parameters.value(index))
                            : HeldFloats(parameters, index));
  return WholeOfParts(parameter, std::move(own), tensor_ranks);
}

Status SetWholeValue(ParameterSet& parameters, int64_t index, std::vector<float> floats) {
  const Parameter& parameter = parameters[index];
  if (parameter.quantized_words > 0) return parameters.Quantize(index, floats);
  floats = PartOfWhole(parameter, std::move(floats));
  const ParameterSet::HeldValue held = parameters.held_value(index);
  if (parameters.values_sharded()) {
    const auto begin = floats.begin() + held.first;
    floats = {begin, begin + held.view.shape.Elements()};
  }
  if (parameters.file() != nullptr) return WriteToFile(parameters, index, floats);
  Status rounded;
  WEFT_RETURN_IF_ERROR(
      FillOnHost(parameters.stream(), held.view.Flat(), [&](const TensorView& host) {
        rounded = kernels::Cast({}, {ViewOf(floats), host});
      }));
  return rounded;
}

Status ForEachUnit(Context& context, const ParameterSet& parameters,
                   const std::function<Status(int64_t unit)>& fn, Pass pass) {
  ParameterPrefetcher* const brings =
      parameters.values_sharded() ? parameters.prefetcher() : nullptr;
  for (int64_t unit = 0; unit < parameters.units(); ++unit) {
    if (brings != nullptr) WEFT_RETURN_IF_ERROR(brings->Fetch(context, unit, pass));
    WEFT_RETURN_IF_ERROR(fn(unit));
    context.MarkProgress();
    if (brings != nullptr) WEFT_RETURN_IF_ERROR(brings->Release(unit));
  }
  return OkStatus();
}

}  // namespace weft::engine
