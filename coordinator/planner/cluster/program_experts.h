#pragma once

#include <string>

#include "common/spec/field.h"

namespace weft::planner {

/// How a training program works on mixtures of experts.
struct ProgramExperts {
  bool grouped = true;
  bool fused_mlp = false;
  bool waits_for_counts = false;
  bool sends_once = false;
  bool overlaps_sends = false;
  std::string captured = "nothing";

  bool Captures(const char* what) const { return captured == what; }

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("grouped",
                "A rank's experts multiply in one kernel, and rows are put in their order as they "
                "are copied for them. Otherwise each expert has kernels of its own, and rows are "
                "put in order in a pass of their own, before and after."),
          self.grouped);
    visit(Field("fused_mlp",
                "What lies between the products of experts, casts to 8 bits with it, is done by "
                "the kernels of the products."),
          self.fused_mlp);
    visit(Field("waits_for_counts",
                "The processor reads how many rows each expert has before it starts the kernels "
                "that need to know."),
          self.waits_for_counts);
    visit(Field("sends_once",
                "A token goes once to each rank, and once to each machine, that has some of its "
                "experts. Otherwise it goes once for each of its experts."),
          self.sends_once);
    visit(Field("overlaps_sends", "Rows are sent during the computation of another micro-batch."),
          self.overlaps_sends);
    visit(Field("captured",
                "What the device starts by itself, from a graph: attention and the router, or the "
                "whole step.")
              .OneOf({"nothing", "routing", "step"}),
          self.captured);
  }
};

}  // namespace weft::planner
