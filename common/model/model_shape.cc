#include "common/model/model_shape.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "common/model/parameter_groups.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

int64_t& CountOf(ParameterCounts& counts, ParameterRole role) {
  if (role == ParameterRole::kTokenEmbedding) return counts.token_embedding;
  if (role == ParameterRole::kPositionEmbedding) return counts.position_embedding;
  if (role == ParameterRole::kEmbeddingProjection) return counts.embedding_projection;
  if (IsAttention(role)) return counts.attention;
  if (IsMlp(role) || role == ParameterRole::kRouter) return counts.mlp;
  if (IsHead(role)) return counts.classifier;
  return IsBranchScale(role) ? counts.branch_scales : counts.norms;
}

/// See ModelShape::partial_gradients.
bool HasPartialGradients(const ModelShape& shape, const ParameterInfo& parameter) {
  if (shape.TensorColumns() == 1) return false;
  if (parameter.role == ParameterRole::kRouter) return true;
  if (parameter.of_virtual_tokens && VirtualTokensOf(shape.spec).in_attention > 0) {
    // Keys and values are of the heads here; each rank makes its own of what all have.
    return !IsAttention(parameter.role);
  }
  if (parameter.of_whole_weight) return true;
  // A graft sees the rows of the residual stream.
  if (parameter.adapter == AdapterSide::kNeither) return shape.sequence_parallel;
  // A replicated adapter sees a part of its inputs, or of the gradients of its results.
  if (parameter.adapter != AdapterSide::kNone) {
    return (parameter.adapter == AdapterSide::kInput) != EndsSubLayer(parameter.role);
  }
  return shape.sequence_parallel &&
         (parameter.role == ParameterRole::kNorm || IsBranchScale(parameter.role) ||
          parameter.role == ParameterRole::kEmbeddingProjection);
}

void AddTrained(const ParameterInfo& parameter, TrainedProducts& products) {
  // A graft behind a sub-layer reads what no product of it does.
  if (parameter.adapter == AdapterSide::kNeither && parameter.role != ParameterRole::kMlpUp) return;
  const bool ends = EndsSubLayer(parameter.role);
  if (IsAttention(parameter.role) && !ends) products.qkv = true;
  if (IsMlp(parameter.role)) (ends ? products.down : products.up) = true;
}

/// Sums over the weights of a block that are quantised, in their order.
struct QuantizedBlocks {
  int64_t block = -1;
  QuantizedBlock sums = {};
  int64_t matrix = 0;  ///< Numbers of the weights that are one with the last one.

  void Add(const ParameterInfo& weight) {
    const int64_t numbers = weight.Elements();
    matrix = (weight.stacked ? matrix : 0) + numbers;
    sums.numbers += numbers;
    sums.padding.Add(weight.packed_padding());
    if (!weight.in_tiles()) return;
    sums.in_tiles += numbers;
    sums.largest_in_tiles = std::max(sums.largest_in_tiles, matrix);
  }
};

/// The weights that are one matrix with the last one.
struct WeightStack {
  int64_t trained = 0;  ///< Numbers of those that are trained themselves.
  bool has_derived = false;

  /// Adds a weight, which is derived or has `numbers` trained ones. Returns how many more numbers
  /// of ModelShape::stacked_with_derived there are.
  int64_t Add(const ParameterInfo& weight, bool derived, int64_t numbers) {
    if (!weight.stacked) *this = {};
    const int64_t before = has_derived ? trained : 0;
    has_derived = has_derived || derived;
    if (!derived) trained += numbers;
    return has_derived ? trained - before : 0;
  }
};

/// ModelShape::first_saved, where `parameter` is the first that is trained.
std::optional<SavedTensor> FirstSaved(const ModelSpec& model, const ParameterInfo& parameter) {
  using enum SavedTensor;
  if (NormPositionOf(model) != "pre") return std::nullopt;
  // Some families have their norms behind their products in the list.
  const std::vector<ParameterInfo> block = BlockParameters(model, parameter.block);
  if (std::any_of(block.begin(), block.end(), [](const ParameterInfo& each) {
        return each.role == ParameterRole::kNorm && !each.frozen;
      })) {
    return std::nullopt;
  }
  const bool grafted = parameter.adapter == AdapterSide::kNeither;
  if (parameter.role == ParameterRole::kAttentionOutput) {
    return grafted ? kAttentionGrafts : kAttention;
  }
  if (IsAttention(parameter.role)) return grafted ? std::nullopt : std::optional(kNorm1);
  if (!IsMlp(parameter.role)) return std::nullopt;
  if (grafted) return kMlpGrafts;
  if (model.experts > 0) return kRoute;
  return parameter.role == ParameterRole::kMlpUp ? kNorm2 : kMlpBeforeActivation;
}

