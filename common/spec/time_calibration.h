#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// Blocks that were measured in runs: what they compute, and what that says of others of nearly the
/// same shape beyond the constants (coordinator/planner/cluster/block_shapes.h).
struct MeasuredShape {
  std::string products;
  int64_t experts = 0;
  int64_t width = 1;
  int64_t tensor = 1;
  int64_t tokens = 1;
  int64_t sequence_length = 1;
  int64_t runs = 1;
  double weight = 0;

  bool operator==(const MeasuredShape&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("products", "Type of the operands: fp32, bf16, fp16.").Range(0, 16), self.products);
    visit(Field("experts", "0: dense.").Range(0, 1 << 20), self.experts);
    visit(
        Field("width", "Of the model, over the rows of 2-D tensor parallelism.").Range(1, 1 << 20),
        self.width);
    visit(Field("tensor", "Tensor-parallel ranks (columns).").Range(1, 1 << 20), self.tensor);
    visit(Field("tokens", "Of a micro-batch, on one rank.").Range(1, int64_t{1} << 40),
          self.tokens);
    visit(Field("sequence_length", "Tokens that attend to each other.").Range(1, 1 << 30),
          self.sequence_length);
    visit(Field("runs", "That were measured.").Range(1, 1 << 30), self.runs);
    visit(Field("weight", "What the shape counts for its neighbours.").Range(-1e6, 1e6),
          self.weight);
  }
};

/// What the planner assumes of training on the processors of a machine beyond what its worker
/// measures. The defaults stand for no machine in particular; fitted to runs
/// (coordinator/planner/calibration) they stand for the kind of machine these ran on.
struct TimeCalibration {
  int64_t runs = 0;
  double error_ratio = 0;
  double small_products = 1;
  double large_products = 1;
  double half_products = 1;
  double attention_share = 0.3;
  double memory_share = 1;
  double update_share = 1;
  double host_link_share = 0.5;
  double link_share = 1;
  double message_seconds = 60e-6;
  double operation_seconds = 4e-6;
  double step_seconds = 0;
  double beside_share = 1;
  std::vector<MeasuredShape> shapes = {};

  bool operator==(const TimeCalibration&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("runs", "Runs that the rest was fitted to; 0: the defaults.").Range(0, 1 << 30),
          self.runs);
    visit(Field("error_ratio",
                "Median error of the step times of runs, each predicted by what the others say.")
              .Range(0, 1e6),
          self.error_ratio);
    visit(Field("small_products",
                "Share of the measured rate that products of a million operations and fewer reach.")
              .Range(0.1, 4),
          self.small_products);
    visit(Field("large_products",
                "The same of products of four billion operations and more; between them by the "
                "logarithm.")
              .Range(0.2, 4),
          self.large_products);
    visit(Field("half_products", "Of that, the share of products with operands of 16 bits.")
              .Range(0.2, 4),
          self.half_products);
    visit(
        Field("attention_share", "Share of the rate of a 512-cube product that attention reaches.")
            .Range(0.02, 1.5),
        self.attention_share);
    visit(Field("memory_share",
                "Share of the copy bandwidth that norms, activations and the loss reach; more than "
                "1 where the caches hold what they read.")
              .Range(0.1, 10),
          self.memory_share);
    visit(Field("update_share", "The same of the optimizer's update.").Range(0.1, 10),
          self.update_share);
    visit(Field("host_link_share",
                "Share of the copy bandwidth at which tensors go between device and host.")
              .Range(0.02, 4),
          self.host_link_share);
    visit(Field("link_share", "Share of the measured loopback that collectives reach.")
              .Range(0.02, 4),
          self.link_share);
    visit(Field("message_seconds", "Of one message between two ranks.")
              .Unit("seconds")
              .Range(1e-6, 0.02),
          self.message_seconds);
    visit(Field("operation_seconds", "Of an operation, whatever its size.")
              .Unit("seconds")
              .Range(2e-7, 1e-3),
          self.operation_seconds);
    visit(Field("step_seconds", "Of a step, whatever its size.").Unit("seconds").Range(0, 0.2),
          self.step_seconds);
    visit(Field("beside_share",
                "Share of its rate of products that a rank reaches with others on its machine.")
              .Range(0.2, 1),
          self.beside_share);
    visit(Field("shapes",
                "What the constants leave unexplained, by what blocks compute; empty: "
                "nothing that holds for other runs.")
              .Range(0, 1000),
          self.shapes);
  }
};

}  // namespace weft
