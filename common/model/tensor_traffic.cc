#include "common/model/tensor_traffic.h"

#include <algorithm>
#include <tuple>

#include "common/model/model_counts.h"
#include "common/spec/compatibility.h"
#include "common/spec/tensor_parallel.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;
constexpr int64_t kSoftmaxNumbers = 3;

/// What a pass goes through.
struct Pass {
  int64_t tokens;
  int64_t element;
  int64_t forward;   ///< Blocks, as often as they are computed.
  int64_t attended;  ///< Inputs of attention, likewise.
  int64_t backward;  ///< Blocks that have a backward pass.

  explicit Pass(const MemoryInputs& inputs)
      : tokens(inputs.micro_batch * inputs.sequence_length),
        element(ElementBytes(inputs.precision->activations)) {
    const int64_t layers = inputs.shape.spec.layers;
    const bool planned = !inputs.remat.empty();
    const int64_t blocks = planned ? ReplayedBlocks(inputs.remat) : inputs.recomputed_blocks;
    const int64_t attentions = planned ? ReplayedAttentions(inputs.remat) : inputs.attention_blocks;
    forward = layers + blocks;
    attended = forward + attentions;
    backward = layers - inputs.shape.first_trained_layer;
  }
};

void AddSums(TensorTraffic& traffic, int64_t count, int64_t bytes) {
  traffic.sums += count;
  traffic.summed += count * bytes;
}

int64_t Sent(const TensorTraffic& traffic, int64_t ranks) {
  return (2 * traffic.summed + traffic.gathered) / ranks * (ranks - 1);
}

}  // namespace

TensorTraffic TrafficOfRow(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  TensorTraffic traffic;
  if (shape.TensorColumns() == 1) return traffic;
  const Pass pass(inputs);
  // The residual stream twice a block in each direction, the embedding, and the gradient of what
  // the classifier reads.
  const int64_t stream = pass.tokens * pass.element * shape.spec.width / shape.tensor_rows;
  const int64_t ends = (shape.embeds ? 1 : 0) + (shape.has_head ? 1 : 0);
  AddSums(traffic, 2 * pass.forward + 2 * pass.backward + ends, stream);
  if (!shape.has_head) return traffic;
  const int64_t chunk = LogitsChunkRows(shape.PaddedClasses(), pass.tokens, pass.element);
  traffic.gathers = (pass.tokens + chunk - 1) / chunk;
  traffic.gathered = shape.TensorColumns() * kSoftmaxNumbers * kF32 * pass.tokens;
  return traffic;
}

TensorTraffic TrafficOfColumn(const MemoryInputs& inputs) {
  const ModelShape& shape = inputs.shape;
  const ModelSpec& model = shape.spec;
  TensorTraffic traffic;
  if (shape.tensor_rows == 1) return traffic;
  const Pass pass(inputs);
  const int64_t column = pass.tokens * pass.element / shape.TensorColumns();
  const int64_t inner = column * MlpWidth(model);
  AddSums(traffic, pass.attended, column * (model.width + 2 * KvWidth(model)));
  AddSums(traffic, pass.forward, MlpInputs(model) * inner);
  AddSums(traffic, pass.backward, column * model.width);
  AddSums(traffic, pass.backward, inner);
  if (shape.has_head) {
    const int64_t chunk = LogitsChunkRows(shape.PaddedClasses(), pass.tokens, pass.element);
    traffic.sums += (pass.tokens + chunk - 1) / chunk;
    traffic.summed += pass.tokens * pass.element * shape.PaddedClasses();
  }
  // Of each row of a norm its statistics, and backward two sums.
  const int64_t numbers = kF32 * pass.tokens * (model.family == "llama" ? 1 : 2);
  const int64_t last = shape.has_head && NormPositionOf(model) == "pre" ? 1 : 0;
  traffic.gathers = 2 * pass.forward + last;
  traffic.gathered = traffic.gathers * shape.tensor_rows * numbers;
  AddSums(traffic, 2 * pass.backward + last, numbers);
  return traffic;
}

std::vector<TensorGrid> RankTensorGrids(const MemoryInputs& inputs) {
  std::vector<TensorGrid> grids;
  MemoryInputs one = inputs;
  JobSpec job;
  job.model = inputs.shape.spec;
  job.model.import_path.clear();
  job.resources.tensor_parallel = inputs.shape.tensor;
  for (int64_t rows = 1; rows <= inputs.shape.tensor; ++rows) {
    one.shape.tensor_rows = job.resources.tensor_rows = rows;
    if (inputs.shape.tensor % rows != 0 || !CheckCompatibility(job).ok() ||
        !CheckTensorParallel(job.model, inputs.shape.tensor, rows).ok()) {
      continue;
    }
    grids.push_back({rows, Sent(TrafficOfRow(one), one.shape.TensorColumns()) +
                               Sent(TrafficOfColumn(one), rows)});
  }
  std::sort(grids.begin(), grids.end(), [](const TensorGrid& a, const TensorGrid& b) {
    return std::tie(a.sent, a.rows) < std::tie(b.sent, b.rows);
  });
  return grids;
}

}  // namespace weft
