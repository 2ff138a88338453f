#include "worker/engine/techniques/peft/adapter_starts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "worker/engine/nn/whole_values.h"
#include "worker/engine/techniques/peft/matrix_factors.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"

namespace weft::engine {
namespace {

/// All of a weight: `tensor_ranks`, if any, have a part of it each.
Result<DoubleMatrix> ValueOf(const ParameterSet& parameters, int64_t index,
                             Collective* tensor_ranks) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<float> floats,
                        WholeValue(parameters, index, tensor_ranks));
  const Shape shape = parameters[index].logical_shape();
  DoubleMatrix matrix(shape[0], shape[1]);
  std::copy(floats.begin(), floats.end(), matrix.values.begin());
  return matrix;
}

Status SetValueOf(ParameterSet& parameters, int64_t index, const std::vector<double>& values) {
  return SetWholeValue(parameters, index, {values.begin(), values.end()});
}

/// The parameter of this name has been registered.
int64_t IndexOf(const ParameterSet& parameters, const std::string& name) {
  const Result<int64_t> index = parameters.Find(name);
  WEFT_CHECK(index.ok(), name);
  return *index;
}

/// Begins with A at index `first`, then B. Takes them off `value`, that of the weight, and stores
/// the rest. Then `value` is what the layer multiplies by, with its factors: where the rest has
/// been quantised, not what it was.
Status StartFactors(const PeftSpec& spec, ParameterSet& parameters, int64_t first, int64_t weight,
                    Collective* tensor_ranks, DoubleMatrix& value) {
  const int64_t rank = parameters[first].shape[0];
  const double scale = LoraScale(spec, parameters[first].adapter_of);
  MatrixFactors factors =
      spec.init == "pissa" ? LargestSingularValues(value, rank) : FirstOfQr(value, rank);
  // Singular values contain the scale.
  if (spec.init == "pissa") {
    for (double& each : factors.a.values) each /= std::sqrt(scale);
    for (double& each : factors.b.values) each /= std::sqrt(scale);
  }
  const DoubleMatrix product = Times(factors.b, factors.a);
  DoubleMatrix rest = value;
  for (size_t i = 0; i < rest.values.size(); ++i) rest.values[i] -= scale * product.values[i];
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, first, factors.a.values));
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, first + 1, factors.b.values));
  WEFT_RETURN_IF_ERROR(SetValueOf(parameters, weight, rest.values));
  if (parameters[weight].quantized_words == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(value, ValueOf(parameters, weight, tensor_ranks));
  for (size_t i = 0; i < value.values.size(); ++i) value.values[i] += scale * product.values[i];
  return OkStatus();
}

}  // namespace

bool StartsFromWeights(const PeftSpec& spec) {
  return spec.method == "lora" && (spec.use_dora || DecomposesWeights(spec));
}

Status StartFromWeights(Context& context, const PeftSpec& spec, ParameterSet& parameters,
                        Collective* tensor_ranks) {
  const auto start = [&](int64_t index) -> Status {
    const int64_t weight = IndexOf(parameters, parameters[index].adapter_of);
    WEFT_ASSIGN_OR_RETURN(DoubleMatrix value, ValueOf(parameters, weight, tensor_ranks));
    if (DecomposesWeights(spec)) {
      WEFT_RETURN_IF_ERROR(StartFactors(spec, parameters, index, weight, tensor_ranks, value));
    }
    if (!spec.use_dora) return OkStatus();
    std::vector<double> lengths;
    for (int64_t row = 0; row < value.rows; ++row) {
      lengths.push_back(std::sqrt(Dot(value.row(row), value.row(row), value.columns)));
    }
    return SetValueOf(parameters, index + 2, lengths);
  };
  return ForEachUnit(context, parameters, [&](int64_t unit) -> Status {
    for (int64_t i = 0; i < parameters.size(); ++i) {
      if (parameters[i].unit != unit || parameters[i].adapter != AdapterSide::kInput) continue;
      WEFT_RETURN_IF_ERROR(start(i));
    }
    return OkStatus();
  });
}

}  // namespace weft::engine