/// Adds a parameter that is not trained, which takes `in_memory` numbers or words; whether it is a
/// table that is looked up here, and whether it classifies.
void AddFrozen(const ParameterInfo& parameter, int64_t in_memory, bool looked_up, bool classifies,
               FrozenNumbers& frozen) {
  if (!parameter.matrix() || parameter.quantized_words > 0) {
    frozen.vectors += in_memory;
    return;
  }
  if (looked_up) frozen.looked_up += in_memory;
  if (looked_up && !classifies) return;
  frozen.matrices += in_memory;
  if (looked_up) frozen.of_first += in_memory;
  if (parameter.in_tiles() && !parameter.read_directly) frozen.in_tiles += in_memory;
}

}  // namespace

ModelShape::ModelShape(const ModelSpec& model, int64_t ranks, bool sequence, int64_t rows)
    : ModelShape(model, {model.layers, true, true}, ranks, sequence, rows) {}

ModelShape ModelShape::OfExpertRank(const ModelSpec& model, int64_t ranks, int64_t tensor,
                                    bool sequence) {
  return {model, {model.layers, true, true}, tensor, sequence, 1, ranks};
}

ModelShape::ModelShape(const ModelSpec& model, const StageShape& stage, int64_t ranks,
                       bool sequence, int64_t rows, int64_t experts)
    : spec(model),
      tensor(ranks),
      tensor_rows(rows),
      sequence_parallel(sequence),
      expert_ranks(experts),
      embeds(stage.first),
      has_head(stage.last),
      network_layers(model.layers),
      computed(ComputedSharesOf(model)) {
  const int64_t first_trained_block = stage.which.empty() ? spec.layers : FirstTrainedBlock(spec);
  if (!stage.which.empty()) {
    spec.freeze = FreezeOfBlocks(spec, stage.which);
    trained_before = !stage.first && first_trained_block < stage.which.front();
  }
  spec.layers = stage.blocks;
  // A table that the last stage shares is only looked up here.
  if (!has_head) spec.untied_classifier = true;
  const int64_t uses_of_block = spec.layers / std::max<int64_t>(DistinctBlocks(spec), 1);
  bool backward = false;  // from the first trained parameter on
  first_trained_layer = spec.layers;
  QuantizedBlocks quantized_blocks;
  WeightStack stack;
  for (const ParameterGroup& group : ParameterGroupsOfRank(spec, tensor, rows)) {
    const ParameterInfo& parameter = group.first;
    if (!IsOnStage(spec, parameter, stage.first, stage.last)) continue;
    const bool table = parameter.role == ParameterRole::kTokenEmbedding;
    const bool classifies = IsClassifier(spec, parameter);
    const bool is_trained = !parameter.frozen;
    // The gradient goes on to what is trained on the ranks before.
    const bool passes = !stage.which.empty() && parameter.block >= 0 &&
                        stage.which[static_cast<size_t>(parameter.block)] > first_trained_block;
    if ((is_trained || passes) && !backward) {
      backward = true;
      if (parameter.block >= 0) {
        first_trained_layer = parameter.block * uses_of_block;
        if (!passes) first_saved = FirstSaved(spec, parameter);
      }
      if (parameter.unit == 0) {
        first_trained_layer = 0;
        trains_embeddings = true;
      }
    }
    // Counts the group's experts up to number `end`, in all its blocks.
    const auto members = [&](int64_t end) {
      return group.blocks * (parameter.expert < 0
                                 ? 1
                                 : std::clamp<int64_t>(end - parameter.expert, 0, group.experts));
    };
    int64_t times = parameter.block >= 0 ? uses_of_block : table && !classifies ? 0 : 1;
    // Together those of all parts of the rows do as much as the first on all rows.
    if (parameter.of_virtual_tokens || parameter.row_part > 0) times = 0;
    const int64_t read = parameter.merged ? 0 : parameter.Elements();
    const int64_t met = times * members(spec.experts_per_token) * read;
    ParameterUses& uses = classifies || IsHead(parameter.role) ? head : body;
    uses.all += met;
    if (backward || classifies) uses.backward += met;
    if (is_trained) {
      uses.trained += met;
      AddTrained(parameter, trained_products);
      if (parameter.block_matrix()) trains_block_weights = true;
    }
    const int64_t here = members(spec.experts / expert_ranks);
    const int64_t elements = here * parameter.Elements();
    const bool is_quantized = parameter.quantized_words > 0;
    const int64_t in_memory =
        here * (is_quantized ? parameter.quantized_words : parameter.StoredElements());
    CountOf(counts, parameter.role) += elements;
    stored += in_memory;
    if (is_quantized && here > 0) {
      quantized += elements;
      if (parameter.block != quantized_blocks.block) quantized_blocks = {parameter.block};
      quantized_blocks.Add(parameter);
      if (quantized_blocks.sums.numbers > quantized_block.numbers) {
        quantized_block = quantized_blocks.sums;
      }
    }
    if (parameter.matrix() && !is_quantized) stored_matrices += in_memory;
    if (parameter.only_multiplied) only_multiplied += in_memory;
    if (!is_trained) {
      AddFrozen(parameter, in_memory, embeds && parameter.looked_up(), classifies, frozen);
      if (parameter.adapter != AdapterSide::kNone) frozen_adapters += in_memory;
    }
    if (is_trained) {
      trained += elements;
      if (parameter.role == ParameterRole::kClassifier) trained_classifier += elements;
      stored_trained += in_memory;
      if (parameter.expert >= 0) stored_trained_experts += in_memory;
      if (parameter.matrix()) stored_trained_matrices += in_memory;
      if (HasPartialGradients(*this, parameter)) partial_gradients += elements;
    }
    if (!is_quantized && (parameter.packed() || (parameter.matrix() && classifies))) {
      packed += in_memory;
      if (parameter.in_tiles()) packed_in_tiles += in_memory;
      if (parameter.adapter != AdapterSide::kNone) packed_adapters += in_memory;
      packed_padding.Add(parameter.packed_padding(), here);
    }
    if (!parameter.in_place_of.empty()) replaces_weights = true;
    if (parameter.adapter != AdapterSide::kNone) has_adapters = true;
    if (parameter.adapter == AdapterSide::kInput && parameter.role == ParameterRole::kClassifier) {
      classifier_ranks += parameter.shape.front();
    }
    const std::vector<ParameterInfo> sources_of_it = SourcesOf(spec, parameter);
    const bool is_derived = !sources_of_it.empty();
    if (parameter.matrix()) {
      stacked_with_derived += stack.Add(parameter, is_derived, is_trained ? in_memory : 0);
    }
    if (!is_derived) continue;
    derived += elements;
    largest_derived = std::max(largest_derived, parameter.Elements());
    for (const ParameterInfo& source : sources_of_it) {
      sources += here * source.Elements();
      largest_source = std::max(largest_source, source.Elements());
      if (HasPartialGradients(*this, source)) partial_gradients += here * source.Elements();
    }
  }
  stored += sources;
  stored_trained += sources;
  stored_matrices += sources - derived;
  stored_trained_matrices += sources - derived;
}

