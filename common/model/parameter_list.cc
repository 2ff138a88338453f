#include "common/model/parameter_list.h"

#include <algorithm>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// A list under way.
struct Builder {
  std::vector<ParameterInfo> list;
  int64_t block = -1;
  int64_t expert = -1;

  void Add(std::string name, std::vector<int64_t> shape, ParameterKind kind) {
    list.push_back({std::move(name), std::move(shape), kind, block, expert});
  }
  /// A table or vector with a row for each token or class.
  void AddTiled(std::string name, std::vector<int64_t> shape, ParameterKind kind) {
    Add(std::move(name), std::move(shape), kind);
    list.back().tiled = true;
  }
  void Linear(const std::string& name, int64_t out, int64_t in, bool bias, ParameterKind kind) {
    Add(name + ".weight", {out, in}, kind);
    if (bias) Add(name + ".bias", {out}, kind);
  }
  /// The same, whose weight stands under that of the layer before.
  void Stacked(const std::string& name, int64_t out, int64_t in, bool bias, ParameterKind kind) {
    Linear(name, out, in, bias, kind);
    list[list.size() - (bias ? 2 : 1)].stacked = true;
  }
  /// `output` is the projection that ends the branch.
  void Branch(const std::string& output, const ModelSpec& model) {
    const BranchScaling scaling = BranchScalingOf(model);
    const ParameterKind kind = ParameterKind::kBranchScale;
    if (scaling == BranchScaling::kNone) return;
    const bool fixup = scaling == BranchScaling::kFixup;
    if (fixup) Add(output + ".input_shift", {1}, kind);
    Add(output + ".scale", {scaling == BranchScaling::kVector ? model.width : 1}, kind);
    if (fixup) Add(output + ".shift", {1}, kind);
  }
  void LayerNorm(const std::string& name, int64_t width,
                 ParameterKind kind = ParameterKind::kNorm) {
    Add(name + ".weight", {width}, kind);
    Add(name + ".bias", {width}, kind);
  }
  void RmsNorm(const std::string& name, int64_t width) {
    Add(name + ".weight", {width}, ParameterKind::kNorm);
  }
};

void AddGpt2Block(const ModelSpec& model, int64_t index, Builder& add) {
  const int64_t c = model.width;
  const bool norms = NormPositionOf(model) != "none";
  const std::string block = "transformer.h." + std::to_string(index);
  if (norms) add.LayerNorm(block + ".ln_1", c);
  add.Branch(block + ".attn.c_proj", model);
  add.Linear(block + ".attn.c_attn", c + 2 * KvWidth(model), c, true, ParameterKind::kAttention);
  add.Linear(block + ".attn.c_proj", c, c, true, ParameterKind::kAttention);
  if (norms) add.LayerNorm(block + ".ln_2", c);
  add.Branch(block + ".mlp.c_proj", model);
  add.Linear(block + ".mlp.c_fc", MlpWidth(model), c, true, ParameterKind::kMlp);
  add.Linear(block + ".mlp.c_proj", c, MlpWidth(model), true, ParameterKind::kMlp);
}

