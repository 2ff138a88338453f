#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "worker/engine/nn/context_parallel.h"
#include "worker/engine/nn/expert_parallel.h"
#include "worker/engine/nn/linear.h"
#include "worker/engine/nn/token_batch.h"

namespace weft::engine {

struct MixtureOfExpertsOptions {
  std::string
      name;  ///< Parameters are `name`.gate.weight and `name`.experts.0.w1.weight and so on.
  int64_t width = 0;
  int64_t inner = 0;    ///< Of each expert.
  int64_t experts = 0;  ///< On all ranks.
  int64_t per_token = 2;
  double capacity = 0;  ///< Tokens that an expert takes in training, over their mean; 0: all.
  double balance = 0;   ///< Weight of the loss of load balancing.
  /// Whether the weights of a token's experts add up to 1, or are their probabilities.
  bool normalize = true;
  /// Expert-parallel ranks, or none; outlives the mixture.
  const ExpertParallel* ranks = nullptr;
  /// Context-parallel ranks, or none; likewise. The loss of load balancing covers the tokens of all
  /// of them. An expert takes the tokens that it would take on one rank.
  const ContextParallel* sequences = nullptr;
};

/// A mixture of experts as Mixtral has it (Jiang et al. 2024, arXiv 2401.04088): a router gives
/// each token to some of many MLPs, w2(silu(w1 x) * w3 x), and adds their results by its weights.
/// The loss of load balancing (Fedus et al. 2021, arXiv 2101.03961) is experts * sum of f P over
/// the experts, f being an expert's choices over tokens and P its mean probability, both of the
/// micro-batch; it enters the gradients alone. Padding goes to no expert and counts nowhere: tokens
/// are those of TokenBatch::real_tokens. The host waits for a device to report the number of rows
/// of each expert.
///
/// The inputs of all experts are one tensor for their products, as are their outputs and the values
/// between their products (LinearOptions::group): which rows an expert gets is by chance. The
/// router's products have operands of type `compute`.
///
/// Tensor-parallel ranks (ProductOptions::tensor) hold some inner columns of each expert, and the
/// whole router. All of them route all tokens alike, and the results of experts are partial sums.
/// So are the gradients of the router's weights, which must be reduced before use
/// (ParameterList::Partial).
class MixtureOfExperts {
 public:
  MixtureOfExperts(ParameterSet* parameters, const MixtureOfExpertsOptions& options,
                   const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// [count, width] -> the same; with tensor parallelism between CopyToTensorParallelRegion and
  /// ReduceFromTensorParallelRegion. Saves x, the experts' inputs, their values before the
  /// activation and their results, which may all be approximated, and the choices. In training an
  /// expert takes its first tokens, up to its capacity; in evaluation all. Expert-parallel ranks
  /// call it together, each with its own rows; capacity and balance count these.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x,
                        const TokenBatch& batch) const;

 private:
  /// An MLP; one product computes gate and up.
  struct Expert {
    Linear up;
    Linear down;
  };
  /// What the backward pass reads.
  struct Saved;
  struct ExpertProducts;

  /// The result of the experts for all tokens `x`.
  Result<Value> Mix(Context& context, Tape& tape, Value x, Value logits,
                    const TokenBatch& batch) const;
  Status Route(Context& context, const Tape& tape, const Tensor& logits, const TokenBatch& batch,
               Saved& saved) const;
  /// Collects the statistics of load balancing over the micro-batch: all context-parallel ranks.
  Status Weigh(const Tape& tape, std::span<const int64_t> wanted, const TokenBatch& batch,
               Saved& saved) const;
  /// Returns [experts] i32: for each expert the number of tokens here that are among its first
  /// ones, counted over the context-parallel ranks.
  Result<Tensor> ShareCapacity(Context& context, const Tensor& chosen,
                               const TokenBatch& batch) const;
  /// The inputs of the experts here: copies of rows of `x`, and of other ranks'.
  Result<Tensor> Dispatch(Context& context, const Tape& tape, const Tensor& x,
                          const TokenBatch& batch, Saved& saved) const;
  /// Saves `tensor` for the backward pass, which may be approximated, where there is one.
  Result<SavedTensor> Kept(Context& context, const Tape& tape, bool records, Tensor tensor,
                           const ColumnPart& part) const;
  /// Runs the experts on `inputs`.
  Status RunExperts(Context& context, const Tape& tape, bool records, const Tensor& inputs,
                    Saved& saved, const Tensor& results) const;
  /// From `gradients` of their results computes those of weights and, if requested, of the experts'
  /// inputs: `dinputs`, which may be the same memory unless the tape defers.
  Status RunExpertsBackward(Context& context, Tape& tape, Saved& saved, const Tensor& gradients,
                            const Tensor& dinputs) const;
  Status AddDownGradient(Context& context, Tape& tape, const ExpertProducts& products) const;
  /// `inputs`: what all experts here read.
  Status AddUpGradient(Context& context, Tape& tape, const Tensor& inputs,
                       const ExpertProducts& products) const;
  Status Backward(Context& context, Tape& tape, Saved& saved, int32_t logits_node, int32_t x_node,
                  Tensor dy) const;
  bool Trains(const Tape& tape) const;
  /// Ranks that send rows to the experts here.
  int64_t SenderRanks() const { return options_.ranks == nullptr ? 1 : options_.ranks->degree(); }

  MixtureOfExpertsOptions options_;
  const TensorParallel* tensor_;
  Linear router_;
  std::vector<Expert> experts_;  ///< That are here.
  int64_t inner_ = 0;            ///< Inner columns of each that are here.
};

}  // namespace weft::engine