int64_t ModelShape::ExpertRows() const {
  if (spec.experts == 0) return 1;
  const int64_t chosen = spec.experts_per_token;
  if (expert_ranks == 1) return chosen;
  const int64_t most = expert_ranks * std::min(chosen, spec.experts / expert_ranks);
  if (spec.expert_capacity == 0) return most;
  const double taken = spec.expert_capacity * static_cast<double>(chosen * context_ranks);
  return std::min(most, static_cast<int64_t>(std::ceil(taken)));
}

int64_t HeadRows(const ModelShape& shape, int64_t tokens, int64_t sequence_length) {
  const std::string head = HeadOf(shape.spec);
  if (head == "causal_lm") return tokens;
  const int64_t sequences = tokens / sequence_length;
  if (head == "classification") return sequences;
  return std::max<int64_t>(sequences,
                           std::llround(shape.masked_share * static_cast<double>(tokens)));
}

ModelShape ShapeOf(const JobSpec& job) {
  constexpr int64_t kGpt2Vocabulary = 50304;
  constexpr int64_t kBertVocabulary = 30522;
  ModelSpec model = DeepestModel(job.model, job.train);
  if (model.vocab_size == 0 && model.family != "vit") {
    const int64_t usual = model.family == "bert" ? kBertVocabulary : kGpt2Vocabulary;
    model.vocab_size =
        PaddedVocabulary(job.data.tokenizer.path.empty() ? job.data.tokenizer.vocab_size : usual);
  }
  if (model.classes == 0 && HeadOf(model) == "classification") model.classes = kVocabularyTile;
  ModelShape shape(model);
  shape.masked_share = job.data.masking.probability;
  if (const std::optional<RankUnits> units = UnitsOfRank(job)) {
    const auto of_all = [](int64_t own, int64_t all) {
      return static_cast<double>(own) / static_cast<double>(all);
    };
    shape.largest_rank = {of_all(units->kv_heads, KvHeads(model)),
                          of_all(units->neurons, MlpWidth(model))};
    shape.computed.attention *= units->share;
    shape.computed.mlp *= units->share;
  }
  return shape;
}

ModelShape ShapeOfRank(const JobSpec& job) {
  const ResourceSpec& mesh = job.resources;
  const ModelShape whole = ShapeOf(job);
  ModelShape shape = whole;
  if (mesh.expert_parallel > 1) {
    shape = ModelShape::OfExpertRank(whole.spec, mesh.expert_parallel, mesh.tensor_parallel,
                                     mesh.sequence_parallel);
  } else if (mesh.tensor_parallel > 1) {
    shape = ModelShape(whole.spec, mesh.tensor_parallel, mesh.sequence_parallel, mesh.tensor_rows);
  }
  shape.masked_share = whole.masked_share;
  shape.context_ranks = mesh.context_parallel;
  return shape;
}

}  // namespace weft