void AddExperts(const ModelSpec& model, const std::string& name, Builder& add) {
  const int64_t c = model.width, f = MlpWidth(model);
  add.Linear(name + "gate", model.experts, c, false, ParameterKind::kRouter);
  for (add.expert = 0; add.expert < model.experts; ++add.expert) {
    const std::string expert = name + "experts." + std::to_string(add.expert);
    add.Linear(expert + ".w1", f, c, false, ParameterKind::kMlp);
    add.Stacked(expert + ".w3", f, c, false, ParameterKind::kMlp);
    add.Linear(expert + ".w2", c, f, false, ParameterKind::kMlp);
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
  add.Branch(attention + "o_proj", model);
  add.Linear(attention + "q_proj", c, c, model.qkv_bias, ParameterKind::kAttention);
  add.Stacked(attention + "k_proj", KvWidth(model), c, model.qkv_bias, ParameterKind::kAttention);
  add.Stacked(attention + "v_proj", KvWidth(model), c, model.qkv_bias, ParameterKind::kAttention);
  add.Linear(attention + "o_proj", c, c, false, ParameterKind::kAttention);
  if (norms) add.RmsNorm(block + ".post_attention_layernorm", c);
  if (model.experts > 0) return AddExperts(model, block + ".block_sparse_moe.", add);
  add.Branch(mlp + "down_proj", model);
  add.Linear(mlp + "gate_proj", MlpWidth(model), c, false, ParameterKind::kMlp);
  add.Stacked(mlp + "up_proj", MlpWidth(model), c, false, ParameterKind::kMlp);
  add.Linear(mlp + "down_proj", c, MlpWidth(model), false, ParameterKind::kMlp);
}

// The blocks of bert and vit: separate queries, keys and values, and biases everywhere.
struct EncoderNames {
  std::string qkv, output, attention_norm, mlp_norm;
};

void AddEncoderBlock(const ModelSpec& model, const std::string& block, const EncoderNames& names,
                     Builder& add) {
  const int64_t c = model.width;
  add.Linear(block + names.qkv + "query", c, c, true, ParameterKind::kAttention);
  add.Stacked(block + names.qkv + "key", c, c, true, ParameterKind::kAttention);
  add.Stacked(block + names.qkv + "value", c, c, true, ParameterKind::kAttention);
  add.Linear(block + names.output, c, c, true, ParameterKind::kAttention);
  add.LayerNorm(block + names.attention_norm, c);
  add.Linear(block + "intermediate.dense", MlpWidth(model), c, true, ParameterKind::kMlp);
  add.Linear(block + "output.dense", c, MlpWidth(model), true, ParameterKind::kMlp);
  add.LayerNorm(block + names.mlp_norm, c);
}

void AddBertBlock(const ModelSpec& model, int64_t index, Builder& add) {
  AddEncoderBlock(model, "bert.encoder.layer." + std::to_string(index) + ".",
                  {"attention.self.", "attention.output.dense", "attention.output.LayerNorm",
                   "output.LayerNorm"},
                  add);
}

void AddVitBlock(const ModelSpec& model, int64_t index, Builder& add) {
  AddEncoderBlock(
      model, "vit.encoder.layer." + std::to_string(index) + ".",
      {"attention.attention.", "attention.output.dense", "layernorm_before", "layernorm_after"},
      add);
}

void AddBlocks(const ModelSpec& model, Builder& add) {
  for (int64_t i = 0; i < DistinctBlocks(model); ++i) {
    for (ParameterInfo& parameter : BlockParameters(model, i)) {
      add.list.push_back(std::move(parameter));
    }
  }
}

void AddClasses(const ModelSpec& model, Builder& add) {
  add.AddTiled("classifier.weight", {model.classes, model.width}, ParameterKind::kClassifier);
  add.AddTiled("classifier.bias", {model.classes}, ParameterKind::kClassifier);
}

std::vector<ParameterInfo> BertParameters(const ModelSpec& model) {
  const int64_t c = model.width;
  const std::string embeddings = "bert.embeddings.";
  Builder add;
  add.AddTiled(embeddings + "word_embeddings.weight", {model.vocab_size, c},
               ParameterKind::kTokenEmbedding);
  add.Add(embeddings + "position_embeddings.weight", {model.context, c},
          ParameterKind::kPositionEmbedding);
  add.Add(embeddings + "token_type_embeddings.weight", {TokenTypes(model), c},
          ParameterKind::kPositionEmbedding);
  add.LayerNorm(embeddings + "LayerNorm", c);
  AddBlocks(model, add);
  if (HeadOf(model) == "classification") {
    add.Linear("bert.pooler.dense", c, c, true, ParameterKind::kClassifier);
    AddClasses(model, add);
    return std::move(add.list);
  }
  add.Linear("cls.predictions.transform.dense", c, c, true, ParameterKind::kClassifier);
  add.LayerNorm("cls.predictions.transform.LayerNorm", c, ParameterKind::kClassifier);
  add.AddTiled("cls.predictions.bias", {model.vocab_size}, ParameterKind::kClassifier);
  if (model.untied_classifier) {
    add.AddTiled("cls.predictions.decoder.weight", {model.vocab_size, c},
                 ParameterKind::kClassifier);
  }
  return std::move(add.list);
}

std::vector<ParameterInfo> VitParameters(const ModelSpec& model) {
  const int64_t c = model.width;
  Builder add;
  add.Add("vit.embeddings.cls_token", {1, c}, ParameterKind::kPositionEmbedding);
  add.Add("vit.embeddings.position_embeddings", {ImagePatches(model) + 1, c},
          ParameterKind::kPositionEmbedding);
  add.Linear("vit.embeddings.patch_embeddings.projection", c, PatchPixels(model), true,
             ParameterKind::kEmbeddingProjection);
  AddBlocks(model, add);
  add.LayerNorm("vit.layernorm", c);
  AddClasses(model, add);
  return std::move(add.list);
}

std::vector<ParameterInfo> DecoderParameters(const ModelSpec& model) {
  const bool llama = model.family == "llama";
  const int64_t e = EmbeddingWidth(model), c = model.width;
  Builder add;
  add.AddTiled(llama ? "model.embed_tokens.weight" : "transformer.wte.weight",
               {model.vocab_size, e}, ParameterKind::kTokenEmbedding);
  if (!llama) {
    add.Add("transformer.wpe.weight", {model.context, e}, ParameterKind::kPositionEmbedding);
  }
  if (FactorisedEmbedding(model)) {
    add.Linear("embedding_in", c, e, true, ParameterKind::kEmbeddingProjection);
  }
  AddBlocks(model, add);
  if (NormPositionOf(model) == "pre") {
    if (llama) {
      add.RmsNorm("model.norm", c);
    } else {
      add.LayerNorm("transformer.ln_f", c);
    }
  }
  if (FactorisedEmbedding(model) && !model.untied_classifier) {
    add.Linear("embedding_out", e, c, true, ParameterKind::kEmbeddingProjection);
  }
  if (model.untied_classifier) {
    add.AddTiled("lm_head.weight", {model.vocab_size, c}, ParameterKind::kClassifier);
  }
  return std::move(add.list);
}

// Makes `parameter` what one of the ranks of a grid has of it: the rows divide the features of the
// residual stream, the columns the other side of each matrix.
void TakePart(int64_t rows, int64_t columns, ParameterInfo& parameter) {
  std::vector<int64_t>& shape = parameter.shape;
  const bool block =
      parameter.kind == ParameterKind::kAttention || parameter.kind == ParameterKind::kMlp;
  const bool table = parameter.kind == ParameterKind::kTokenEmbedding ||
                     parameter.kind == ParameterKind::kClassifier;
  if (!block && !table) {
    // A norm, or positions.
    shape.back() /= rows;
    return;
  }
  if (block && IsOutputProjection(parameter)) {
    shape[0] /= rows;
    shape[1] /= columns;
    return;
  }
  // The bias of such a product is that of features.
  if (IsOutputBias(parameter)) {
    shape[0] /= rows;
    return;
  }
  shape[0] = (shape[0] + columns - 1) / columns;
  if (shape.size() > 1) shape[1] /= rows;
}

void CountProductRows(std::vector<ParameterInfo>& parameters) {
  std::vector<ParameterInfo*> product;
  for (ParameterInfo& parameter : parameters) {
    if (!parameter.matrix()) continue;
    if (!parameter.stacked) product.clear();
    product.push_back(&parameter);
    const int64_t above = product.front() == &parameter ? 0 : product.front()->product_rows;
    const int64_t rows = above + parameter.StoredElements() / parameter.shape[1];
    for (ParameterInfo* part : product) part->product_rows = rows;
  }
}

}  // namespace

