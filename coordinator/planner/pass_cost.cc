#include "coordinator/planner/pass_cost.h"

#include <cmath>
#include <optional>
#include <string>

#include "common/model/added_network_cost.h"
#include "common/model/model_counts.h"
#include "common/model/technique_cost.h"

namespace weft::planner {
namespace {

/// What is of all layers is divided by this for one of them.
double AtLeastOneLayer(const ModelShape& shape) {
  return D(std::max<int64_t>(shape.spec.layers, 1));
}

/// Whether the products of `pass` are dense where the technique's other products are its own.
bool StaysDense(const TechniqueProducts& techniques, GemmPass pass) {
  return (techniques.dense_weight_gradients && pass == GemmPass::kWeightGradient) ||
         (techniques.dense_input_gradients && pass == GemmPass::kInputGradient);
}

/// Adds the products with weights. `computed`: of the work of sub-layers; likewise below. Of
/// `tokens`, in sequences of `sequence_length`, the share `classified` reaches the classifier.
void AddWeightProducts(const ModelShape& shape, int64_t tokens, int64_t sequence_length,
                       double classified, const PrecisionRecipe& precision,
                       const ComputedShares& computed, const StepRates& rates, int64_t threads,
                       const TechniqueProducts& techniques, PassCost& cost) {
  const int64_t element = ElementBytes(precision.activations);
  const double layers = AtLeastOneLayer(shape);
  for (const Gemm& gemm : WeightGemms(shape, tokens, sequence_length, element)) {
    double seconds = gemm.Flops() / rates.GemmFlopsPerSecond(gemm.m, gemm.n, gemm.k, threads);
    const bool in_blocks = IsAttention(gemm.role) || IsMlp(gemm.role);
    if (cost.format_share > 0 && in_blocks && !gemm.of_adapter) {
      const double in_format = D(gemm.count) * rates.FormatProductSeconds(*precision.block_products,
                                                                          gemm.m, gemm.n, gemm.k);
      seconds += cost.format_share * (in_format - seconds);
    }
    if (!StaysDense(techniques, gemm.pass) &&
        (techniques.attention ? in_blocks : IsMlp(gemm.role))) {
      const double rate = techniques.rate_name.empty()
                              ? 0
                              : rates.TechniqueFlopsPerSecond(techniques.rate_name, gemm.pass,
                                                              gemm.m, gemm.n, gemm.k, threads);
      const double own = rate > 0 ? techniques.measured_share * gemm.Flops() / rate
                                  : techniques.seconds_share * seconds;
      seconds += (1 - techniques.dense_share) * (own - seconds);
    }
    // The classifier's columns are already those of a rank; each has the whole router.
    const bool classifies = gemm.role == ParameterRole::kClassifier;
    const bool whole = classifies || gemm.role == ParameterRole::kRouter;
    seconds /= D(whole ? shape.tensor_rows : shape.tensor);
    seconds *= ComputedShare(computed, gemm.role);
    if (classifies) seconds *= classified;
    cost.gemm_seconds += seconds;
    if (gemm.pass != GemmPass::kForward) {
      cost.backward_gemm_seconds += seconds;
    } else if (!classifies) {
      cost.block_forward_gemm_seconds += seconds / layers;
      if (gemm.role == ParameterRole::kQueriesKeysValues) {
        cost.attention_forward_gemm_seconds += seconds / layers;
      }
    }
  }
}

/// Seconds to draw which weights of a layer's attention are dropped, where one of its products has
/// `product_flops` FLOPs. A draw takes as long as kFlopsOfDraw FLOPs of a product in f32 (Philox, a
/// block for 8 weights).
double SecondsOfDraws(const ModelSpec& model, double product_flops, const StepRates& rates,
                      int64_t threads) {
  if (AttentionDropoutOf(model) == 0) return 0;
  constexpr double kFlopsOfDraw = 50;
  constexpr int64_t kLarge = 1024;
  const double weights = product_flops / (2 * D(HeadWidth(model)));
  return weights * kFlopsOfDraw /
         rates.GemmFlopsPerSecond(DType::kF32, kLarge, kLarge, kLarge, threads);
}

/// Layers that have a backward pass.
double BackwardLayers(const ModelShape& shape) {
  return D(shape.spec.layers - shape.first_trained_layer);
}

/// Adds attention: 2 products forward, 5 backward (flash attention computes the scores again). Its
/// dropout is drawn again in the backward pass. Each query has `more_keys` besides those of its
/// sequence.
void AddAttention(const ModelShape& shape, int64_t tokens, int64_t sequence_length,
                  int64_t more_keys, const ComputedShares& computed, const StepRates& rates,
                  int64_t threads, PassCost& cost) {
  const ModelSpec& model = shape.spec;
  const double product_flops = (TwiceTheKeys(model, sequence_length) + 2 * D(more_keys)) *
                               D(QueryWidth(model)) * D(tokens) / D(shape.TensorColumns());
  const double product = product_flops / rates.AttentionFlopsPerSecond(threads);
  const double draw = SecondsOfDraws(model, product_flops, rates, threads);
  const double forward_layer = computed.attention * (2 * product + draw);
  const double backward_layer =
      computed.attention * (5 * product + rates.backward_dropout_draws() * draw);
  const double backward_layers = BackwardLayers(shape);
  cost.gemm_seconds += D(model.layers) * forward_layer + backward_layers * backward_layer;
  cost.backward_gemm_seconds += backward_layers * backward_layer;
  cost.block_forward_gemm_seconds += forward_layer;
  cost.attention_forward_gemm_seconds += forward_layer;
  cost.attention_product_seconds = product;
}

/// Sets the bytes that the rest of the pass moves, in elements of a token's width c, of what a rank
/// has of it in the residual stream, and of its MLP f. Forward, a norm reads two and writes two, an
/// activation reads its one or two inputs and writes one; backward, a norm moves four and an
/// activation twice as much, and the bias gradients read what the products read.
void SetMemoryBytes(const ModelShape& shape, int64_t tokens, int64_t sequence_length,
                    const PrecisionRecipe& precision, const ComputedShares& computed,
                    double dropout, PassCost& cost) {
  const ModelSpec& model = shape.spec;
  const int64_t element = ElementBytes(precision.activations);
  const double c = D(model.width) * D(element) / D(shape.tensor_rows);
  const double stream = D(model.width) * D(element) / D(shape.StreamRanks());
  const double f =
      D(MlpWidth(model)) * shape.largest_rank.mlp * D(element) / D(shape.TensorColumns());
  const double rows = model.experts > 0 ? D(model.experts_per_token) : 1;
  const double activation = D(MlpInputs(model) + 1) * f * rows;
  const double mask = dropout > 0 ? 2 * 2 * stream : 0;  // two a block, read and write
  double block_forward = 2 * 4 * stream + activation + mask;
  const double biases = model.family == "llama" ? 0 : 5 * c + f;
  double block_backward = 2 * 4 * stream + 2 * activation + biases + mask;
  if (model.experts > 0) {
    // Rows are copied for their experts, and the results read and added up; backward the results
    // are read and written once more.
    block_forward += (3 * rows + 1) * c;
    block_backward += (5 * rows + 1) * c;
  }
  // Casts to a format read a number and write one: inputs before the product, once more by columns
  // for the weights' gradients, gradients both ways at once. Frozen weights need none by columns.
  const double width = D(model.width), columns = D(shape.TensorColumns());
  const double part = D(QueryWidth(model)) / columns, inner = D(MlpWidth(model)) / columns;
  const double inputs = cost.format_share * (width + part + rows * (width + inner));
  const double outputs = cost.format_share * (width + part + 2 * D(KvWidth(model)) / columns +
                                              rows * (width + D(MlpInputs(model)) * inner));
  const double code =
      precision.block_products != nullptr ? D(precision.block_products->element_bytes) : 0;
  block_forward += (D(element) + code) * inputs;
  const double by_columns = shape.trains_block_weights ? 1 : 0;
  block_backward +=
      by_columns * (D(element) + code) * inputs + (D(element) + (1 + by_columns) * code) * outputs;
  block_forward *= computed.Mean();
  block_backward *= computed.Mean();
  const double embedding = shape.embeds ? 3 * 4 * D(EmbeddingWidth(model)) + stream : 0;
  const double classifier = !shape.has_head ? 0
                                            : D(HeadRows(shape, tokens, sequence_length)) *
                                                  (3 * D(shape.PaddedClasses()) * D(element));
  cost.block_forward_memory_bytes = D(tokens) * block_forward;
  const double forward = D(tokens) * (D(model.layers) * block_forward + embedding + 4 * stream);
  const double backward =
      D(tokens) * (BackwardLayers(shape) * block_backward + embedding + 4 * stream);
  cost.memory_bytes =
      forward + backward + classifier + cost.scoring_passes * (forward + classifier / 3);
  cost.weight_gradient_bytes = WeightGradientBytes(shape);
}

/// Adds what techniques do with the weights of MLPs besides multiplying by them: search, list and
/// pack what counts of them.
void AddWorkOnWeights(const ModelShape& shape, const TechniqueProducts& techniques,
                      const StepRates& rates, int64_t threads, PassCost& cost) {
  constexpr int64_t kLarge = 1024;
  const ModelSpec& model = shape.spec;
  const double weights =
      D(model.layers * model.width * (MlpInputs(model) + 1) * MlpWidth(model)) / D(shape.tensor);
  const auto seconds = [&](double flops, double bytes) {
    if (flops == 0 && bytes == 0) return 0.0;
    return weights *
           (flops / rates.GemmFlopsPerSecond(DType::kF32, kLarge, kLarge, kLarge, threads) +
            bytes / rates.MemoryBytesPerSecond({.threads = threads}));
  };
  const double sparse = 1 - techniques.dense_share;
  cost.gathered_list_seconds =
      sparse * seconds(techniques.gathered_flops, techniques.gathered_bytes);
  // Products that nobody has measured count as dense ones, with nothing besides.
  if (!techniques.rate_name.empty() &&
      rates.TechniqueFlopsPerSecond(techniques.rate_name, GemmPass::kForward, kLarge, kLarge,
                                    kLarge, threads) <= 0) {
    return;
  }
  cost.packing_seconds = sparse * seconds(techniques.packed_flops, techniques.packed_bytes);
  cost.step_product_seconds += seconds(techniques.searched_flops, techniques.searched_bytes);
}

double ProductSeconds(const StepWork& work, const StepRates& rates, int64_t threads) {
  double seconds = 0;
  for (const Gemm& gemm : work.products) {
    seconds +=
        gemm.Flops() / rates.GemmFlopsPerSecond(DType::kF32, gemm.m, gemm.n, gemm.k, threads);
  }
  return seconds;
}

/// Adds what techniques compute once a step, and what they merge.
void AddStepWork(const ModelShape& shape, const TrainSpec& train, const StepRates& rates,
                 int64_t threads, PassCost& cost) {
  const StepWork work = StepWorkOf(shape, train);
  cost.step_f32_numbers = work.f32_numbers;
  cost.step_parameter_numbers = work.parameter_numbers;
  cost.step_product_seconds = ProductSeconds(work, rates, threads);
  cost.ranked = work.ranked;
  const StepWork merge = MergeWorkOf(shape.spec);
  cost.merge_f32_numbers = merge.f32_numbers;
  cost.merge_parameter_numbers = merge.parameter_numbers;
  cost.merge_product_seconds = ProductSeconds(merge, rates, threads);
}

}  // namespace

MeasuredShape BlockOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                          DType products, int64_t context_ranks) {
  return {.products = std::string(GemmRateName(products)),
          .experts = shape.spec.experts,
          .width = shape.spec.width / shape.tensor_rows,
          .tensor = shape.TensorColumns(),
          .tokens = micro_batch * sequence_length / context_ranks,
          .sequence_length = sequence_length};
}

