#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace weft {

/// What the layer of a parameter does in its network.
enum class ParameterRole : uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,    ///< Of segments and of the class token, too.
  kEmbeddingProjection,  ///< Between a factorised embedding, or patches, and the blocks.
  kNorm,
  kQueriesKeysValues,  ///< Three blocks of rows; queries and keys, or values, where they are apart.
  kQueriesKeys,
  kValues,
  kAttentionOutput,
  kAttentionScale,  ///< Of the residual branch of an attention, with its shifts.
  kMlpUp,
  kMlpDown,
  kMlpScale,       ///< Of the residual branch of an MLP, with its shifts.
  kRouter,         ///< Of a mixture of experts.
  kHeadTransform,  ///< Between the blocks and the classifier.
  kHeadNorm,       ///< Likewise.
  kClassifier,     ///< Unless it is the token embedding.
};

/// A product of an attention.
inline bool IsAttention(ParameterRole role) {
  return role == ParameterRole::kQueriesKeysValues || role == ParameterRole::kQueriesKeys ||
         role == ParameterRole::kValues || role == ParameterRole::kAttentionOutput;
}

/// A product of an MLP, or of an expert.
inline bool IsMlp(ParameterRole role) {
  return role == ParameterRole::kMlpUp || role == ParameterRole::kMlpDown;
}

/// The product that ends a sub-layer: after attention, after the MLP.
inline bool EndsSubLayer(ParameterRole role) {
  return role == ParameterRole::kAttentionOutput || role == ParameterRole::kMlpDown;
}

inline bool IsBranchScale(ParameterRole role) {
  return role == ParameterRole::kAttentionScale || role == ParameterRole::kMlpScale;
}

/// Whether it is between the blocks and the targets.
inline bool IsHead(ParameterRole role) {
  return role == ParameterRole::kHeadTransform || role == ParameterRole::kHeadNorm ||
         role == ParameterRole::kClassifier;
}

/// Which side of its weight [out, in] a tensor that a layer has besides it (an adapter) shares.
enum class AdapterSide : uint8_t {
  kNone,     ///< It is no adapter.
  kInput,    ///< Its columns are those of the weight.
  kOutput,   ///< Its rows are those of the weight.
  kNeither,  ///< It is of a graft (worker/engine/nn/graft.h), which has layers of its own.
};

/// Which of two block-diagonal factors of a weight [out, in] a tensor in its place is: y = x Wᵀ is
/// made by the one from what the other makes of x. Blocks of the weight itself are of the side that
/// tensor-parallel ranks cut.
enum class FactorSide : uint8_t {
  kNone,    ///< It is none.
  kInput,   ///< It multiplies x.
  kOutput,  ///< It makes y.
};

/// What is known of a parameter besides its name, its size and where it resides. Code that counts,
/// groups, updates or saves parameters reads this: a name has no meaning except in files.
struct ParameterAttributes {
  ParameterRole role = ParameterRole::kMlpUp;
  bool bias = false;    ///< What its layer adds.
  bool frozen = false;  ///< Not trained: model.freeze names it, or a technique keeps it.
  int64_t block = -1;   ///< The distinct block of the network that it belongs to; -1: none.
  int64_t expert = -1;  ///< Of a mixture, the expert it belongs to; -1: none.
  std::vector<int64_t> parts = {};  ///< Rows of matrices that lie one under the other in this one.
  /// Its role is that of its weight; of a graft that of a product of its sub-layer, or of the
  /// positions.
  AdapterSide adapter = AdapterSide::kNone;
  /// The rows that an adapter multiplies: the batch has `row_parts` equal parts of successive rows,
  /// and its layer multiplies those of part `row_part` alone by it (TechniqueCost::JointJobs).
  int64_t row_part = 0;
  int64_t row_parts = 1;
  /// i32 words in memory, of a frozen weight that is quantised (TechniqueCost::QuantizedWordsOf);
  /// 0: numbers.
  int64_t quantized_words = 0;
  bool read_backward = false;  ///< A table whose rows are looked up in the backward pass, too.
  bool replicated = false;     ///< Of a frozen tensor: blocks share it, and each rank has all of it
                               ///< where others are sharded (ZeRO stage 3).
  /// Whether a tensor that a merged matrix is made of (ParameterInfo::merged) is zero at first, so
  /// that an adapter changes nothing. Others are drawn, or start at a number of the job.
  bool starts_at_zero = false;

  bool operator==(const ParameterAttributes&) const = default;

