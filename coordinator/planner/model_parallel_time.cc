#include "coordinator/planner/model_parallel_time.h"

#include <algorithm>

#include "common/model/tensor_traffic.h"
#include "common/number.h"
#include "coordinator/planner/rank_groups.h"

namespace weft::planner {
namespace {

/// Seconds of what tensor-parallel ranks exchange in `pass`.
double TensorPassSeconds(const TensorPass& pass, const StepInputs& inputs, const StepRates& rates) {
  const auto seconds = [&](const TensorTraffic& traffic, int64_t ranks, int64_t span) {
    return rates.CollectiveSeconds(inputs.place(), GroupOf(inputs, ranks, span),
                                   {.all_reduces = D(traffic.sums),
                                    .reduced_bytes = D(traffic.summed),
                                    .gathers = D(traffic.gathers),
                                    .gathered_bytes = D(traffic.gathered)});
  };
  // The ranks of a row are successive ones.
  const ModelShape& shape = pass.shape;
  return seconds(TrafficOfRow(pass), shape.TensorColumns(), shape.TensorColumns()) +
         seconds(TrafficOfColumn(pass), shape.tensor_rows, shape.tensor);
}

}  // namespace

double TensorSeconds(const StepInputs& inputs, const StepRates& rates) {
  if (inputs.shape.tensor == 1) return 0;
  const TensorPass pass{.shape = inputs.shape,
                        .tokens = inputs.tokens,
                        .element_bytes = ElementBytes(inputs.precision->activations),
                        .recomputed_blocks = inputs.recomputed_blocks,
                        .recomputed_attentions = inputs.recomputed_attentions};
  const double seconds = TensorPassSeconds(pass, inputs, rates);
  if (!inputs.second_pass) return seconds;
  // It computes, and recomputes, the first blocks alone.
  const int64_t layers = inputs.second_pass->layers;
  ModelShape smaller = inputs.shape;
  smaller.spec.layers = layers;
  smaller.first_trained_layer = std::min(smaller.first_trained_layer, layers);
  const int64_t recomputed = std::min(inputs.recomputed_blocks, layers);
  const TensorPass second{
      .shape = smaller,
      .tokens = pass.tokens,
      .element_bytes = pass.element_bytes,
      .recomputed_blocks = recomputed,
      .recomputed_attentions = std::min(inputs.recomputed_attentions, layers - recomputed)};
  return seconds + inputs.second_pass->share * TensorPassSeconds(second, inputs, rates);
}

double ContextSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates) {
  if (inputs.context.ranks == 1) return 0;
  const ModelSpec& model = inputs.shape.spec;
  const RankPlace place = inputs.place();
  const int64_t element = ElementBytes(inputs.precision->activations);
  const double product = rates.Slowdown(place) * pass.attention_product_seconds;
  // Tensor-parallel ranks are between them.
  const int64_t span = inputs.context.ranks * inputs.shape.tensor;
  const RankGroup group = GroupOf(inputs, inputs.context.ranks, span);
  const Wire wire = rates.PointToPoint(place, group);
  const auto exposed = [&](const ContextTraffic& traffic, double products) {
    const double seconds =
        D(traffic.sent) / wire.bytes_per_second + D(traffic.messages) * wire.message_seconds;
    if (inputs.context.ulysses) return seconds;
    const double hidden = rates.Overlap(place) * products * product;
    return std::max(seconds - hidden, seconds / D(traffic.messages));
  };
  const double forward = D(model.layers + inputs.recomputed_blocks + inputs.recomputed_attentions);
  const double backward = D(model.layers - inputs.shape.first_trained_layer);
  // Which experts were chosen how often, where load is balanced.
  const bool balances = model.experts > 0 && RouterAuxLossOf(model) > 0;
  const double counts =
      balances ? D(model.layers * (inputs.context.ranks - 1)) * wire.message_seconds : 0;
  return counts +
         forward *
             exposed(ForwardTraffic(inputs.shape, inputs.context, inputs.tokens, element), 2) +
         backward *
             exposed(BackwardTraffic(inputs.shape, inputs.context, inputs.tokens, element), 5);
}

double ExpertSeconds(const StepInputs& inputs, const StepRates& rates) {
  const ModelSpec& model = inputs.shape.spec;
  const int64_t ranks = inputs.shape.expert_ranks;
  if (ranks == 1) return 0;
  const RankPlace place = inputs.place();
  // Tensor-parallel and context-parallel ranks are between them.
  const int64_t apart = inputs.shape.tensor * inputs.context.ranks;
  const RankGroup group = GroupOf(inputs, ranks, ranks * apart);
  const double rows = D(inputs.tokens * model.experts_per_token * model.width *
                        ElementBytes(inputs.precision->activations));
  // A message for each expert of another rank.
  const double messages = D(ranks - 1) * D(model.experts / ranks);
  const double forward = D(model.layers + inputs.recomputed_blocks);
  const double backward = D(model.layers - inputs.shape.first_trained_layer);
  return 2 * (forward + backward) * rates.AllToAllSeconds(place, group, rows, messages) +
         rates.CountExchangeSeconds(place, group, forward, 4 * D(model.experts));
}

double PartialSumSeconds(const StepInputs& inputs, const StepRates& rates) {
  const ModelShape& shape = inputs.shape;
  if (shape.partial_gradients == 0) return 0;
  return rates.AllReduceSeconds(inputs.place(), GroupOf(inputs, shape.tensor, shape.tensor),
                                4 * D(shape.partial_gradients), 1);
}

double RankedPartSeconds(const StepInputs& inputs, const PassCost& pass, const StepRates& rates) {
  const int64_t ranks = inputs.shape.tensor;
  if (ranks == 1) return 0;
  const MatrixNumbers& own = pass.ranked.scores;
  return rates.HostGatherSeconds(inputs.place(), GroupOf(inputs, ranks, ranks),
                                 4 * D(ranks) * own.numbers, own.matrices);
}

double ModelParallelSeconds(const StepInputs& inputs, const PassCost& pass,
                            const StepRates& rates) {
  return D(inputs.accumulation_steps) *
             (TensorSeconds(inputs, rates) + ExpertSeconds(inputs, rates) +
              ContextSeconds(inputs, pass, rates)) +
         PartialSumSeconds(inputs, rates) + RankedPartSeconds(inputs, pass, rates);
}

}  // namespace weft::planner
