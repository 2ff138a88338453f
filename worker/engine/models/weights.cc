#include "worker/engine/models/weights.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/formats/peft_adapter.h"
#include "worker/engine/nn/parameter_file.h"
#include "worker/engine/nn/whole_values.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

size_t Count(const TensorView& view) {
  return static_cast<size_t>(view.shape.Elements());
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

/// The first of the tensors that a layer has in place of `weight`; -1: none.
int64_t FirstInPlaceOf(const ParameterSet& parameters, const std::string& weight) {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].in_place_of == weight) return i;
  }
  return -1;
}

/// After the last of them.
int64_t EndInPlaceOf(const ParameterSet& parameters, int64_t first) {
  int64_t end = first;
  while (end < parameters.size() && parameters[end].in_place_of == parameters[first].in_place_of) {
    ++end;
  }
  return end;
}

/// The weight that the tensors from `first` on are in place of.
ParameterInfo WeightOf(const ParameterSet& parameters, int64_t first) {
  const Parameter& tensor = parameters[first];
  ParameterInfo weight;
  static_cast<ParameterAttributes&>(weight) = tensor;
  weight.name = tensor.in_place_of;
  for (int i = 0; i < tensor.weight_shape.rank; ++i) weight.shape.push_back(tensor.weight_shape[i]);
  return weight;
}

/// What the tensors from `first` on make.
Result<std::vector<float>> MadeWeight(Model& model, int64_t first) {
  const ParameterSet& parameters = model.parameters();
  std::vector<std::vector<float>> tensors;
  for (int64_t i = first; i < EndInPlaceOf(parameters, first); ++i) {
    WEFT_ASSIGN_OR_RETURN(tensors.emplace_back(), HeldFloats(parameters, i));
  }
  return model.block_products()->WeightFrom(WeightOf(parameters, first), tensors);
}

/// A weight, or a bias, with what adapters of its layer make of it; none where it has no adapters.
Result<std::vector<float>> MergedValue(Model& model, int64_t index) {
  const ParameterSet& parameters = model.parameters();
  const int64_t beside = parameters[index].bias_of;
  const int64_t weight = beside < 0 ? index : beside;
  std::vector<std::vector<float>> tensors;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].adapter_of != parameters[weight].name) continue;
    WEFT_ASSIGN_OR_RETURN(tensors.emplace_back(), HeldFloats(parameters, i));
  }
  if (tensors.empty()) return std::vector<float>();
  ParameterInfo info;
  static_cast<ParameterAttributes&>(info) = parameters[weight];
  info.name = parameters[weight].name;
  for (int i = 0; i < parameters[weight].shape.rank; ++i) {
    info.shape.push_back(parameters[weight].shape[i]);
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<float> values, HeldFloats(parameters, index));
  const ProductsFactory& products = *model.block_products();
  if (beside >= 0) return products.MergedBias(info, std::move(values), tensors);
  return products.Merged(info, values, tensors);
}

/// Fills parameters from a Hugging Face folder. Weights of another type, on a device, or wanted
/// only in part, pass through floats, one at a time: cut, rounded and brought there when the next
/// is asked for. So do those that layers have other tensors for.
class FolderReader {
 public:
  /// `products`: makes the tensors that layers have in place of weights; null: none has any.
  FolderReader(ParameterSet& parameters, const ProductsFactory* products)
      : parameters_(parameters), products_(products) {}

  /// Fills these parameters alone.
  void Want(const std::vector<std::string>& names) { wanted_.emplace(names.begin(), names.end()); }

  /// Errors as ImportModel.
  Status Read(Env& env, const std::string& folder, const ModelSpec& model, HeadWeights head) {
    const auto buffer = [this](const HuggingFaceTensor& tensor) { return Buffer(tensor); };
    WEFT_RETURN_IF_ERROR(ImportModel(env, folder, model, buffer, head));
    return SetWaiting();
  }