int64_t ParameterInfo::StoredElements() const {
  return tiled ? Elements() / shape[0] * PaddedVocabulary(shape[0]) : Elements();
}

int64_t ParameterInfo::PackedPadding() const {
  if (stacked || in_tiles()) return 0;
  const int64_t rows = (product_rows + 63) / 64 * 64, columns = (shape[1] + 15) / 16 * 16;
  return rows * columns - product_rows * shape[1];
}

std::vector<ParameterInfo> BlockParameters(const ModelSpec& model, int64_t index) {
  Builder add;
  add.block = index;
  if (model.family == "llama") {
    AddLlamaBlock(model, index, add);
  } else if (model.family == "bert") {
    AddBertBlock(model, index, add);
  } else if (model.family == "vit") {
    AddVitBlock(model, index, add);
  } else {
    AddGpt2Block(model, index, add);
  }
  return std::move(add.list);
}

std::vector<ParameterInfo> ParametersOf(const ModelSpec& model) {
  std::vector<ParameterInfo> parameters = model.family == "bert"  ? BertParameters(model)
                                          : model.family == "vit" ? VitParameters(model)
                                                                  : DecoderParameters(model);
  CountProductRows(parameters);
  return parameters;
}

bool IsOutputProjection(const ParameterInfo& parameter) {
  for (const char* suffix : {"attn.c_proj.weight", "mlp.c_proj.weight", "o_proj.weight",
                             "down_proj.weight", "output.dense.weight", ".w2.weight"}) {
    if (parameter.name.ends_with(suffix)) return true;
  }
  return false;
}

