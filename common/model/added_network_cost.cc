#include "common/model/added_network_cost.h"

#include <algorithm>

#include "common/model/activation_numbers.h"
#include "common/model/model_counts.h"
#include "common/model/model_sizes.h"
#include "common/model/operand_memory.h"
#include "common/model/pass_memory.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// Cuts the packed copy of the classifier to the rows that one of `ranks` ranks has.
void CutClassifier(ModelShape& shape, int64_t ranks) {
  const ModelSpec& model = shape.spec;
  const int64_t columns = model.untied_classifier ? model.width : EmbeddingWidth(model);
  const auto add = [&](int64_t rows, int64_t times) {
    ParameterInfo matrix;
    matrix.shape = {rows, columns};
    matrix.product_rows = rows;
    const int64_t numbers = times * matrix.Elements();
    shape.packed += numbers;
    if (matrix.in_tiles()) shape.packed_in_tiles += numbers;
    shape.packed_padding.Add(matrix.packed_padding(), times);
  };
  add(shape.PaddedClasses(), -1);
  add((model.vocab_size + ranks - 1) / ranks, 1);
}

}  // namespace

std::optional<ModelShape> AddedNetworkShape(const TrainSpec& train) {
  const std::optional<AddedNetwork> added = AddedNetworkOf(train);
  if (!added) return std::nullopt;
  JobSpec job;
  job.model = *added->model;
  return ShapeOf(job);
}

AddedNetworkBytes AddedNetworkBytesOf(const MemoryInputs& inputs) {
  if (!inputs.added_network) return {};
  constexpr int64_t kF32 = 4;
  MemoryInputs own;
  own.shape = *inputs.added_network;
  own.micro_batch = inputs.micro_batch;
  own.sequence_length = inputs.sequence_length;
  own.threads = inputs.threads;
  own.precision = inputs.precision;
  own.products = inputs.products;
  if (inputs.shape.TensorColumns() > 1) CutClassifier(own.shape, inputs.shape.TensorColumns());
  const ModelShape& shape = own.shape;
  AddedNetworkBytes bytes;
  bytes.packed = PackedBytes(own);
  bytes.parameters = ElementBytes(own.precision->matrices) * shape.stored_matrices +
                     kF32 * (shape.stored - shape.stored_matrices) + bytes.packed;
  if (shape.spec.family == "llama") {
    // Cosines and sines of the rotary positions.
    bytes.parameters += kF32 * shape.spec.context * HeadWidth(shape.spec);
  }
  // Queries, keys and values are free again when the MLP runs.
  const PassSizes size(own);
  const int64_t inner = shape.spec.experts > 0 ? size.active : size.inner;
  bytes.pass = EvaluationBytes(own) - std::min(size.qkv, inner + size.before + size.passed);
  bytes.hidden = size.row;
  return bytes;
}

double AddedNetworkFlopsPerToken(const TrainSpec& train, int64_t sequence_length) {
  const std::optional<ModelShape> shape = AddedNetworkShape(train);
  // A third of forward and backward.
  return shape ? TrainingFlopsPerToken(*shape, sequence_length) / 3 : 0;
}

}  // namespace weft
