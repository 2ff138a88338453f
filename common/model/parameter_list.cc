#include "common/model/parameter_list.h"

#include <algorithm>
#include <utility>

#include "common/glob.h"
#include "common/model/encoder_names.h"
#include "common/model/model_sizes.h"
#include "common/model/outer_layers.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// A list under way.
struct Builder {
  explicit Builder(const ModelSpec& of) : Builder(of, of.experts) {}
  Builder(const ModelSpec& of, int64_t some_experts) : model(of), experts(some_experts) {}

  const ModelSpec& model;
  const int64_t experts;  ///< Of each block, that are listed.
  std::vector<ParameterInfo> list;
  int64_t block = -1;
  int64_t expert = -1;
  bool after_blocks = false;

  void Add(std::string name, std::vector<int64_t> shape, ParameterRole role, bool bias = false) {
    ParameterInfo& added = list.emplace_back();
    added.role = role;
    added.bias = bias;
    added.block = block;
    added.expert = expert;
    added.unit = after_blocks ? DistinctBlocks(model) + 1 : block + 1;
    added.name = std::move(name);
    added.shape = std::move(shape);
    added.frozen = MatchesAny(model.freeze, added.name) || FrozenByTechniques(model, added);
  }
  /// A table or vector with a row for each token or class.
  void AddTiled(std::string name, std::vector<int64_t> shape, ParameterRole role,
                bool bias = false) {
    Add(std::move(name), std::move(shape), role, bias);
    list.back().tiled = true;
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias, ParameterRole role) {
    Add(name + ".weight", {out, in}, role);
    if (bias) Add(name + ".bias", {out}, role, true);
  }
  /// The same, whose weight is stacked under that of the layer before.
  void Stacked(const std::string& name, int64_t out, int64_t in, bool bias, ParameterRole role) {
    Linear(name, out, in, bias, role);
    list[list.size() - (bias ? 2 : 1)].stacked = true;
  }
  /// `output` is the projection that ends the branch.
  void Branch(const std::string& output, ParameterRole role) {
    const BranchScaling scaling = BranchScalingOf(model);
    if (scaling == BranchScaling::kNone) return;
    const bool fixup = scaling == BranchScaling::kFixup;
    if (fixup) Add(output + ".input_shift", {1}, role, true);
    Add(output + ".scale", {scaling == BranchScaling::kVector ? model.width : 1}, role);
    if (fixup) Add(output + ".shift", {1}, role, true);
  }
  void LayerNorm(const std::string& name, int64_t width,
                 ParameterRole role = ParameterRole::kNorm) {
    Add(name + ".weight", {width}, role);
    Add(name + ".bias", {width}, role, true);
  }
  void RmsNorm(const std::string& name, int64_t width) {
    Add(name + ".weight", {width}, ParameterRole::kNorm);
  }
};

void AddGpt2Block(const ModelSpec& model, int64_t index, Builder& add) {
  const int64_t c = model.width;
  const bool norms = NormPositionOf(model) != "none";
  const std::string block = "transformer.h." + std::to_string(index);
  if (norms) add.LayerNorm(block + ".ln_1", c);
  add.Branch(block + ".attn.c_proj", ParameterRole::kAttentionScale);
  add.Linear(block + ".attn.c_attn", c + 2 * KvWidth(model), c, true,
             ParameterRole::kQueriesKeysValues);
  add.list[add.list.size() - 2].parts = {c, KvWidth(model), KvWidth(model)};
  add.Linear(block + ".attn.c_proj", c, c, true, ParameterRole::kAttentionOutput);
  if (norms) add.LayerNorm(block + ".ln_2", c);
  add.Branch(block + ".mlp.c_proj", ParameterRole::kMlpScale);
  add.Linear(block + ".mlp.c_fc", MlpWidth(model), c, true, ParameterRole::kMlpUp);
  add.Linear(block + ".mlp.c_proj", c, MlpWidth(model), true, ParameterRole::kMlpDown);
}

void AddExperts(const ModelSpec& model, const std::string& name, Builder& add) {
  const int64_t c = model.width, f = MlpWidth(model);
  add.Linear(name + "gate", model.experts, c, false, ParameterRole::kRouter);
  for (add.expert = 0; add.expert < add.experts; ++add.expert) {
    const std::string expert = name + "experts." + std::to_string(add.expert);
    add.Linear(expert + ".w1", f, c, false, ParameterRole::kMlpUp);
    add.Stacked(expert + ".w3", f, c, false, ParameterRole::kMlpUp);
    add.Linear(expert + ".w2", c, f, false, ParameterRole::kMlpDown);
  }
  add.expert = -1;
}

