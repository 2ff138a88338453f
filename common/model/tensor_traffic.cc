#include "common/model/tensor_traffic.h"

#include <algorithm>
#include <tuple>

#include "common/model/model_counts.h"
#include "common/model/parameter_list.h"
#include "common/spec/compatibility.h"
#include "common/spec/tensor_parallel.h"

namespace weft {
namespace {

constexpr int64_t kF32 = 4;
constexpr int64_t kSoftmaxNumbers = 3;

/// How often a pass computes its blocks.
struct Blocks {
  int64_t forward;   ///< Recomputed ones count twice.
  int64_t attended;  ///< Inputs of attention, likewise.
  int64_t backward;  ///< Blocks that have a backward pass.

  explicit Blocks(const TensorPass& pass)
      : forward(pass.shape.spec.layers + pass.recomputed_blocks),
        attended(forward + pass.recomputed_attentions),
        backward(pass.shape.spec.layers - pass.shape.first_trained_layer) {}
};

/// Counts the sums that nothing waits for, of the two in the backward pass of the first trained
/// block: nothing before the products of attention, or of the MLP, is trained.
int64_t SumsOfNothing(const ModelShape& shape) {
  if (shape.trained_before || shape.first_trained_layer >= shape.spec.layers) return 0;
  if (!FreezesAny(shape.spec)) return 0;  // without going through the parameters
  int64_t block = -1;
  bool after_attention = false;
  for (const ParameterInfo& parameter : ParametersOf(shape.spec)) {
    if (parameter.block != block) after_attention = false;
    block = parameter.block;
    after_attention = after_attention || IsAttention(parameter.role);
    if (parameter.frozen) continue;
    if (block < 0) return 0;
    if (IsMlp(parameter.role) || parameter.role == ParameterRole::kRouter) return 2;
    return after_attention ? 1 : 0;
  }
  return 0;
}

void AddSums(TensorTraffic& traffic, int64_t count, int64_t bytes) {
  traffic.sums += count;
  traffic.summed += count * bytes;
}

int64_t Sent(const TensorTraffic& traffic, int64_t ranks) {
  return (2 * traffic.summed + traffic.gathered) / ranks * (ranks - 1);
}

/// In how many pieces the logits are computed.
int64_t LogitsChunks(const TensorPass& pass) {
  const int64_t rows = LogitsChunkRows(pass.shape.PaddedClasses(), pass.tokens, pass.element_bytes);
  return (pass.tokens + rows - 1) / rows;
}

}  // namespace

TensorPass TensorPassOf(const MemoryInputs& inputs) {
  const bool planned = !inputs.remat.empty();
  return {
      .shape = inputs.shape,
      .tokens = inputs.micro_batch * inputs.sequence_length,
      .element_bytes = ElementBytes(inputs.precision->activations),
      .recomputed_blocks = planned ? ReplayedBlocks(inputs.remat) : inputs.recomputed_blocks,
      .recomputed_attentions = planned ? ReplayedAttentions(inputs.remat) : inputs.attention_blocks,
  };
}

TensorTraffic TrafficOfRow(const TensorPass& pass) {
  const ModelShape& shape = pass.shape;
  TensorTraffic traffic;
  if (shape.TensorColumns() == 1) return traffic;
  const Blocks blocks(pass);
  // The residual stream twice a block in each direction, the embedding, and the gradient of what
  // the classifier reads.
  const int64_t stream = pass.tokens * pass.element_bytes * shape.spec.width / shape.tensor_rows;
  const int64_t ends = (shape.embeds ? 1 : 0) + (shape.has_head ? 1 : 0);
  const int64_t backward = 2 * blocks.backward - SumsOfNothing(shape);
  AddSums(traffic, 2 * blocks.forward + backward + ends, stream);
  if (!shape.has_head) return traffic;
  traffic.gathers = LogitsChunks(pass);
  traffic.gathered = shape.TensorColumns() * kSoftmaxNumbers * kF32 * pass.tokens;
  return traffic;
}

TensorTraffic TrafficOfColumn(const TensorPass& pass) {
  const ModelShape& shape = pass.shape;
  const ModelSpec& model = shape.spec;
  TensorTraffic traffic;
  if (shape.tensor_rows == 1) return traffic;
  const Blocks blocks(pass);
  const int64_t column = pass.tokens * pass.element_bytes / shape.TensorColumns();
  const int64_t inner = column * MlpWidth(model);
  AddSums(traffic, blocks.attended, column * QkvWidth(model));
  AddSums(traffic, blocks.forward, MlpInputs(model) * inner);
  AddSums(traffic, blocks.backward, column * model.width);
  AddSums(traffic, blocks.backward, inner);
  if (shape.has_head) {
    traffic.sums += LogitsChunks(pass);
    traffic.summed += pass.tokens * pass.element_bytes * shape.PaddedClasses();
  }
  // Each row of a norm sends its statistics, and in the backward pass two sums.
  const int64_t numbers = kF32 * pass.tokens * (model.family == "llama" ? 1 : 2);
  const int64_t last = shape.has_head && NormPositionOf(model) == "pre" ? 1 : 0;
  traffic.gathers = 2 * blocks.forward + last;
  traffic.gathered = traffic.gathers * shape.tensor_rows * numbers;
  AddSums(traffic, 2 * blocks.backward + last, numbers);
  return traffic;
}

std::vector<TensorParallel2d> RankTensorParallel2d(const TensorPass& pass) {
  std::vector<TensorParallel2d> grids;
  ModelShape shape = pass.shape;
  const TensorPass one{shape, pass.tokens, pass.element_bytes, pass.recomputed_blocks,
                       pass.recomputed_attentions};
  JobSpec job;
  job.model = shape.spec;
  job.model.import_path.clear();
  job.resources.tensor_parallel = shape.tensor;
  for (int64_t rows = 1; rows <= shape.tensor; ++rows) {
    shape.tensor_rows = job.resources.tensor_rows = rows;
    if (shape.tensor % rows != 0 || !CheckCompatibility(job).ok() ||
        !CheckTensorParallel(job.model, shape.tensor, rows).ok()) {
      continue;
    }
    grids.push_back(
        {rows, Sent(TrafficOfRow(one), shape.TensorColumns()) + Sent(TrafficOfColumn(one), rows)});
  }
  std::sort(grids.begin(), grids.end(), [](const TensorParallel2d& a, const TensorParallel2d& b) {
    return std::tie(a.sent, a.rows) < std::tie(b.sent, b.rows);
  });
  return grids;
}

}  // namespace weft