double FormatShare(const ModelSpec& model, const PrecisionRecipe& precision,
                   const FormatBlocks& format_blocks) {
  const int64_t blocks = DistinctBlocks(model);
  if (precision.block_products == nullptr || blocks == 0) return 0;
  return D(format_blocks.Of(blocks)) / D(blocks);
}

PassCost CostOfPass(const ModelShape& shape, int64_t micro_batch, int64_t sequence_length,
                    const PrecisionRecipe& precision, double format_share, double dropout,
                    const StepRates& rates, int64_t threads, int64_t context_ranks,
                    const TechniqueProducts& techniques, const TrainSpec& train) {
  const VirtualTokenCounts virtual_tokens = VirtualTokensOf(shape.spec);
  const int64_t length = sequence_length + virtual_tokens.in_blocks;
  const int64_t tokens = micro_batch * length / context_ranks;
  const ComputedShares computed = ComputedSharesOf(shape, micro_batch);
  // A rank without the units of others runs all operations, on fewer heads and neurons.
  const ComputedShares products = {computed.attention * shape.largest_rank.attention,
                                   computed.mlp * shape.largest_rank.mlp};
  PassCost cost;
  cost.scoring_passes = D(ScoringPasses(train));
  cost.computed_share = computed.Mean();
  const ProductFormat* const format = precision.block_products;
  cost.format_share = format != nullptr && rates.Multiplies(*format) ? format_share : 0;
  AddWeightProducts(shape, tokens, length, D(sequence_length) / D(length), precision, products,
                    rates, threads, techniques, cost);
  AddAttention(shape, tokens, length, virtual_tokens.in_attention, products, rates, threads, cost);
  cost.gemm_seconds += cost.scoring_passes * (cost.gemm_seconds - cost.backward_gemm_seconds);
  if (rates.has_near_shapes()) {
    const MeasuredShape block =
        BlockOfPass(shape, micro_batch, sequence_length, precision.products, context_ranks);
    cost = SlowedBy(cost, std::exp(rates.Near(block).deviation));
  }
  SetMemoryBytes(shape, tokens, length, precision, computed, dropout, cost);
  if (const std::optional<SecondPass> second = SecondPassOf(shape.spec, train)) {
    ModelShape smaller = shape;
    smaller.spec.layers = second->layers;
    smaller.spec.distinct_blocks = 0;  // the network's layers that share a block may be more
    const PassCost own = CostOfPass(smaller, micro_batch, sequence_length, precision, format_share,
                                    dropout, rates, threads, context_ranks, techniques);
    cost.gemm_seconds += second->share * own.gemm_seconds;
    cost.backward_gemm_seconds += second->share * own.backward_gemm_seconds;
    cost.memory_bytes += second->share * own.memory_bytes;
  }
  if (std::optional<ModelShape> added = AddedNetworkShape(train)) {
    // A rank computes its part of the logits.
    const int64_t columns = shape.TensorColumns();
    added->spec.vocab_size = (added->spec.vocab_size + columns - 1) / columns;
    const PassCost whole = CostOfPass(*added, micro_batch, sequence_length, precision, 0, 0, rates,
                                      threads, /*context_ranks=*/1);
    cost.gemm_seconds += whole.gemm_seconds - whole.backward_gemm_seconds;
    // About a third of what both passes read and write is of the forward pass.
    cost.memory_bytes += whole.memory_bytes / 3;
  }
  AddStepWork(shape, train, rates, threads, cost);
  AddWorkOnWeights(shape, techniques, rates, threads, cost);
  return cost;
}

PassCost SlowedBy(PassCost pass, double times) {
  pass.gemm_seconds *= times;
  pass.backward_gemm_seconds *= times;
  pass.block_forward_gemm_seconds *= times;
  pass.attention_forward_gemm_seconds *= times;
  pass.attention_product_seconds *= times;
  pass.step_product_seconds *= times;
  pass.merge_product_seconds *= times;
  pass.gathered_list_seconds *= times;
  pass.packing_seconds *= times;
  return pass;
}

BlockSeconds SecondsOfBlock(const PassCost& pass, const ModelShape& shape, double bandwidth) {
  const double forward_memory = pass.block_forward_memory_bytes / bandwidth;
  const double backward =
      (pass.backward_gemm_seconds + pass.memory_bytes / bandwidth) / AtLeastOneLayer(shape);
  return {pass.block_forward_gemm_seconds + forward_memory, pass.attention_forward_gemm_seconds,
          backward - forward_memory};
}

}  // namespace weft::planner