void AddLlamaBlock(const ModelSpec& model, int64_t index, Builder& add) {
  const int64_t c = model.width;
  const bool norms = NormPositionOf(model) != "none";
  const std::string block = "model.layers." + std::to_string(index);
  const std::string attention = block + ".self_attn.";
  const std::string mlp = block + ".mlp.";
  if (norms) add.RmsNorm(block + ".input_layernorm", c);
  add.Branch(attention + "o_proj", ParameterRole::kAttentionScale);
  add.Linear(attention + "q_proj", QueryWidth(model), c, model.qkv_bias,
             ParameterRole::kQueriesKeys);
  add.Stacked(attention + "k_proj", KvWidth(model), c, model.qkv_bias, ParameterRole::kQueriesKeys);
  add.Stacked(attention + "v_proj", KvWidth(model), c, model.qkv_bias, ParameterRole::kValues);
  add.Linear(attention + "o_proj", c, QueryWidth(model), false, ParameterRole::kAttentionOutput);
  if (norms) add.RmsNorm(block + ".post_attention_layernorm", c);
  if (model.experts > 0) return AddExperts(model, block + ".block_sparse_moe.", add);
  add.Branch(mlp + "down_proj", ParameterRole::kMlpScale);
  add.Linear(mlp + "gate_proj", MlpWidth(model), c, false, ParameterRole::kMlpUp);
  add.Stacked(mlp + "up_proj", MlpWidth(model), c, false, ParameterRole::kMlpUp);
  add.Linear(mlp + "down_proj", c, MlpWidth(model), false, ParameterRole::kMlpDown);
}

// The blocks of bert and vit: separate queries, keys and values, and biases everywhere.
void AddEncoderBlock(const ModelSpec& model, const EncoderBlockNames& names, Builder& add) {
  const int64_t c = model.width;
  add.Linear(names.query, c, c, true, ParameterRole::kQueriesKeys);
  add.Stacked(names.key, c, c, true, ParameterRole::kQueriesKeys);
  add.Stacked(names.value, c, c, true, ParameterRole::kValues);
  add.Linear(names.attention_output, c, c, true, ParameterRole::kAttentionOutput);
  add.LayerNorm(names.attention_norm, c);
  add.Linear(names.up, MlpWidth(model), c, true, ParameterRole::kMlpUp);
  add.Linear(names.down, c, MlpWidth(model), true, ParameterRole::kMlpDown);
  add.LayerNorm(names.mlp_norm, c);
}

// With this many experts.
std::vector<ParameterInfo> PlainBlockWith(const ModelSpec& model, int64_t index, int64_t experts) {
  Builder add(model, experts);
  add.block = index;
  if (model.family == "llama") {
    AddLlamaBlock(model, index, add);
  } else if (model.family == "bert") {
    AddEncoderBlock(model, BertBlockNamesOf(index), add);
  } else if (model.family == "vit") {
    AddEncoderBlock(model, VitBlockNamesOf(model, index), add);
  } else {
    AddGpt2Block(model, index, add);
  }
  return std::move(add.list);
}

void AddBlocks(const ModelSpec& model, Builder& add) {
  for (int64_t i = 0; i < DistinctBlocks(model); ++i) {
    for (ParameterInfo& parameter : PlainBlockWith(model, i, add.experts)) {
      add.list.push_back(std::move(parameter));
    }
  }
  add.after_blocks = true;
}

void AddBertEmbeddings(const ModelSpec& model, Builder& add) {
  const int64_t c = model.width;
  const std::string embeddings = "bert.embeddings.";
  add.AddTiled(embeddings + "word_embeddings.weight", {model.vocab_size, c},
               ParameterRole::kTokenEmbedding);
  add.Add(embeddings + "position_embeddings.weight", {model.context, c},
          ParameterRole::kPositionEmbedding);
  add.Add(embeddings + "token_type_embeddings.weight", {TokenTypes(model), c},
          ParameterRole::kPositionEmbedding);
  add.LayerNorm(embeddings + "LayerNorm", c);
}

