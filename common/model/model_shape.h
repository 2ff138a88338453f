#pragma once

#include <cstdint>

#include "common/model/model_sizes.h"
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

/// A network with its vocabulary resolved, and what counts and bytes need of its parameters
/// (parameter_list.h): summed once, because a planner asks often.
struct ModelShape {
  ModelShape() = default;
  /// `model` with vocab_size resolved.
  explicit ModelShape(const ModelSpec& model);

  ModelSpec spec;
  ParameterCounts counts;
  int64_t trained = 0;          ///< Numbers that model.freeze leaves to be trained.
  int64_t stored = 0;           ///< All numbers in memory, with the padding of the vocabulary.
  int64_t stored_trained = 0;   ///< Those that are trained.
  int64_t stored_matrices = 0;  ///< Those of matrices and tables, whose type the precision says.
  int64_t packed = 0;           ///< Numbers of the matrices that are packed for products.

  // Numbers as often as a token meets them: those of shared blocks once a layer, those of a token
  // table with a classifier of its own not at all.
  int64_t used = 0;
  int64_t used_trained = 0;   ///< Which need a gradient.
  int64_t used_backward = 0;  ///< Which the backward pass goes through.

  /// Layers before it have no backward pass, because nothing up to them is trained; layers when no
  /// block has one.
  int64_t first_trained_layer = 0;

  int64_t PaddedVocabulary() const { return weft::PaddedVocabulary(spec.vocab_size); }
};

/// The network `job` asks for. An unset model.vocab_size is that of the tokenizer that the job
/// trains, in whole tiles; where it brings its own tokenizer, whose size only its file says, that
/// of GPT-2 (50,304) is assumed. Sizes of an imported model must have been put into job.model
/// before.
ModelShape ShapeOf(const JobSpec& job);

}  // namespace weft
