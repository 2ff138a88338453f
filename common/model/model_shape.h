#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/model_sizes.h"
#include "common/model/parameter_info.h"
#include "common/model/saved_tensor.h"
#include "common/spec/job_spec.h"

namespace weft {

/// Numbers by kind of parameter, each parameter once.
struct ParameterCounts {
  int64_t token_embedding = 0;
  int64_t position_embedding = 0;
  int64_t embedding_projection = 0;  ///< Of a factorised embedding.
  int64_t attention = 0;             ///< Weights and biases of all blocks.
  int64_t mlp = 0;                   ///< Weights and biases of all blocks.
  int64_t norms = 0;                 ///< Of all blocks and the last one.
  int64_t classifier = 0;            ///< Where it is not the token embedding.
  int64_t branch_scales = 0;         ///< Of all residual branches.

  int64_t Total() const {
    return token_embedding + position_embedding + embedding_projection + attention + mlp + norms +
           classifier + branch_scales;
  }
};

/// The part of the network on a pipeline rank: some blocks and, on the first stage, the layers
/// before them, on the last one the layers after them.
struct StageShape {
  int64_t blocks = 0;
  bool first = true;
  bool last = true;
  /// Which blocks of the network, in order: where anything is frozen.
  std::vector<int64_t> which = {};
};

/// Numbers, counted once for each use: those of shared blocks once a layer, those of
/// experts_per_token experts, and those of a token table only where it classifies.
struct ParameterUses {
  int64_t all = 0;
  int64_t trained = 0;   ///< Which need a gradient.
  int64_t backward = 0;  ///< Which the backward pass goes through.
};

/// The share of the work of all blocks' sub-layers, forward and backward, that training is expected
/// to compute: techniques may skip some (TechniqueCost::ComputedShare).
struct ComputedShares {
  double attention = 1;
  double mlp = 1;

  double Mean() const { return (attention + mlp) / 2; }
};

/// Which products of a block have a weight or a bias that is trained, in any block.
struct TrainedProducts {
  bool qkv = false;  ///< To queries, keys and values.
  bool up = false;   ///< Of the MLP, as `down`.
  bool down = false;
};

/// The weights of a block that are quantised, of the block with most.
struct QuantizedBlock {
  int64_t numbers = 0;
  int64_t in_tiles = 0;          ///< Of them those of matrices that are (ParameterInfo::in_tiles),
  int64_t largest_in_tiles = 0;  ///< and of the largest such matrix.
  PackedPadding padding;         ///< Of their packed copies.
};

/// Numbers of what is not trained, as StreamedUnit has them.
struct FrozenNumbers {
  int64_t vectors = 0;  ///< With the words of weights that are quantised.
  int64_t looked_up = 0;
  int64_t matrices = 0;
  int64_t in_tiles = 0;
  int64_t of_first = 0;
};

/// A network with its vocabulary resolved, and what counts and bytes need of its parameters
/// (parameter_list.h): summed once, because a planner asks often.
struct ModelShape {
  ModelShape() = default;
  /// `model` with vocab_size resolved. With tensor parallelism of degree `tensor` above 1 numbers
  /// are those of the rank with most; `spec` is the whole model. `sequence`: sequence parallelism,
  /// too. `rows`: those of 2-D tensor parallelism.
  explicit ModelShape(const ModelSpec& model, int64_t tensor = 1, bool sequence = false,
                      int64_t rows = 1);
  /// Numbers of one of `ranks` expert-parallel ranks, each `tensor` tensor-parallel ones; uses are
  /// of all experts.
  static ModelShape OfExpertRank(const ModelSpec& model, int64_t ranks, int64_t tensor = 1,
                                 bool sequence = false);
  /// Numbers of one stage of a pipeline, whose blocks are those of `spec`.
  ModelShape(const ModelSpec& model, const StageShape& stage, int64_t tensor, bool sequence,
             int64_t rows = 1, int64_t experts = 1);