void AddVitEmbeddings(const ModelSpec& model, Builder& add) {
  const int64_t c = model.width;
  add.Add("vit.embeddings.cls_token", {1, c}, ParameterRole::kPositionEmbedding);
  add.Add("vit.embeddings.position_embeddings", {ImagePatches(model) + 1, c},
          ParameterRole::kPositionEmbedding);
  add.Linear("vit.embeddings.patch_embeddings.projection", c, PatchPixels(model), true,
             ParameterRole::kEmbeddingProjection);
}

void AddDecoderEmbeddings(const ModelSpec& model, Builder& add) {
  const bool llama = model.family == "llama";
  const int64_t e = EmbeddingWidth(model);
  add.AddTiled(llama ? "model.embed_tokens.weight" : "transformer.wte.weight",
               {model.vocab_size, e}, ParameterRole::kTokenEmbedding);
  if (!llama) {
    add.Add("transformer.wpe.weight", {model.context, e}, ParameterRole::kPositionEmbedding);
  }
  if (FactorisedEmbedding(model)) {
    add.Linear("embedding_in", model.width, e, true, ParameterRole::kEmbeddingProjection);
  }
}

void AddClasses(const ModelSpec& model, Builder& add) {
  add.AddTiled("classifier.weight", {model.classes, model.width}, ParameterRole::kClassifier);
  add.AddTiled("classifier.bias", {model.classes}, ParameterRole::kClassifier, true);
}

std::vector<ParameterInfo> BertParameters(const ModelSpec& model) {
  const int64_t c = model.width;
  Builder add(model);
  AddBertEmbeddings(model, add);
  AddBlocks(model, add);
  if (HeadOf(model) == "classification") {
    add.Linear("bert.pooler.dense", c, c, true, ParameterRole::kHeadTransform);
    AddClasses(model, add);
    return std::move(add.list);
  }
  add.Linear("cls.predictions.transform.dense", c, c, true, ParameterRole::kHeadTransform);
  add.LayerNorm("cls.predictions.transform.LayerNorm", c, ParameterRole::kHeadNorm);
  add.AddTiled("cls.predictions.bias", {model.vocab_size}, ParameterRole::kClassifier, true);
  if (model.untied_classifier) {
    add.AddTiled("cls.predictions.decoder.weight", {model.vocab_size, c},
                 ParameterRole::kClassifier);
  }
  return std::move(add.list);
}

std::vector<ParameterInfo> VitParameters(const ModelSpec& model) {
  Builder add(model);
  AddVitEmbeddings(model, add);
  AddBlocks(model, add);
  add.LayerNorm("vit.layernorm", model.width);
  AddClasses(model, add);
  return std::move(add.list);
}

std::vector<ParameterInfo> DecoderParameters(const ModelSpec& model, int64_t experts) {
  const bool llama = model.family == "llama";
  const int64_t e = EmbeddingWidth(model), c = model.width;
  Builder add(model, experts);
  AddDecoderEmbeddings(model, add);
  AddBlocks(model, add);
  if (NormPositionOf(model) == "pre") {
    if (llama) {
      add.RmsNorm("model.norm", c);
    } else {
      add.LayerNorm("transformer.ln_f", c);
    }
  }
  if (FactorisedEmbedding(model) && !model.untied_classifier) {
    add.Linear("embedding_out", e, c, true, ParameterRole::kEmbeddingProjection);
  }
  if (model.untied_classifier) {
    add.AddTiled("lm_head.weight", {model.vocab_size, c}, ParameterRole::kClassifier);
  }
  return std::move(add.list);
}

// Makes a factor what one of the ranks has of it. Some of the blocks where the side of the weight
// that is cut is its own; else of each the part that goes with the other factor's blocks.
void TakePartOfFactor(int64_t ranks, ParameterInfo& factor) {
  const bool of_input = factor.factor == FactorSide::kInput;
  if (of_input == EndsSubLayer(factor.role)) {
    factor.shape[0] /= ranks;
    factor.products /= ranks;
    factor.parts.resize(static_cast<size_t>(factor.products));
  } else if (of_input) {
    factor.shape[0] /= ranks;
    for (int64_t& part : factor.parts) part /= ranks;
  } else {
    factor.shape[1] /= ranks;
  }
}

