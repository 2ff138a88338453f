#pragma once

#include "common/spec/field.h"

namespace weft::planner {

/// What a training program holds besides weights, optimizer states and activations: two constants
/// of it, which FitStack leaves alone, and what is known of how it works.
struct ProgramMemory {
  double runtime_bytes = 2.5e9;
  double copied_parameters = 0;
  double gradient_bytes = 4;
  bool keeps_activated = true;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("runtime_bytes",
                "Whatever it trains: the device's context, libraries, buffers of collectives.")
              .Unit("bytes")
              .Range(0, 1e10),
          self.runtime_bytes);
    visit(Field("copied_parameters",
                "Of a rank's parameters, at most this many have copies of their gradients and new "
                "values in flat buffers, in half precision each, to be reduced and gathered.")
              .Unit("parameters")
              .Range(0, 1e10),
          self.copied_parameters);
    visit(Field("gradient_bytes",
                "Of a parameter's gradients, in all precisions in which it keeps them. With less "
                "than 4 the optimizer makes itself copies in f32.")
              .Unit("bytes")
              .Range(2, 8),
          self.gradient_bytes);
    visit(Field("keeps_activated",
                "What follows the activation of the MLP is kept for the backward pass, not made "
                "again."),
          self.keeps_activated);
  }
};

}  // namespace weft::planner
