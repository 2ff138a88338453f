#pragma once

#include <cstdint>
#include <string>

#include "common/status.h"
#include "coordinator/planner/cluster/accelerator.h"
#include "coordinator/planner/cluster/software_stack.h"

namespace weft::planner {

/// A dense decoder.
struct DecoderShape {
  int64_t layers = 1;
  int64_t width = 1;
  int64_t heads = 1;
  int64_t key_heads = 1;
  int64_t mlp_width = 4;
  bool gated = false;  ///< The MLP has two matrices before its activation.
  int64_t vocabulary = 1;
  int64_t sequence_length = 1;
};

enum class Recomputation : uint8_t { kNone, kAttention, kBlock };

/// How a model is trained on a cluster. Neighbouring ranks: tensor, context, data, pipeline.
struct ClusterRun {
  DecoderShape model;
  int64_t tensor = 1;
  int64_t context = 1;
  int64_t data = 1;
  int64_t pipeline = 1;
  int64_t stages_per_rank = 1;  ///< Of the pipeline.
  int64_t zero_stage = 0;
  int64_t micro_batch = 1;   ///< Sequences.
  int64_t global_batch = 1;  ///< Sequences.
  Recomputation recomputation = Recomputation::kNone;
  std::string precision = "bf16";  ///< Of products: bf16, fp16 or fp8.

  int64_t Devices() const { return tensor * context * data * pipeline; }
};

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
  double data_communication = 0;
  double pipeline_communication = 0;
  double bubble = 0;
  double optimizer = 0;
  double fixed = 0;

  double Seconds() const {
    return products + attention + memory_bound + recomputed + host_wait + tensor_communication +
           context_communication + data_communication + pipeline_communication + bubble +
           optimizer + fixed;
  }
};

/// Seconds of a product [m, k] x [k, n], `batch` of them in one kernel: tiles in waves over the
/// multiprocessors, or its bytes. A tile costs k plus a start of kTileStart elements.
double ProductSeconds(const AcceleratorSpec& device, const SoftwareStack& stack,
                      std::string_view precision, double m, double n, double k, double batch = 1);

/// Seconds of an all-reduce of `bytes` over `ranks` that stand on `nodes` machines, a rank's share
/// of each link; all-gather and reduce-scatter take half.
double AllReduceSeconds(const AcceleratorSpec& device, const SoftwareStack& stack, int64_t ranks,
                        int64_t nodes, double bytes);

/// The step's time in closed form. kInvalid when the run contradicts itself (a batch that its ranks
/// do not divide, more stages than layers, a precision that the device lacks).
Result<StepLedger> PredictStep(const AcceleratorSpec& device, const SoftwareStack& stack,
                               const ClusterRun& run);

}  // namespace weft::planner