  ModelSpec spec;
  int64_t tensor = 1;              ///< Tensor-parallel ranks ...
  int64_t tensor_rows = 1;         ///< ... in a grid of this many rows ...
  bool sequence_parallel = false;  ///< ... with sequence parallelism.
  int64_t expert_ranks = 1;        ///< Expert-parallel ranks.
  int64_t context_ranks = 1;       ///< Context-parallel ranks.
  bool embeds = true;              ///< The layers before the blocks are here ...
  bool has_head = true;            ///< ... and those after them.
  ParameterCounts counts;
  int64_t trained = 0;         ///< Numbers that are not frozen.
  int64_t stored = 0;          ///< All numbers in memory, with sources and padded vocabulary.
  int64_t stored_trained = 0;  ///< Those that have a gradient.
  int64_t stored_trained_experts = 0;  ///< Those of them that are of experts.
  int64_t stored_matrices = 0;  ///< Those whose type the precision says: of matrices and tables
                                ///< that are not derived.
  int64_t stored_trained_matrices = 0;  ///< Those of them that have a gradient.
  int64_t only_multiplied = 0;          ///< Those of them whose type FrozenMatrixType says.
  /// Numbers whose gradient is a partial sum on each tensor-parallel rank, reduced once a step:
  /// routers, what is of whole weights (ParameterInfo::of_whole_weight) and, with sequence
  /// parallelism, the replicated parameters of the residual stream.
  int64_t partial_gradients = 0;
  int64_t packed = 0;            ///< Numbers of the matrices that are packed for products ...
  int64_t packed_in_tiles = 0;   ///< ... and of those that are in tiles (ParameterInfo::in_tiles).
  PackedPadding packed_padding;  ///< Of their packed copies.
  int64_t packed_adapters = 0;   ///< Those of them that layers have besides their weights.
  int64_t trained_classifier = 0;  ///< Those of `trained` that are of the classifier's own layer.
  int64_t classifier_ranks = 0;    ///< Rows of the first factors besides the classifier, together.
  FrozenNumbers frozen;
  int64_t frozen_adapters = 0;  ///< Numbers in memory of frozen tensors that layers have besides
                                ///< their weights.
  int64_t quantized = 0;        ///< Numbers of weights that are quantised: stored has their
                                ///< words (ParameterInfo::quantized_words), as if of f32.
  QuantizedBlock quantized_block;
  /// Trained numbers of weights that are one matrix with a derived one, and not derived.
  int64_t stacked_with_derived = 0;
  int64_t derived = 0;            ///< Numbers of the weights that are computed from others ...
  int64_t sources = 0;            ///< ... and of these, which are trained in their place.
  int64_t largest_derived = 0;    ///< Numbers of the largest of those weights ...
  int64_t largest_source = 0;     ///< ... and of the largest source.
  bool replaces_weights = false;  ///< Some layer of a block has tensors in place of its weight, ...
  bool has_adapters = false;      ///< ... or besides it, or a graft has tensors.
  bool trains_block_weights = false;  ///< A weight of a product in blocks is trained itself.

  ParameterUses body;  ///< By every token.
  ParameterUses head;  ///< By the rows that the head computes, see HeadRows.

  /// Layers before it have no backward pass, because nothing up to them is trained; layers when no
  /// block has one.
  int64_t first_trained_layer = 0;
  bool trains_embeddings = false;  ///< Any layer before the blocks.
  /// The first tensor that is saved of the block of the first layer with a backward pass, where
  /// nothing before it has a gradient; none: the first one.
  std::optional<SavedTensor> first_saved = std::nullopt;
  TrainedProducts trained_products;
  bool trained_before = false;  ///< Where anything is frozen: anything trained on stages before.

  int64_t network_layers = 0;  ///< Of the whole network, also on a stage; likewise below.
  /// What is computed of micro-batches of many sequences (ComputedSharesOf), in the mean over the
  /// ranks where they compute different units.
  ComputedShares computed;
  /// What the rank with most units (RankUnits) computes of what is not skipped. The others wait for
  /// it.
  ComputedShares largest_rank;

  /// The share of tokens that a masked language model has to predict.
  double masked_share = MaskingSpec().probability;

  /// Tensor-parallel ranks over which heads, inner columns and tokens are partitioned.
  int64_t TensorColumns() const { return tensor / tensor_rows; }

  /// Ranks over which the residual stream is partitioned, by tokens or features.
  int64_t StreamRanks() const { return sequence_parallel ? TensorColumns() : tensor_rows; }

  /// Columns of the logits in the memory of a rank.
  int64_t PaddedClasses() const {
    const int64_t columns = HeadOf(spec) == "classification" ? spec.classes : spec.vocab_size;
    return PaddedVocabulary((columns + TensorColumns() - 1) / TensorColumns());
  }

  /// Rows that the experts of a rank work on for each token that it sees itself; 1 without experts.
  /// With expert parallelism the most that can arrive from all ranks: for each token as many
  /// choices as a rank has experts, up to their capacity. With context parallelism one rank may
  /// have all the tokens that an expert takes from these ranks.
  int64_t ExpertRows() const;

  /// Numbers whose summed gradients each rank has where ranks shard updates: those of sources
  /// follow from those of derived weights.
  int64_t ReducedWhole() const { return derived + stacked_with_derived; }

  /// Numbers that the optimizer updates.
  int64_t Updated() const { return trained - derived + sources; }
  /// Numbers whose gradients the backward pass computes, with the padded vocabulary.
  int64_t Differentiated() const { return stored_trained - sources; }
};

/// Rows of a batch of `tokens` tokens in sequences of this length that the head computes: all
/// tokens, the masked ones (at least one a sequence), or one a sequence.
int64_t HeadRows(const ModelShape& shape, int64_t tokens, int64_t sequence_length);

/// The network `job` asks for, as its step with most layers runs it. An unset model.vocab_size is
/// that of the tokenizer that the job trains, in whole tiles; where it brings its own tokenizer,
/// whose size only its file says, that of GPT-2 (50,304) or, for a bert, of BERT (30,522) is
/// assumed. Classes that only the data know are as many as fill a tile. Sizes of an imported model
/// must have been put into job.model before.
ModelShape ShapeOf(const JobSpec& job);

/// The share of it that a rank of the mesh has that job.resources ask for: parts of matrices with
/// tensor parallelism, its experts with expert parallelism, all blocks of a pipeline.
ModelShape ShapeOfRank(const JobSpec& job);

}  // namespace weft
