#include "common/model/model_counts.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/outer_layers.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"

namespace weft {

namespace {

/// Multiply-adds of a token with the scores and values of one layer, on average over the sequence:
/// twice the keys it sees, for each column.
double AttentionPerLayer(const ModelShape& shape, int64_t sequence_length) {
  return static_cast<double>(QueryWidth(shape.spec)) * TwiceTheKeys(shape.spec, sequence_length);
}

/// Rows of the head for each token.
double HeadShare(const ModelShape& shape, int64_t sequence_length) {
  const std::string head = HeadOf(shape.spec);
  if (head == "causal_lm") return 1;
  return head == "masked_lm" ? shape.masked_share : 1.0 / static_cast<double>(sequence_length);
}

/// Whether the network has a matrix with this role that is trained.
bool Trains(const ModelShape& shape, ParameterRole role) {
  const std::vector<ParameterInfo> all = ParametersOf(shape.spec);
  return std::any_of(all.begin(), all.end(), [&](const ParameterInfo& parameter) {
    return parameter.role == role && parameter.matrix() && parameter.is_weight() &&
           !parameter.frozen;
  });
}

bool TrainsClassifier(const ModelShape& shape) {
  if (!FreezesAny(shape.spec)) return true;
  for (const ParameterInfo& parameter : ParametersOf(shape.spec)) {
    if (IsClassifier(shape.spec, parameter)) return !parameter.frozen;
  }
  return false;
}

/// Whether a norm before the first product of this layer's block is trained.
bool TrainsFirstNorm(const ModelSpec& model, int64_t layer) {
  if (!FreezesAny(model)) return true;
  int64_t norms = 0;  // A norm is a weight, and a bias behind it where it has one.
  for (const ParameterInfo& parameter : BlockParameters(model, BlockOfLayer(model, layer))) {
    if (parameter.role != ParameterRole::kNorm) continue;
    if (!parameter.bias && ++norms > 1) return false;
    if (!parameter.frozen) return true;
  }
  return false;
}

/// Layers with a weight among those of `which` that gets a gradient.
template <class Which>
int64_t LayersTraining(const ModelShape& shape, const Which& which) {
  if (!FreezesAny(shape.spec)) return shape.spec.layers;
  int64_t layers = 0;
  for (int64_t layer = 0; layer < shape.spec.layers; ++layer) {
    for (const ParameterInfo& parameter :
         BlockParameters(shape.spec, BlockOfLayer(shape.spec, layer))) {
      if (!parameter.matrix() || parameter.frozen || !which(parameter.role)) continue;
      ++layers;
      break;
    }
  }
  return layers;
}

/// A matrix product of the blocks, and how often all layers together compute each of its passes.
struct BlockProduct {
  bool of_expert = false;
  bool of_adapter = false;
  int64_t out = 0, in = 0;
  int64_t forward = 0, input = 0, weight = 0;
};

/// The weight of a block that it has this besides.
const ParameterInfo& WeightOf(const std::vector<ParameterInfo>& block,
                              const ParameterInfo& adapter) {
  return *std::find_if(block.begin(), block.end(), [&](const ParameterInfo& weight) {
    return weight.name == adapter.adapter_of;
  });
}

/// Whether a parameter of a block reads the same as the one before it, or is a bias behind it.
bool ReadsTheSame(const ParameterInfo& parameter, const ParameterInfo& before) {
  if (parameter.bias) return !IsBranchScale(parameter.role);
  if (parameter.adapter == AdapterSide::kNeither) return false;
  if (before.adapter == AdapterSide::kNeither) return false;
  const bool qkv = IsAttention(parameter.role) && !EndsSubLayer(parameter.role);
  if (qkv) return IsAttention(before.role) && !EndsSubLayer(before.role);
  return (EndsSubLayer(parameter.role) || IsMlp(parameter.role)) && before.role == parameter.role;
}

/// Whether a block has a router or experts that are trained, or adapters of them.
bool TrainsMixture(const std::vector<ParameterInfo>& block) {
  return std::any_of(block.begin(), block.end(), [](const ParameterInfo& parameter) {
    const bool of_mixture = parameter.expert >= 0 || parameter.role == ParameterRole::kRouter;
    return of_mixture && !parameter.frozen;
  });
}

/// The products of the layers with roles that `which` says, of weights and of what is in their
/// place or besides. Of experts those of one, with grafts apart.
template <class Which>
std::vector<BlockProduct> ProductsOfBlocks(const ModelShape& shape, const Which& which) {
  const ModelSpec& model = shape.spec;
  std::map<std::tuple<bool, bool, int64_t, int64_t>, BlockProduct> products;
  std::vector<ParameterInfo> block;
  const bool alike = !DiffersByBlock(model);
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    if (layer == 0 || !alike) block = BlockParameters(model, BlockOfLayer(model, layer));
    const bool backward = layer >= shape.first_trained_layer;
    // Whether anything before a layer is trained: then its input has a gradient.
    bool reached = layer > shape.first_trained_layer ||
                   (backward && (shape.trains_embeddings || shape.trained_before));
    bool trains_layer = false;
    const bool trains_mixture = TrainsMixture(block);
    // Weights of a layer that are there are one product.
    int64_t out = 0, in = 0;
    int64_t more = 0;
    bool input = false, trains = false, of_expert = false, weights_of_expert = false;
    std::string_view differentiated;  // a weight that is not trained itself
    const auto add = [&](bool of_adapter, int64_t rows, int64_t columns, int64_t times,
                         bool differentiates_input, bool trained,
                         int64_t more_products) -> BlockProduct& {
      BlockProduct& product = products
                                  .try_emplace({of_expert, of_adapter, rows, columns},
                                               BlockProduct{of_expert, of_adapter, rows, columns})
                                  .first->second;
      product.forward += (1 + (backward && trained ? more_products : 0)) * times;
      if (differentiates_input) product.input += times;
      if (trained) product.weight += times;
      return product;
    };
    const ParameterInfo* before = nullptr;
    for (const ParameterInfo& parameter : block) {
      if (parameter.expert > 0) continue;  // as the first one
      if (before == nullptr || !ReadsTheSame(parameter, *before)) {
        reached = reached || std::exchange(trains_layer, false);
      }
      before = &parameter;
      // An expert's activation comes again in the place of its gradient, whatever is trained of the
      // mixture or before it.
      if (parameter.expert == 0 && EndsSubLayer(parameter.role)) {
        reached = reached || (backward && trains_mixture);
      }
      trains_layer = trains_layer || !parameter.frozen;
      if (!which(parameter.role) || parameter.of_virtual_tokens) continue;
      // Together those of all parts of the rows do as much as the first on all rows.
      if (parameter.row_part > 0) continue;
      of_expert = parameter.expert >= 0;
      if (parameter.merged) {
        // Its gradient follows from that of its weight, which is computed for all of an adapter.
        if (parameter.frozen || parameter.adapter_of == differentiated) continue;
        differentiated = parameter.adapter_of;
        const ParameterInfo& weight = WeightOf(block, parameter);
        ++add(false, weight.shape[0], weight.shape[1], 0, false, false, 0).weight;
        continue;
      }
      if (!parameter.matrix()) continue;
      if (!parameter.in_place_of.empty()) {
        add(false, parameter.shape[0] / parameter.products, parameter.shape[1], parameter.products,
            reached, !parameter.frozen, parameter.more_products);
        continue;
      }
      if (parameter.adapter != AdapterSide::kNone) {
        // What the second of two factors reads has a gradient, whatever the first one reads.
        BlockProduct& product = add(true, parameter.shape[0], parameter.shape[1], 1,
                                    parameter.adapter == AdapterSide::kOutput ? backward : reached,
                                    !parameter.frozen, parameter.more_products);
        if (reached) product.input += parameter.more_input_gradients;
        continue;
      }
      if (parameter.more_input_gradients > 0) {  // multiplied alone
        BlockProduct& product =
            add(false, parameter.shape[0], parameter.shape[1], 1, reached, !parameter.frozen, 0);
        if (backward) product.forward += parameter.more_products;
        if (reached) product.input += parameter.more_input_gradients;
        continue;
      }
      out += parameter.shape[0];
      in = parameter.shape[1];
      weights_of_expert = of_expert;
      input = reached;
      trains = trains || !parameter.frozen;
      more = std::max(more, parameter.more_products);
    }
    if (out == 0) continue;
    of_expert = weights_of_expert;
    BlockProduct& product = add(false, out, in, 1, input, trains, 0);
    if (backward) product.forward += more;
  }
  std::vector<BlockProduct> list;
  for (const auto& [size, product] : products) list.push_back(product);
  return list;
}

/// FLOPs of a token that training is expected to skip.
double SkippedFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  if (shape.computed.attention == 1 && shape.computed.mlp == 1) return 0;
  double skipped = 0;
  for (const Gemm& gemm : WeightGemms(shape, sequence_length, sequence_length, 4)) {
    skipped += (1 - ComputedShare(shape.computed, gemm.role)) * gemm.Flops();
  }
  const auto layers = static_cast<double>(shape.spec.layers + 2 * DifferentiatedAttentions(shape));
  return skipped / static_cast<double>(sequence_length) +
         (1 - shape.computed.attention) * 2 * layers * AttentionPerLayer(shape, sequence_length);
}

}  // namespace