 private:
  /// The parameter of a tensor, or the first of those in place of it; -1: it is another rank's, or
  /// not wanted.
  Result<int64_t> IndexOf(const std::string& name) const {
    if (wanted_ && !wanted_->contains(name)) return int64_t{-1};
    const int64_t first = FirstInPlaceOf(parameters_, name);
    if (first >= 0) return first;
    const Result<int64_t> found = parameters_.Find(name);
    if (!found.ok() && !parameters_.of_stage()) return found.status();
    return found.ok() ? *found : int64_t{-1};
  }

  /// See WeightBuffer.
  Result<std::span<float>> Buffer(const HuggingFaceTensor& tensor) {
    WEFT_RETURN_IF_ERROR(SetWaiting());
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    WEFT_ASSIGN_OR_RETURN(const int64_t index, IndexOf(tensor.parameter));
    // What is not for here is read and forgotten.
    if (index >= 0) {
      const Parameter& parameter = parameters_[index];
      if (parameter.in_place_of.empty()) {
        count = static_cast<size_t>(parameter.logical_shape().Elements());
        const TensorView view = parameters_.held_value(index).view;
        if (parameters_.file() == nullptr && view.dtype == DType::kF32 &&
            view.device.type == DeviceType::kCpu && parameter.shard.whole() &&
            !parameters_.values_sharded()) {
          return std::span(view.As<float>(), Count(view));
        }
      }
      waiting_ = index;
    }
    floats_.resize(count);
    return std::span(floats_);
  }

  Status SetWaiting() {
    if (waiting_ < 0) return OkStatus();
    const int64_t index = std::exchange(waiting_, -1);
    if (parameters_[index].in_place_of.empty()) {
      return SetWholeValue(parameters_, index, std::move(floats_));
    }
    std::vector<std::vector<float>> tensors =
        products_->TensorsNearest(WeightOf(parameters_, index), floats_);
    for (size_t i = 0; i < tensors.size(); ++i) {
      WEFT_RETURN_IF_ERROR(
          SetWholeValue(parameters_, index + static_cast<int64_t>(i), std::move(tensors[i])));
    }
    return OkStatus();
  }

  ParameterSet& parameters_;
  const ProductsFactory* products_;
  std::optional<std::set<std::string>> wanted_;  ///< None: all.
  std::vector<float> floats_;
  int64_t waiting_ = -1;  ///< What floats_ are for: a parameter, or the first in place of a weight.
};

/// kInvalid where not all weights are here.
Status CheckWhole(const ParameterSet& parameters) {
  if (parameters.sharded() || parameters.values_sharded() || parameters.of_stage()) {
    return InvalidError(
        "a rank that holds a shard of the weights cannot export them; hint: export a checkpoint");
  }
  if (parameters.file() != nullptr) {
    return InvalidError(
        "weights that training keeps in a file are not exported; hint: export a checkpoint");
  }
  return OkStatus();
}

}  // namespace

Status ImportWeights(Env& env, const std::string& folder, Model& model, HeadWeights head) {
  ParameterSet& parameters = model.parameters();
  FolderReader reader(parameters, model.block_products());
  WEFT_RETURN_IF_ERROR(reader.Read(env, folder, model.spec(), head));
  Context context;
  context.stream = parameters.stream();
  return parameters.OnValues(context, ValuesFrom::kImported);
}

Status ImportBase(Env& env, const std::string& folder, const ModelSpec& model,
                  const std::vector<std::string>& names, ParameterSet& parameters) {
  WEFT_ASSIGN_OR_RETURN(const ImportedHead head, ReadHead(env, folder));
  FolderReader reader(parameters, nullptr);
  reader.Want(names);
  return reader.Read(env, folder, model,
                     HasHead(head, model) ? HeadWeights::kFromFile : HeadWeights::kLeaveAsTheyAre);
}