// Makes `parameter` what one of the ranks of a grid has of it: the rows divide the features of the
// residual stream, the columns the other side of each matrix.
void TakePart(int64_t rows, int64_t columns, ParameterInfo& parameter) {
  std::vector<int64_t>& shape = parameter.shape;
  const bool block = IsAttention(parameter.role) || IsMlp(parameter.role);
  const bool table = parameter.role == ParameterRole::kTokenEmbedding || IsHead(parameter.role);
  if (parameter.factor != FactorSide::kNone) return TakePartOfFactor(columns, parameter);
  if (parameter.adapter == AdapterSide::kNeither) {
    // Keys and values that stand for those of tokens are of heads.
    if (!parameter.of_virtual_tokens || !block) return;
    (parameter.read_directly ? shape.back() : shape.front()) /= columns;
    return;
  }
  if (parameter.of_whole_weight) return;
  // An adapter is divided with the side of the weight that it shares.
  if (parameter.adapter != AdapterSide::kNone) {
    const bool input = parameter.adapter == AdapterSide::kInput;
    if (input != EndsSubLayer(parameter.role)) return;
    int64_t& side = input ? shape.back() : shape.front();
    side = (side + columns - 1) / columns;  // of classes one rank may have fewer
    for (int64_t& part : parameter.parts) part /= columns;
    return;
  }
  if (!block && !table) {
    // A norm, or positions.
    shape.back() /= rows;
    return;
  }
  if (parameter.output_weight()) {
    shape[0] /= rows;
    shape[1] /= columns;
    return;
  }
  // The bias of such a product is that of features.
  if (parameter.output_bias()) {
    shape[0] /= rows;
    return;
  }
  shape[0] = (shape[0] + columns - 1) / columns;
  for (int64_t& part : parameter.parts) part /= columns;
  if (shape.size() > 1) shape[1] /= rows;
}

/// Puts what the network has in place of weights where these are. The weights of a layer are one
/// matrix unless one of them is replaced.
std::vector<ParameterInfo> ReplaceWeights(const ModelSpec& model, std::vector<ParameterInfo> list) {
  std::vector<std::vector<ParameterInfo>> tensors(list.size());
  std::vector<size_t> layer;
  bool any = false;
  for (size_t i = 0; i < list.size(); ++i) {
    const ParameterInfo& weight = list[i];
    if (weight.block < 0 || !weight.matrix()) continue;
    tensors[i] = ReplacementsOf(model, weight);
    any = any || !tensors[i].empty();
    if (!weight.stacked) layer.clear();
    layer.push_back(i);
    const bool whole =
        std::all_of(layer.begin(), layer.end(), [&](size_t k) { return tensors[k].empty(); });
    for (size_t k : layer) list[k].stacked = whole && k != layer.front();
  }
  if (!any) return list;
  std::vector<ParameterInfo> replaced;
  for (size_t i = 0; i < list.size(); ++i) {
    for (ParameterInfo& tensor : tensors[i]) {
      tensor.frozen =
          MatchesAny(model.freeze, tensor.name) || MatchesAny(model.freeze, list[i].name);
      tensor.stacked = false;
      tensor.in_place_of = list[i].name;
      replaced.push_back(std::move(tensor));
    }
    if (tensors[i].empty()) replaced.push_back(std::move(list[i]));
  }
  return replaced;
}

/// Puts what layers have besides their weights behind what they have without techniques.
std::vector<ParameterInfo> AddAdapters(const ModelSpec& model, std::vector<ParameterInfo> list) {
  const auto can_have = [&](const ParameterInfo& parameter) {
    return parameter.matrix() && (parameter.block >= 0 || IsOuterWeight(model, parameter));
  };
  const bool any = std::any_of(list.begin(), list.end(), [&](const ParameterInfo& parameter) {
    return can_have(parameter) && !AdaptersOf(model, parameter).empty();
  });
  if (!any) return list;
  std::vector<ParameterInfo> with, waiting;
  const auto end_layer = [&] {
    for (ParameterInfo& adapter : waiting) with.push_back(std::move(adapter));
    waiting.clear();
  };
  for (ParameterInfo& parameter : list) {
    const bool of_layer = parameter.stacked || (parameter.bias && !IsBranchScale(parameter.role));
    if (!of_layer) end_layer();
    if (can_have(parameter)) {
      for (ParameterInfo& adapter : AdaptersOf(model, parameter)) {
        adapter.frozen =
            MatchesAny(model.freeze, adapter.name) || FrozenByTechniques(model, adapter);
        adapter.stacked = false;
        adapter.adapter_of = parameter.name;
        if (!adapter.matrix()) {
          parameter.more_products = std::max(parameter.more_products, adapter.more_products);
          parameter.more_input_gradients =
              std::max(parameter.more_input_gradients, adapter.more_input_gradients);
        }
        waiting.push_back(std::move(adapter));
      }
    }
    with.push_back(std::move(parameter));
  }
  end_layer();
  return with;
}