int64_t DifferentiatedAttentions(const ModelShape& shape) {
  const bool all = !shape.first_saved || *shape.first_saved == SavedTensor::kNorm1;
  return shape.spec.layers - shape.first_trained_layer - (all ? 0 : 1);
}

double TwiceTheKeys(const ModelSpec& model, int64_t sequence_length) {
  const auto length = static_cast<double>(sequence_length);
  if (HeadOf(model) != "causal_lm") return 2 * length;
  const auto window = static_cast<double>(model.sliding_window);
  return window > 0 && window < length ? 2 * window - window * window / length : length;
}

double ForwardFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  return 2.0 * static_cast<double>(shape.body.all) +
         2.0 * HeadShare(shape, sequence_length) * static_cast<double>(shape.head.all) +
         2.0 * static_cast<double>(shape.spec.layers) * AttentionPerLayer(shape, sequence_length);
}

double TrainingFlopsPerToken(const ModelShape& shape, int64_t sequence_length) {
  const auto layers = static_cast<double>(DifferentiatedAttentions(shape));
  return ForwardFlopsPerToken(shape, sequence_length) +
         2.0 * static_cast<double>(shape.body.trained + shape.body.backward) +
         2.0 * HeadShare(shape, sequence_length) *
             static_cast<double>(shape.head.trained + shape.head.backward) +
         4.0 * layers * AttentionPerLayer(shape, sequence_length) -
         SkippedFlopsPerToken(shape, sequence_length);
}