Status ImportAdapterWeights(Env& env, const std::string& folder, Model& model) {
  ParameterSet& parameters = model.parameters();
  std::vector<float> floats;
  int64_t waiting = -1;  // the parameter that they are for
  const auto set_waiting = [&]() -> Status {
    const int64_t index = std::exchange(waiting, -1);
    return index < 0 ? OkStatus() : SetWholeValue(parameters, index, std::move(floats));
  };
  const auto buffer = [&](const HuggingFaceTensor& tensor) -> Result<std::span<float>> {
    WEFT_RETURN_IF_ERROR(set_waiting());
    const Result<int64_t> found = parameters.Find(tensor.parameter);
    // Another rank's is read and forgotten.
    if (!found.ok() && !parameters.of_stage()) return found.status();
    waiting = found.ok() ? *found : -1;
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    // A table may have more rows here.
    if (waiting >= 0) count = static_cast<size_t>(parameters[waiting].logical_shape().Elements());
    floats.assign(count, 0);
    return std::span(floats);
  };
  WEFT_RETURN_IF_ERROR(ImportAdapter(env, folder, model.spec(), buffer));
  return set_waiting();
}

Status ExportAdapterWeights(Env& env, const std::string& folder, Model& model,
                            const AdapterOrigin& origin) {
  const ParameterSet& parameters = model.parameters();
  WEFT_RETURN_IF_ERROR(CheckWhole(parameters));
  std::vector<float> floats;
  return ExportAdapter(env, folder, model.spec(), origin,
                       [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
                         WEFT_ASSIGN_OR_RETURN(const int64_t index,
                                               parameters.Find(tensor.parameter));
                         WEFT_ASSIGN_OR_RETURN(floats, HeldFloats(parameters, index));
                         return std::span<const float>(floats);
                       });
}

Status ExportWeights(Env& env, const std::string& folder, Model& model,
                     const ExportOptions& options) {
  const ParameterSet& parameters = model.parameters();
  WEFT_RETURN_IF_ERROR(CheckWhole(parameters));
  for (const Parameter& parameter : parameters) {
    if (parameter.adapter != AdapterSide::kNeither || !parameter.adapter_of.empty()) continue;
    return InvalidError("model.peft.method " + model.spec().peft.method + " trains '" +
                        parameter.name +
                        "', and there are no weights of the network that do the same; hint: "
                        "--format peft, for the adapter alone");
  }
  for (const Parameter& parameter : parameters) {
    if (parameter.row_parts == 1) continue;
    return InvalidError("the network has several adapters; hint: the model with one of them");
  }
  std::vector<float> floats;
  HostCopy copy;
  return ExportModel(
      env, folder, model.spec(),
      [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
        const int64_t first = FirstInPlaceOf(parameters, tensor.parameter);
        if (first >= 0) {
          WEFT_ASSIGN_OR_RETURN(floats, MadeWeight(model, first));
          WEFT_ASSIGN_OR_RETURN(const std::vector<float> factors, BranchScale(parameters, first));
          if (!factors.empty()) ScaleRows(factors, floats, tensor.shape[0]);
          return std::span<const float>(floats);
        }
        WEFT_ASSIGN_OR_RETURN(const int64_t index, parameters.Find(tensor.parameter));
        const TensorView view = parameters.held_value(index).view;
        // Files have no such factors: they go into the layer before them.
        WEFT_ASSIGN_OR_RETURN(const std::vector<float> factors, BranchScale(parameters, index));
        WEFT_ASSIGN_OR_RETURN(floats, MergedValue(model, index));
        if (floats.empty() && parameters[index].quantized_words > 0) {
          WEFT_ASSIGN_OR_RETURN(floats, HeldFloats(parameters, index));
        }
        if (!floats.empty()) {
          if (!factors.empty()) ScaleRows(factors, floats, tensor.shape[0]);
          return std::span<const float>(floats);
        }
        if (view.dtype == DType::kF32 && factors.empty()) {
          WEFT_ASSIGN_OR_RETURN(copy, HostCopy::Of(model.parameters().stream(), view));
          return std::span<const float>(copy.view().As<float>(), Count(view));
        }
        WEFT_ASSIGN_OR_RETURN(floats, HeldFloats(parameters, index));
        if (!factors.empty()) ScaleRows(factors, floats, view.shape[0]);
        return std::span<const float>(floats);
      },
      options);
}

}  // namespace weft::engine
