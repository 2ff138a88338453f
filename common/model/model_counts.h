#pragma once

#include <cstdint>
#include <vector>

#include "common/model/model_shape.h"
#include "common/model/parameter_info.h"

namespace weft {

/// Floating-point operations of one token at sequence length T, a multiply-add counted as two. N
/// counts every parameter as often as the token meets it (ModelShape::body, and ModelShape::head
/// for the share of tokens that reach it), and causal attention over a window of W counts the keys
/// it sees, half of the T x T square without one: forward 2 N + 2 L C T, training (forward, and
/// backward at twice that) 6 N + 6 L C T. Where every token sees all others, C T counts twice. For
/// frozen parameters, and for layers before all trained ones, only the remaining parts of the
/// backward pass count. Sub-layers that training skips (ModelShape::computed) count with the share
/// that is expected to be computed.
double ForwardFlopsPerToken(const ModelShape& shape, int64_t sequence_length);
double TrainingFlopsPerToken(const ModelShape& shape, int64_t sequence_length);

/// Layers whose attention has a backward pass: not that of the first trained one where only what
/// comes after it is trained.
int64_t DifferentiatedAttentions(const ModelShape& shape);

/// Keys that a token attends to, on average over the sequence, times two.
double TwiceTheKeys(const ModelSpec& model, int64_t sequence_length);

enum class GemmPass { kForward, kInputGradient, kWeightGradient };

/// A matrix product [m, k] x [k, n] that runs `count` times.
struct Gemm {
  /// The role of the weight that it multiplies, or that a technique makes with it. Queries, keys
  /// and values are one product, kQueriesKeysValues; the classifier is kClassifier also where it
  /// multiplies the token table.
  ParameterRole role = ParameterRole::kMlpUp;
  GemmPass pass = GemmPass::kForward;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  int64_t count = 0;
  bool of_adapter = false;  ///< Of what a layer has besides its weight.

  double Flops() const {
    return 2.0 * static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k) *
           static_cast<double>(count);
  }
};

/// The products with weights of one forward and backward pass over `tokens` tokens in sequences of
/// this length, of all sub-layers, without those that frozen parameters save. The classifier runs
/// in chunks of rows, see LogitsChunkRows.
std::vector<Gemm> WeightGemms(const ModelShape& shape, int64_t tokens, int64_t sequence_length,
                              int64_t element_bytes);

/// The share of the products with weights of this role that training is expected to compute.
double ComputedShare(const ComputedShares& computed, ParameterRole role);

/// The classifier computes the logits of its `rows` over `columns`, a padded vocabulary, in chunks
/// of about 128 MiB: large enough that the weight gradient, read and written once a chunk, stays
/// cheap compared with the products. Rows of a chunk: a multiple of 32, all chunks of about the
/// same size.
int64_t LogitsChunkRows(int64_t columns, int64_t rows, int64_t element_bytes);

}  // namespace weft