double ComputedShare(const ComputedShares& computed, ParameterRole role) {
  using enum ParameterRole;
  switch (role) {
    case kQueriesKeysValues:
    case kQueriesKeys:
    case kValues:
    case kAttentionOutput:
    case kAttentionScale:
      return computed.attention;
    case kMlpUp:
    case kMlpDown:
    case kMlpScale:
    case kRouter:
      return computed.mlp;
    case kTokenEmbedding:
    case kPositionEmbedding:
    case kEmbeddingProjection:
    case kNorm:
    case kHeadTransform:
    case kHeadNorm:
    case kClassifier:
      return 1;
  }
  return 1;
}

int64_t LogitsChunkRows(int64_t columns, int64_t rows, int64_t element_bytes) {
  constexpr int64_t kChunkBytes = int64_t{128} << 20;
  constexpr int64_t kTile = 32;
  const int64_t fitting = std::max<int64_t>(kChunkBytes / (columns * element_bytes), kTile);
  // The gradient of the classifier's weight is added to once for each chunk: a second one takes
  // little, and half of the memory.
  const bool large = rows * columns * element_bytes > kChunkBytes / 2;
  const int64_t chunks = std::max<int64_t>((rows + fitting - 1) / fitting, large ? 2 : 1);
  const int64_t even = (rows + chunks - 1) / chunks;
  return RoundUp(even, kTile);
}

