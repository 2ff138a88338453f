#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"
#include "common/status.h"
#include "coordinator/planner/cluster/program_experts.h"
#include "coordinator/planner/cluster/program_memory.h"

namespace weft::planner {

/// What of a machine a training program gets: eight constants, each a physical quantity, and what
/// is known of how it works.
struct SoftwareStack {
  std::string name;

  double product_share = 0.93;
  double memory_share = 0.75;
  double host_seconds = 20e-6;
  double link_share = 0.75;
  double network_share = 0.8;
  double latency_seconds = 20e-6;
  double overlap = 0.5;
  double step_seconds = 0.005;

  bool fused_attention = true;
  double attention_share = 1;
  bool sequence_parallel = true;
  bool overlaps_tensor_parallel = false;
  double gradient_bytes = 4;
  bool tables_are_blocks = false;
  bool waits_for_kernels = false;
  ProgramExperts experts;
  ProgramMemory memory;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Its name.").Required(), self.name);
    visit(Field("product_share", "Of the device's sustained rate, what its products reach.")
              .Range(0.3, 1),
          self.product_share);
    visit(Field("memory_share", "Of the memory's bandwidth, what its other kernels reach.")
              .Range(0.25, 0.95),
          self.memory_share);
    visit(Field("host_seconds", "The processor's time to start one kernel.")
              .Unit("seconds")
              .Range(1e-6, 1e-4),
          self.host_seconds);
    visit(
        Field("link_share", "Of the links inside a machine, what collectives reach.").Range(0.3, 1),
        self.link_share);
    visit(Field("network_share", "The same between machines.").Range(0.15, 1), self.network_share);
    visit(Field("latency_seconds",
                "Of an all-reduce between two ranks, without its bytes; a ring of more has as many "
                "more steps.")
              .Unit("seconds")
              .Range(2e-6, 2e-4),
          self.latency_seconds);
    visit(Field("overlap", "Of what could hide behind computation, the share that does.")
              .Range(0.001, 0.98),
          self.overlap);
    visit(Field("step_seconds", "Fixed cost of a step.").Unit("seconds").Range(1e-4, 0.2),
          self.step_seconds);
    visit(Field("fused_attention", "Attention in one kernel, which keeps no scores."),
          self.fused_attention);
    visit(Field("attention_share",
                "Of the rate that fused attention sustains on the device, what this one does.")
              .Range(0.3, 1),
          self.attention_share);
    visit(Field("sequence_parallel", "Tensor-parallel ranks shard what is not a product."),
          self.sequence_parallel);
    visit(Field("overlaps_tensor_parallel", "Tensor-parallel collectives hide behind products."),
          self.overlaps_tensor_parallel);
    visit(Field("gradient_bytes", "Of a gradient on the wire.").Unit("bytes").Range(1, 4),
          self.gradient_bytes);
    visit(Field("tables_are_blocks",
                "Stages of a pipeline are balanced as if the table of tokens and the classifier "
                "were a block each; otherwise they come on top."),
          self.tables_are_blocks);
    visit(Field("waits_for_kernels",
                "The processor waits for each kernel before it starts the next "
                "(CUDA_LAUNCH_BLOCKING)."),
          self.waits_for_kernels);
    visit(Field("experts", "How it works on mixtures of experts."), self.experts);
    visit(Field("memory", "What it holds."), self.memory);
  }
};

/// The built-in stacks (data/stacks.json).
const std::vector<SoftwareStack>& KnownStacks();

/// kNotFound names those that are known.
Result<SoftwareStack> FindStack(std::string_view name);

}  // namespace weft::planner
