#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/status.h"
#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {

/// A decoder, dense or a mixture of experts.
struct DecoderShape {
  int64_t layers = 1;
  int64_t width = 1;
  int64_t heads = 1;
  int64_t key_heads = 1;
  int64_t mlp_width = 4;
  bool gated = false;  ///< The MLP has two matrices before its activation.
  int64_t vocabulary = 1;
  int64_t sequence_length = 1;
  int64_t head_width = 0;          ///< 0: width / heads.
  int64_t experts = 1;             ///< MLPs of each block; 1: there is nothing to choose.
  int64_t experts_per_token = 1;   ///< Of them that a router picks for each token.
  double expert_capacity = 0;      ///< Most rows of one, as a multiple of the mean; 0: all.
  double expert_imbalance = 1;     ///< Rows of the rank that has most, as a multiple of the mean.
  bool biased_experts = false;     ///< They add biases and clamp what they activate.
  bool untied_classifier = false;  ///< It has a matrix of its own, not the table of tokens.

  int64_t HeadWidth() const { return head_width > 0 ? head_width : width / heads; }
  bool HasExperts() const { return experts > 1; }
  /// Rows of MLPs for each token of a rank, on the rank that has most of them.
  double RowsOfToken() const {
    const double taken =
        expert_capacity > 0 ? std::min(expert_imbalance, expert_capacity) : expert_imbalance;
    return HasExperts() ? static_cast<double>(experts_per_token) * taken : 1;
  }
};

/// Parameters of a block without its norms, whole: those of one rank are shares of them.
struct BlockParameters {
  double dense = 0;    ///< Attention and router; without experts the MLP too.
  double experts = 0;  ///< Of all experts.
};
BlockParameters ParametersOfBlock(const DecoderShape& model);

/// How much a block recomputes for its backward pass: nothing, scores where attention keeps them,
/// what norms and activations make, or all.
enum class Recomputation : uint8_t { kNone, kAttention, kElementwise, kBlock };
/// The name as it follows "recomputation of".
std::string_view NameOf(Recomputation recomputation);

/// How a model is trained on a cluster. Neighbouring ranks: tensor, context, data, pipeline;
/// expert-parallel ranks are neighbours among the data-parallel ones, or, where experts are not
/// divided as attention is, among all of the same stage.
struct ClusterRun {
  DecoderShape model;
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t data = 1;
  int64_t expert = 1;         ///< Expert-parallel ranks: of the data-parallel ones, or, with
  int64_t expert_tensor = 0;  ///< expert_tensor tensor-parallel ranks of an expert, of all of a
                              ///< stage. 0: as many as of attention.
  int64_t pipeline = 1;
  int64_t stages_per_rank = 1;  ///< Of the pipeline.
  int64_t zero_stage = 0;
  int64_t micro_batch = 1;   ///< Sequences.
  int64_t global_batch = 1;  ///< Sequences.
  Recomputation recomputation = Recomputation::kNone;
  std::string precision =
      "bf16";  ///< Of products: bf16, fp16 or a format (ProductFormat::rate_name).

  int64_t Devices() const { return tensor * context * data * pipeline; }
  /// Tensor-parallel ranks of an expert.
  int64_t ExpertTensor() const { return expert_tensor > 0 ? expert_tensor : tensor; }
  /// Ranks with the same experts.
  int64_t ExpertReplicas() const { return tensor * context * data / (ExpertTensor() * expert); }
};

/// Parameters of the table of tokens and the classifier on the rank at `position` of the pipeline,
/// whole.
double TableParametersAt(const ClusterRun& run, int64_t position);

/// Blocks of the rank at `position` of the pipeline: as many as the largest share of whole blocks,
/// and on the last one, with one stage a rank, what is left of them.
int64_t BlocksAt(const SoftwareStack& stack, const ClusterRun& run, int64_t position);

/// Where the seconds of an optimizer step go, as the rank sees it that all wait for. They sum to
/// the step.
struct StepLedger {
  double products = 0;
  double attention = 0;
  double memory_bound = 0;
  double recomputed = 0;
  double host_wait = 0;  ///< For the processor to start kernels.
  double tensor_communication = 0;
  double context_communication = 0;
  double expert_communication = 0;
  double data_communication = 0;
  double pipeline_communication = 0;
  double bubble = 0;
  double optimizer = 0;
  double fixed = 0;

  double Seconds() const {
    return products + attention + memory_bound + recomputed + host_wait + tensor_communication +
           context_communication + expert_communication + data_communication +
           pipeline_communication + bubble + optimizer + fixed;
  }
};

/// The step's time in closed form. kInvalid when the run contradicts itself (a batch that its ranks
/// do not divide, more stages than layers, experts that ranks do not partition evenly, a precision
/// that the device lacks).
Result<StepLedger> PredictStep(const AcceleratorSpec& device, const SoftwareStack& stack,
                               const ClusterRun& run);

}  // namespace weft::planner
