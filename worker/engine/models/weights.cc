#include "worker/engine/models/weights.h"

#include <span>

namespace weft::engine {
namespace {

Result<std::span<float>> Values(ParameterSet& parameters, const Gpt2Tensor& tensor) {
  WEFT_ASSIGN_OR_RETURN(int64_t index, parameters.Find("transformer." + tensor.name));
  const TensorView view = parameters.value(index);
  return std::span(view.As<float>(), static_cast<size_t>(view.shape.Elements()));
}

}  // namespace

Status ImportWeights(Env& env, const std::string& folder, LanguageModel& model) {
  return ImportGpt2(env, folder, model.spec(),
                    [&](const Gpt2Tensor& tensor) { return Values(model.parameters(), tensor); });
}

Status ExportWeights(Env& env, const std::string& folder, LanguageModel& model,
                     const Gpt2ExportOptions& options) {
  return ExportGpt2(
      env, folder, model.spec(),
      [&](const Gpt2Tensor& tensor) -> Result<std::span<const float>> {
        WEFT_ASSIGN_OR_RETURN(std::span<float> values, Values(model.parameters(), tensor));
        return std::span<const float>(values);
      },
      options);
}

}  // namespace weft::engine