/// Puts the tensors of grafts behind their sub-layer, of a mixture behind its experts, and those at
/// the embedding before the blocks.
std::vector<ParameterInfo> AddGrafts(const ModelSpec& model, std::vector<ParameterInfo> list) {
  std::vector<ParameterInfo> with, waiting;
  if (!list.empty() && list.front().block < 0) waiting = EmbeddingGraftsOf(model);
  const bool any = std::any_of(list.begin(), list.end(), [&](const ParameterInfo& parameter) {
    return parameter.grafted_weight() && !GraftsOf(model, parameter).empty();
  });
  if (!any && waiting.empty()) return list;
  int64_t block = -1;
  const auto add_waiting = [&] {
    for (ParameterInfo& tensor : waiting) {
      tensor.frozen = MatchesAny(model.freeze, tensor.name) || FrozenByTechniques(model, tensor);
      with.push_back(std::move(tensor));
    }
    waiting.clear();
  };
  for (ParameterInfo& parameter : list) {
    const bool of_layer = IsAttention(parameter.role) || IsMlp(parameter.role);
    const bool begins = parameter.block != std::exchange(block, parameter.block);
    // What ends a sub-layer is followed by its bias and its adapters alone, a router by experts.
    const bool of_expert = parameter.expert >= 0;
    if (begins || !of_layer || (parameter.is_weight() && !of_expert)) add_waiting();
    if (parameter.grafted_weight()) {
      // Keys and values come before the product behind attention.
      for (ParameterInfo& tensor : GraftsOf(model, parameter)) {
        waiting.push_back(std::move(tensor));
        if (waiting.back().role == ParameterRole::kValues) add_waiting();
      }
    }
    with.push_back(std::move(parameter));
  }
  add_waiting();
  return with;
}

/// Says which weights are quantised. Weights of a layer are all so, or none is.
void QuantizeWeights(const ModelSpec& model, std::vector<ParameterInfo>& list) {
  std::vector<ParameterInfo*> layer;
  const auto end_layer = [&] {
    const bool whole = std::all_of(layer.begin(), layer.end(), [](const ParameterInfo* each) {
      return each->quantized_words > 0;
    });
    for (ParameterInfo* each : layer) each->quantized_words = whole ? each->quantized_words : 0;
    layer.clear();
  };
  for (ParameterInfo& parameter : list) {
    if (parameter.block < 0 || !parameter.matrix() || !parameter.is_weight()) continue;
    if (!parameter.stacked) end_layer();
    parameter.quantized_words = QuantizedWordsOf(model, parameter, parameter.Elements());
    layer.push_back(&parameter);
  }
  end_layer();
}

/// With all that techniques make of them.
std::vector<ParameterInfo> WithTechniques(const ModelSpec& model, std::vector<ParameterInfo> list) {
  list = AddGrafts(model, AddAdapters(model, ReplaceWeights(model, std::move(list))));
  QuantizeWeights(model, list);
  return list;
}

/// Says of matrices what goes by all of those that a product reads as one.
void DescribeProducts(std::vector<ParameterInfo>& parameters) {
  std::vector<ParameterInfo*> product;
  for (ParameterInfo& parameter : parameters) {
    if (!parameter.matrix()) continue;
    if (!parameter.stacked) product.clear();
    product.push_back(&parameter);
    const bool frozen = std::all_of(product.begin(), product.end(), [](const ParameterInfo* part) {
      return part->frozen && part->packed() && part->quantized_words == 0;
    });
    for (ParameterInfo* part : product) part->only_multiplied = frozen;
    const int64_t above = product.front() == &parameter ? 0 : product.front()->product_rows;
    const int64_t rows =
        above + parameter.StoredElements() / parameter.shape[1] / parameter.products;
    for (ParameterInfo* part : product) part->product_rows = rows;
  }
}

// With this many experts of each block.
std::vector<ParameterInfo> PlainParametersWith(const ModelSpec& model, int64_t experts) {
  if (model.family == "bert") return BertParameters(model);
  if (model.family == "vit") return VitParameters(model);
  return DecoderParameters(model, experts);
}

