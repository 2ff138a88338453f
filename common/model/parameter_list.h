#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/model/parameter_info.h"
#include "common/spec/model_spec.h"

namespace weft {

/// The parameters of a block, named as that of layer `index`; of its experts no more than
/// `most_experts`.
std::vector<ParameterInfo> BlockParameters(const ModelSpec& model, int64_t index,
                                           int64_t most_experts = INT64_MAX);

/// The parameters of a block, and of all, without techniques that have other tensors in place of
/// weights or besides them (TechniqueCost::ReplacementsOf, AdaptersOf): those that files have.
std::vector<ParameterInfo> PlainBlockParameters(const ModelSpec& model, int64_t index);
std::vector<ParameterInfo> PlainParametersOf(const ModelSpec& model);
/// The part of PlainParametersOf before the blocks.
std::vector<ParameterInfo> PlainEmbeddingParameters(const ModelSpec& model);

/// All parameters, each once, in the order of the forward pass. `model` with vocab_size resolved.
std::vector<ParameterInfo> ParametersOf(const ModelSpec& model);

/// The matrices or vectors that lie one under the other in a parameter: their numbers of rows.
std::vector<int64_t> RowPartsOf(const ModelSpec& model, const ParameterInfo& parameter);

/// The parameters of one of `tensor` tensor-parallel ranks, in a grid of `rows`: the one with most.
/// With no more than `most_experts` experts of each block.
std::vector<ParameterInfo> ParametersOfRank(const ModelSpec& model, int64_t tensor,
                                            int64_t rows = 1, int64_t most_experts = INT64_MAX);

/// Whether the softmax is over the rows of this matrix: the token table, or one of its own.
bool IsClassifier(const ModelSpec& model, const ParameterInfo& parameter);

/// Whether an expert-parallel rank has the parameter; all ranks have equally many.
bool IsOnExpertRank(const ModelSpec& model, const ParameterInfo& parameter, int64_t ranks);

/// Whether a stage of a pipeline with the first or the last of the blocks has the parameter, which
/// may be of one of its blocks. Its `model` has its blocks alone, and a classifier of its own where
/// the stage has none.
bool IsOnStage(const ModelSpec& model, const ParameterInfo& parameter, bool first, bool last);

/// Whether some parameters are not trained: model.freeze names them, or a technique keeps them.
bool FreezesAny(const ModelSpec& model);

/// The distinct block of the first trained parameter: -1 if it is before the blocks, the number of
/// blocks if it is after them.
int64_t FirstTrainedBlock(const ModelSpec& model);

/// The patterns that blocks `blocks` of `model`, as if they were all of its blocks and called so,
/// have to freeze so that the same is frozen as in `model`: its patterns, or others.
std::vector<std::string> FreezeOfBlocks(const ModelSpec& model, const std::vector<int64_t>& blocks);

}  // namespace weft
