#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/model_spec.h"

namespace weft {

enum class ParameterKind : uint8_t {
  kTokenEmbedding,
  kPositionEmbedding,
  kEmbeddingProjection,  ///< Between a factorised embedding and the network.
  kAttention,
  kMlp,
  kRouter,  ///< Of a mixture of experts.
  kNorm,
  kClassifier,   ///< Between the network and its targets, except the token embedding.
  kBranchScale,  ///< Of a residual branch, with fixup its shifts too.
};

/// A parameter of a model, as the engine has it.
struct ParameterInfo {
  std::string name;            ///< That of Hugging Face's files, where they have it.
  std::vector<int64_t> shape;  ///< A linear layer's weight is [out, in].
  ParameterKind kind = ParameterKind::kNorm;
  int64_t block = -1;        ///< The distinct block it belongs to; -1: none.
  int64_t expert = -1;       ///< Of a mixture, the expert it belongs to; -1: none.
  bool tiled = false;        ///< Its rows, of tokens or classes, are stored in whole tiles.
  bool stacked = false;      ///< One matrix with the one before it, as a product reads them.
  int64_t product_rows = 0;  ///< Of a matrix: rows in memory, with those of what it is one with;
                             ///< BlockParameters leaves it.

  int64_t Elements() const {
    int64_t count = 1;
    for (int64_t extent : shape) count *= extent;
    return count;
  }
  bool matrix() const { return shape.size() == 2; }
  /// Numbers in memory.
  int64_t StoredElements() const;
  /// Of a matrix: AMX multiplies it as it is, since a product finds both sizes multiples of 32.
  bool in_tiles() const { return product_rows % 32 == 0 && shape[1] % 32 == 0; }
  /// Of a matrix: numbers by which oneDNN's copy of what is not in tiles is larger, which holds
  /// whole blocks of 64 rows and 16 columns. Of stacked ones the first has them all.
  int64_t PackedPadding() const;
};

/// The parameters of a block, named as that of layer `index`.
std::vector<ParameterInfo> BlockParameters(const ModelSpec& model, int64_t index);

/// All parameters, each once, in the order of the forward pass. `model` with vocab_size resolved.
std::vector<ParameterInfo> ParametersOf(const ModelSpec& model);

/// The parameters of one of `tensor` tensor-parallel ranks, in a grid of `rows`: the one with most.
std::vector<ParameterInfo> ParametersOfRank(const ModelSpec& model, int64_t tensor,
                                            int64_t rows = 1);

/// Parameters that differ in nothing but their names.
struct ParameterGroup {
  ParameterInfo first;
  int64_t blocks = 1;   ///< Distinct blocks that have one, from first.block on.
  int64_t experts = 1;  ///< Of each of those experts that have one, from first.expert on.
};

/// ParametersOfRank, those of all blocks and experts together where no pattern of the model can
/// tell them apart: for sums, in a time that does not depend on the number of blocks.
std::vector<ParameterGroup> ParameterGroupsOfRank(const ModelSpec& model, int64_t tensor,
                                                  int64_t rows = 1);

/// Whether the weight belongs to the product that ends a sub-layer: after attention, after the MLP.
bool IsOutputProjection(const ParameterInfo& parameter);

/// The same of its bias.
bool IsOutputBias(const ParameterInfo& parameter);

/// Whether the softmax is over the rows of this matrix: the token table, or one of its own.
bool IsClassifier(const ModelSpec& model, const ParameterInfo& parameter);

/// Whether an expert-parallel rank has the parameter; all ranks have equally many.
bool IsOnExpertRank(const ModelSpec& model, const ParameterInfo& parameter, int64_t ranks);

/// Whether a stage of a pipeline with the first or the last of the blocks has the parameter, which
/// may be of one of its blocks. Its `model` has its blocks alone, and a classifier of its own where
/// the stage has none.
bool IsOnStage(const ModelSpec& model, const ParameterInfo& parameter, bool first, bool last);

/// Whether the parameter is trained: model.freeze does not name it.
bool IsTrained(const ModelSpec& model, const ParameterInfo& parameter);

/// The distinct block of the first trained parameter: -1 if it is before the blocks, the number of
/// blocks if it is after them.
int64_t FirstTrainedBlock(const ModelSpec& model);

/// What blocks `blocks` of `model`, as if they were all of its blocks and called so, have to freeze
/// so that the same is frozen as in `model`: its patterns, or others.
std::vector<std::string> FreezeOfBlocks(const ModelSpec& model, const std::vector<int64_t>& blocks);

}  // namespace weft