std::vector<ParameterInfo> ParametersWith(const ModelSpec& model, int64_t experts) {
  std::vector<ParameterInfo> parameters =
      WithTechniques(model, PlainParametersWith(model, experts));
  // Techniques have added some to blocks.
  for (ParameterInfo& parameter : parameters) {
    if (parameter.block >= 0) parameter.unit = parameter.block + 1;
  }
  DescribeProducts(parameters);
  return parameters;
}

}  // namespace

std::vector<ParameterInfo> PlainBlockParameters(const ModelSpec& model, int64_t index) {
  return PlainBlockWith(model, index, model.experts);
}

std::vector<ParameterInfo> BlockParameters(const ModelSpec& model, int64_t index,
                                           int64_t most_experts) {
  return WithTechniques(model, PlainBlockWith(model, index, std::min(model.experts, most_experts)));
}

std::vector<ParameterInfo> PlainParametersOf(const ModelSpec& model) {
  return PlainParametersWith(model, model.experts);
}

std::vector<ParameterInfo> PlainEmbeddingParameters(const ModelSpec& model) {
  Builder add(model);
  if (model.family == "bert") {
    AddBertEmbeddings(model, add);
  } else if (model.family == "vit") {
    AddVitEmbeddings(model, add);
  } else {
    AddDecoderEmbeddings(model, add);
  }
  return std::move(add.list);
}

std::vector<ParameterInfo> ParametersOf(const ModelSpec& model) {
  return ParametersWith(model, model.experts);
}

std::vector<int64_t> RowPartsOf(const ModelSpec& model, const ParameterInfo& parameter) {
  if (parameter.role != ParameterRole::kQueriesKeysValues) return {parameter.shape[0]};
  return {QueryWidth(model), KvWidth(model), KvWidth(model)};
}

bool IsClassifier(const ModelSpec& model, const ParameterInfo& parameter) {
  if (!parameter.tiled || !parameter.matrix() || !parameter.is_weight()) return false;
  const bool of_tokens = HeadOf(model) != "classification";
  const bool table = parameter.role == ParameterRole::kTokenEmbedding;
  return of_tokens ? table != model.untied_classifier : !table;
}

bool IsOnExpertRank(const ModelSpec& model, const ParameterInfo& parameter, int64_t ranks) {
  return parameter.expert < model.experts / ranks;
}

bool IsOnStage(const ModelSpec& model, const ParameterInfo& parameter, bool first, bool last) {
  if (parameter.block >= 0 || parameter.of_all_blocks || (first && last)) return true;
  if (parameter.role == ParameterRole::kTokenEmbedding || parameter.of_table) {
    return first || (last && !model.untied_classifier);
  }
  return parameter.unit == 0 ? first : last;
}

int64_t FirstTrainedBlock(const ModelSpec& model) {
  if (!FreezesAny(model)) return -1;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (!parameter.frozen) return parameter.unit - 1;
  }
  return DistinctBlocks(model);
}

std::vector<std::string> FreezeOfBlocks(const ModelSpec& model,
                                        const std::vector<int64_t>& blocks) {
  if (model.freeze.empty()) return {};
  std::vector<std::string> frozen;
  bool as_before = true;
  for (size_t local = 0; local < blocks.size(); ++local) {
    const std::vector<ParameterInfo> here = BlockParameters(model, static_cast<int64_t>(local));
    const std::vector<ParameterInfo> there = BlockParameters(model, blocks[local]);
    for (size_t i = 0; i < here.size(); ++i) {
      if (there[i].frozen != here[i].frozen) as_before = false;
      if (there[i].frozen) frozen.push_back(here[i].name);
    }
  }
  if (as_before) return model.freeze;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.block < 0 && parameter.frozen) frozen.push_back(parameter.name);
  }
  return frozen;
}

std::vector<ParameterInfo> ParametersOfRank(const ModelSpec& model, int64_t tensor, int64_t rows,
                                            int64_t most_experts) {
  std::vector<ParameterInfo> parameters =
      ParametersWith(model, std::min(model.experts, most_experts));
  if (tensor == 1) return parameters;
  for (ParameterInfo& parameter : parameters) {
    const int64_t whole = parameter.Elements();
    TakePart(rows, tensor / rows, parameter);
    if (parameter.quantized_words == 0) continue;
    parameter.quantized_words = QuantizedWordsOf(model, parameter, whole);
  }
  DescribeProducts(parameters);
  return parameters;
}

}  // namespace weft