  /// Neither what a layer adds nor what it has besides a weight.
  bool is_weight() const { return !bias && adapter == AdapterSide::kNone; }
  /// A matrix of an attention or MLP, both of whose sides grow with the model's width.
  bool block_matrix() const { return is_weight() && (IsAttention(role) || IsMlp(role)); }
  /// The weight of the product that ends a sub-layer,
  bool output_weight() const { return is_weight() && EndsSubLayer(role); }
  /// and its bias.
  bool output_bias() const { return bias && EndsSubLayer(role); }
  /// The weight that grafts of a sub-layer go with (TechniqueCost::GraftsOf): that of the product
  /// that ends it, of a mixture of experts that of the router.
  bool grafted_weight() const {
    return is_weight() && expert < 0 && (EndsSubLayer(role) || role == ParameterRole::kRouter);
  }
  /// A table whose rows are looked up before the blocks.
  bool looked_up() const {
    return role == ParameterRole::kTokenEmbedding || role == ParameterRole::kPositionEmbedding;
  }
  /// A table like this that no backward pass of the embedding reads.
  bool read_forward_alone() const { return looked_up() && !read_backward; }
};

/// Numbers by which packed copies of matrices are larger than these, because oneDNN packs whole
/// blocks. `_else`: of matrices that are not in tiles (ParameterInfo::in_tiles).
struct PackedPadding {
  int64_t f32 = 0;  ///< Blocks of 64 rows and 16 columns.
  int64_t f32_else = 0;
  int64_t bf16 = 0;  ///< Blocks of 64 rows and 32 columns.
  int64_t bf16_else = 0;

  /// Adds `times` times that of another.
  void Add(const PackedPadding& other, int64_t times = 1);
};

/// A parameter of a model, as the engine has it.
struct ParameterInfo : ParameterAttributes {
  std::string name;            ///< That of Hugging Face's files, where they have it.
  std::vector<int64_t> shape;  ///< A linear layer's weight is [out, in].
  int64_t unit = 0;            ///< 0 before the blocks, 1 + block, and one more after them;
                               ///< BlockParameters leaves it, as product_rows.
  bool tiled = false;          ///< Its rows, of tokens or classes, are stored in whole tiles.
  bool stacked = false;        ///< One matrix with the one before it, as a product reads them.
  int64_t product_rows = 0;    ///< Of a matrix: rows in memory, with those of what it is one with;
                               ///< of several products those of one.
  int64_t products = 1;        ///< Of a matrix: equal blocks of its rows, each multiplied alone.
  bool read_directly = false;  ///< Of a matrix: products read it as it is, without a packed copy.
  bool only_multiplied = false;  ///< Of a frozen matrix: nothing reads it but the packed copies of
                                 ///< products; neither is what it is one with trained.
  /// Products with it besides that of the forward pass: what the backward pass computes again, and
  /// second ones. Of a vector that a layer has besides, those of the layer.
  int64_t more_products = 0;
  /// Likewise of the gradient of what it multiplies, besides the first. Of such a vector, those of
  /// its weight, which is then multiplied apart from the others of its layer.
  int64_t more_input_gradients = 0;
  bool of_virtual_tokens = false;  ///< Of a graft: what is in the place of tokens, or layers that
                                   ///< make it; no token is multiplied by it.
  bool of_table = false;           ///< Rows of the table of tokens: wherever that is.
  std::string in_place_of = {};    ///< The weight that the network has this for
                                   ///< (TechniqueCost::ReplacementsOf); none: "".
  /// The side of such a tensor with `products` blocks: tensor-parallel ranks cut its blocks, or the
  /// rows or columns of each, as they cut the weight's rows and columns.
  FactorSide factor = FactorSide::kNone;
  std::string adapter_of = {};   ///< The weight that its layer has this besides; none: "".
  bool merged = false;           ///< Then: products read a matrix that is made of the weight and of
                                 ///< this (TechniqueCost::MergedNumbers), and not this itself.
  bool of_all_blocks = false;    ///< Of unit 0: all blocks compute with it, so that it is gathered
                                 ///< once a step where others are gathered unit by unit, and that
                                 ///< each stage of a pipeline has it.
  bool of_whole_weight = false;  ///< Of an adapter, a source or a tensor in place of a weight: it
                                 ///< is not cut with the weight. Tensor-parallel ranks have all of
                                 ///< it, and a partial gradient each.

  int64_t Elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
  bool matrix() const { return shape.size() == 2; }
  /// A matrix whose packed copy products read. A table that classifies has one, too.
  bool packed() const { return matrix() && !looked_up() && !read_directly; }
  /// Numbers in memory.
  int64_t StoredElements() const;
  /// Whether AMX multiplies a matrix as it is, since a product finds both sizes multiples of 32.
  bool in_tiles() const { return product_rows % 32 == 0 && shape[1] % 32 == 0; }
  /// The padding of a matrix in packed form. The first of stacked ones has it all.
  PackedPadding packed_padding() const;
};

}  // namespace weft