bool IsOutputBias(const ParameterInfo& parameter) {
  return parameter.name.ends_with("c_proj.bias") || parameter.name.ends_with("output.dense.bias");
}

bool IsClassifier(const ModelSpec& model, const ParameterInfo& parameter) {
  if (!parameter.tiled || !parameter.matrix()) return false;
  const bool of_tokens = HeadOf(model) != "classification";
  const bool table = parameter.kind == ParameterKind::kTokenEmbedding;
  return of_tokens ? table != model.untied_classifier : !table;
}

bool IsOnExpertRank(const ModelSpec& model, const ParameterInfo& parameter, int64_t ranks) {
  return parameter.expert < model.experts / ranks;
}

bool IsOnStage(const ModelSpec& model, const ParameterInfo& parameter, bool first, bool last) {
  if (parameter.block >= 0 || (first && last)) return true;
  switch (parameter.kind) {
    case ParameterKind::kTokenEmbedding:
      return first || (last && !model.untied_classifier);
    case ParameterKind::kPositionEmbedding:
      return first;
    case ParameterKind::kEmbeddingProjection:
      return parameter.name.starts_with("embedding_in") ? first : last;
    default:
      return last;
  }
}

bool IsTrained(const ModelSpec& model, const ParameterInfo& parameter) {
  return std::none_of(model.freeze.begin(), model.freeze.end(), [&](const std::string& pattern) {
    return GlobMatches(pattern, parameter.name);
  });
}

int64_t FirstTrainedBlock(const ModelSpec& model) {
  if (model.freeze.empty()) return -1;
  int64_t block = -1;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.block >= 0) block = parameter.block;
    const bool after = parameter.block < 0 && block >= 0;
    if (IsTrained(model, parameter)) return after ? DistinctBlocks(model) : block;
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
      const bool trained = IsTrained(model, there[i]);
      if (trained != IsTrained(model, here[i])) as_before = false;
      if (!trained) frozen.push_back(here[i].name);
    }
  }
  if (as_before) return model.freeze;
  for (const ParameterInfo& parameter : ParametersOf(model)) {
    if (parameter.block < 0 && !IsTrained(model, parameter)) frozen.push_back(parameter.name);
  }
  return frozen;
}

std::vector<ParameterInfo> ParametersOfRank(const ModelSpec& model, int64_t tensor, int64_t rows) {
  std::vector<ParameterInfo> parameters = ParametersOf(model);
  if (tensor == 1) return parameters;
  for (ParameterInfo& parameter : parameters) TakePart(rows, tensor / rows, parameter);
  CountProductRows(parameters);
  return parameters;
}

std::vector<ParameterGroup> ParameterGroupsOfRank(const ModelSpec& model, int64_t tensor,
                                                  int64_t rows) {
  const bool alike = !TellsBlocksApart(model);
  ModelSpec one = model;
  if (alike && model.layers > 0) one.layers = one.distinct_blocks = 1;
  const int64_t blocks = DistinctBlocks(model) / std::max<int64_t>(DistinctBlocks(one), 1);
  std::vector<ParameterGroup> groups;
  for (ParameterInfo& parameter : ParametersOfRank(one, tensor, rows)) {
    if (alike && parameter.expert > 0) continue;
    const bool of_expert = alike && parameter.expert == 0;
    const int64_t having = parameter.block >= 0 ? blocks : 1;
    groups.push_back({std::move(parameter), having, of_expert ? model.experts : 1});
  }
  return groups;
}

}  // namespace weft