std::vector<Gemm> WeightGemms(const ModelShape& shape, int64_t tokens, int64_t sequence_length,
                              int64_t element_bytes) {
  using enum ParameterRole;
  const ModelSpec& model = shape.spec;
  std::vector<Gemm> gemms;
  // y [rows, out] = x [rows, in] Wᵀ and the two gradients of it, each this many times.
  auto add = [&](ParameterRole role, int64_t rows, int64_t in, int64_t out, int64_t forward,
                 int64_t input, int64_t weight, bool of_adapter = false) {
    gemms.push_back({role, GemmPass::kForward, rows, out, in, forward, of_adapter});
    if (input > 0) {
      gemms.push_back({role, GemmPass::kInputGradient, rows, in, out, input, of_adapter});
    }
    if (weight > 0) {
      gemms.push_back({role, GemmPass::kWeightGradient, out, in, rows, weight, of_adapter});
    }
  };
  // What a layer outside the blocks has besides its weight. `below`: whether its input has a
  // gradient.
  const auto add_adapters = [&](ParameterRole role, int64_t input_rows, int64_t count,
                                int64_t below) {
    if (!shape.has_adapters) return;
    for (const ParameterInfo& weight : OuterWeights(model)) {
      if (weight.role != role) continue;
      for (const ParameterInfo& tensor : AdaptersOf(model, weight)) {
        const bool makes_output = tensor.adapter == AdapterSide::kOutput;
        const bool of_classes = makes_output && role == kClassifier;
        const int64_t out = of_classes ? shape.PaddedClasses() : tensor.shape[0];
        if (tensor.matrix()) {
          add(role, input_rows, tensor.shape[1], out, count * (1 + tensor.more_products),
              count * (makes_output ? 1 : below), count, /*of_adapter=*/true);
        } else if (tensor.more_products > 0) {  // of the weight
          add(role, input_rows, weight.shape[1], out, count * tensor.more_products, 0, 0);
        }
      }
    }
  };
  const int64_t c = model.width, f = MlpWidth(model), e = EmbeddingWidth(model);
  const int64_t backward = model.layers - shape.first_trained_layer;
  auto add_in_blocks = [&](ParameterRole role, int64_t in, int64_t out, const auto& which,
                           int64_t without_input = 0) {
    if (shape.replaces_weights || shape.has_adapters) {
      for (const BlockProduct& of : ProductsOfBlocks(shape, which)) {
        add(role, tokens, of.in, of.out, of.forward, of.input, of.weight, of.of_adapter);
      }
      return;
    }
    add(role, tokens, in, out, model.layers, backward - without_input,
        LayersTraining(shape, which));
  };
  // The lowest block sends no gradient down, unless a norm comes before its products.
  const bool lowest_ends =
      backward > 0 && !shape.trains_embeddings && !shape.trained_before &&
      (NormPositionOf(model) != "pre" || !TrainsFirstNorm(model, shape.first_trained_layer));
  const int64_t once = shape.first_trained_layer == 0 ? 1 : 0;
  if (FactorisedEmbedding(model) && shape.embeds) {
    add(kEmbeddingProjection, tokens, e, c, 1, once, once);
  }
  if (model.family == "vit") {
    // Not of the class token, which is no patch. Images have no gradient.
    const int64_t patches = tokens - tokens / sequence_length;
    add(kEmbeddingProjection, patches, PatchPixels(model), c, 1, 0,
        Trains(shape, kEmbeddingProjection) ? 1 : 0);
    add_adapters(kEmbeddingProjection, patches, 1, 0);
  }
  const auto is = [](ParameterRole wanted) {
    return [wanted](ParameterRole role) { return role == wanted; };
  };
  add_in_blocks(
      kQueriesKeysValues, c, QkvWidth(model),
      [](ParameterRole role) { return IsAttention(role) && !EndsSubLayer(role); },
      lowest_ends ? 1 : 0);
  add_in_blocks(kAttentionOutput, QueryWidth(model), c, is(kAttentionOutput));
  if (model.experts > 0) add_in_blocks(kRouter, c, model.experts, is(kRouter));
  // Experts count by the mean: as many products as experts, each of its share of the tokens.
  const int64_t experts = std::max<int64_t>(model.experts / shape.expert_ranks, 1);
  const int64_t rows = model.experts > 0 ? tokens * model.experts_per_token / experts : tokens;
  const auto add_mlp = [&](ParameterRole role, int64_t in, int64_t out) {
    if (model.experts == 0) return add_in_blocks(role, in, out, is(role));
    if (shape.has_adapters) {
      for (const BlockProduct& of : ProductsOfBlocks(shape, is(role))) {
        const int64_t times = of.of_expert ? experts : 1;
        add(role, of.of_expert ? rows : tokens, of.in, of.out, times * of.forward, times * of.input,
            times * of.weight, of.of_adapter);
      }
      return;
    }
    add(role, rows, in, out, experts * model.layers, experts * backward,
        experts * LayersTraining(shape, is(role)));
  };
  add_mlp(kMlpUp, c, MlpInputs(model) * f);
  add_mlp(kMlpDown, f, c);
  if (!shape.has_head) return gemms;
  const bool narrow = FactorisedEmbedding(model) && !model.untied_classifier;
  if (narrow) add(kEmbeddingProjection, tokens, c, e, 1, 1, 1);
  const int64_t head_rows = HeadRows(shape, tokens, sequence_length);
  const int64_t below = shape.body.trained > 0 ? 1 : 0;
  if (model.family == "bert") {
    add(kHeadTransform, head_rows, c, c, 1, below, Trains(shape, kHeadTransform) ? 1 : 0);
    add_adapters(kHeadTransform, head_rows, 1, below);
  }
  const int64_t chunk =
      std::min(LogitsChunkRows(shape.PaddedClasses(), head_rows, element_bytes), head_rows);
  const int64_t trained = TrainsClassifier(shape) ? 1 : 0;
  const int64_t inputs = shape.trained > shape.trained_classifier || shape.trained_before ? 1 : 0;
  auto add_classifier = [&](int64_t chunk_rows, int64_t count) {
    add(kClassifier, chunk_rows, narrow ? e : c, shape.PaddedClasses(), count, count * inputs,
        count * trained);
    add_adapters(kClassifier, chunk_rows, count, inputs);
  };
  add_classifier(chunk, head_rows / chunk);
  if (head_rows % chunk != 0) add_classifier(head_rows % chunk, 1);
  return gemms;
}

}  // namespace weft
