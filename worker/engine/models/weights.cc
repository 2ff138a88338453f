#include "worker/engine/models/weights.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

// The part of `floats` that `shard`, of this shape, is.
std::vector<float> PartOf(const std::vector<float>& floats, const Shard& shard,
                          const Shape& shape) {
  std::vector<float> part(static_cast<size_t>(shape.Elements()));
  shard.ForEachRun(shape, [&](int64_t to, int64_t from, int64_t count) {
    std::copy_n(floats.begin() + from, count, part.begin() + to);
  });
  return part;
}

size_t Count(const TensorView& view) {
  return static_cast<size_t>(view.shape.Elements());
}

TensorView ViewOf(std::vector<float>& floats) {
  return {floats.data(), DType::kF32, {static_cast<int64_t>(floats.size())}};
}

TensorView Flat(TensorView view) {
  view.shape = {view.shape.Elements()};
  view.row_stride = view.shape[0];
  return view;
}

// The trained factors of the residual branch that `parameter` ends, by row or one for all; none
// where there are none.
Result<std::vector<float>> BranchScale(const ParameterSet& parameters, int64_t parameter) {
  const ParameterAttributes& ends = parameters[parameter];
  std::vector<float> factors;
  if (!EndsSubLayer(ends.role)) return factors;
  const ParameterRole role = ends.role == ParameterRole::kAttentionOutput
                                 ? ParameterRole::kAttentionScale
                                 : ParameterRole::kMlpScale;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const ParameterAttributes& scale = parameters[i];
    if (scale.role != role || scale.bias || scale.block != ends.block) continue;
    const TensorView view = parameters.value(i);
    factors.resize(Count(view));
    WEFT_RETURN_IF_ERROR(Download(parameters.stream(), view, factors.data()));
  }
  return factors;
}

void ScaleRows(std::span<const float> factors, std::vector<float>& values, int64_t rows) {
  const size_t columns = values.size() / static_cast<size_t>(rows);
  for (size_t i = 0; i < values.size(); ++i) {
    values[i] *= factors.size() == 1 ? factors[0] : factors[i / columns];
  }
}

/// Replaces a value that stands in a file.
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

Status ImportWeights(Env& env, const std::string& folder, Model& model, HeadWeights head) {
  // Weights of another type, on a device, or of which only a part is wanted, pass through floats,
  // one at a time: cut, rounded and brought there when the next is asked for.
  std::vector<float> floats;
  TensorView waiting;
  int64_t waiting_for_file = -1;  // the parameter that it is then of
  Shard shard;                    // of ranks that share matrices,
  Shape shape;                    // of that part,
  Shard::Range held;              // and of its elements those of ranks that share values
  const auto round_waiting = [&]() -> Status {
    if (!waiting && waiting_for_file < 0) return OkStatus();
    if (!shard.whole()) floats = PartOf(floats, shard, shape);
    if (held.begin > 0 || held.end < std::ssize(floats)) {
      floats = {floats.begin() + held.begin, floats.begin() + held.end};
    }
    if (waiting_for_file >= 0) {
      return WriteToFile(model.parameters(), std::exchange(waiting_for_file, -1), floats);
    }
    Status rounded;
    WEFT_RETURN_IF_ERROR(FillOnHost(model.parameters().stream(), Flat(std::exchange(waiting, {})),
                                    [&](const TensorView& host) {
                                      rounded = kernels::Cast({}, {ViewOf(floats), host});
                                    }));
    return rounded;
  };
  const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    WEFT_RETURN_IF_ERROR(round_waiting());
    if (model.parameters().of_stage() && !model.parameters().Find(tensor.parameter).ok()) {
      // Another rank's: read and forgotten.
      int64_t count = 1;
      for (const int64_t extent : tensor.shape) count *= extent;
      floats.resize(static_cast<size_t>(count));
      return std::span(floats);
    }
    WEFT_ASSIGN_OR_RETURN(const int64_t index, model.parameters().Find(tensor.parameter));
    const Parameter& parameter = model.parameters()[index];
    const ParameterSet::HeldValue value = model.parameters().held_value(index);
    const TensorView view = value.view;
    shard = parameter.shard;
    shape = parameter.shape;
    held = {0, shape.Elements()};
    const bool shares = model.parameters().values_sharded();
    if (shares) held = {value.first, value.first + view.shape.Elements()};
    const bool in_file = model.parameters().file() != nullptr;
    if (in_file) waiting_for_file = index;
    if (!in_file && view.dtype == DType::kF32 && view.device.type == DeviceType::kCpu &&
        shard.whole() && !shares) {
      return std::span(view.As<float>(), Count(view));
    }
    waiting = view;
    floats.resize(static_cast<size_t>(parameter.logical_shape().Elements()));
    return std::span(floats);
  };
  WEFT_RETURN_IF_ERROR(ImportModel(env, folder, model.spec(), buffer, head));
  WEFT_RETURN_IF_ERROR(round_waiting());
  Context context;
  context.stream = model.parameters().stream();
  return model.parameters().OnValues(context, ValuesFrom::kImported);
}

Status ExportWeights(Env& env, const std::string& folder, Model& model,
                     const ExportOptions& options) {
  const ParameterSet& parameters = model.parameters();
  if (parameters.sharded() || parameters.values_sharded() || parameters.of_stage()) {
    return InvalidError(
        "a rank that shares the weights with others cannot export them; hint: "
        "export a checkpoint");
  }
  if (parameters.file() != nullptr) {
    return InvalidError(
        "weights that stand in a file beside the training are not exported; hint: export a "
        "checkpoint");
  }
  std::vector<float> floats;
  HostCopy copy;
  return ExportModel(
      env, folder, model.spec(),
      [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
        WEFT_ASSIGN_OR_RETURN(const int64_t index, parameters.Find(tensor.parameter));
        const TensorView view = parameters.held_value(index).view;
        // Files have no such factors: they go into the layer before them.
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> factors, BranchScale(parameters, index));
        WEFT_ASSIGN_OR_RETURN(copy, HostCopy::Of(model.parameters().stream(), view));
        if (view.dtype == DType::kF32 && factors.empty()) {
          return std::span<const float>(copy.view().As<float>(), Count(view));
        }
        floats.resize(Count(view));
        WEFT_RETURN_IF_ERROR(kernels::Cast({}, {Flat(copy.view()), ViewOf(floats)}));
        if (!factors.empty()) ScaleRows(factors, floats, view.shape[0]);
        return std::span<const float>(floats);
      },
      options);
}

}  // namespace weft::engine
