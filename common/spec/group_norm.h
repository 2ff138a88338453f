#pragma once

#include <string>

#include "common/spec/field.h"

namespace weft {

/// Norms of the parameters of one kind.
struct GroupNorm {
  std::string group;
  double gradient = 0;
  double parameter = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("group", "embedding, attention, mlp, norms or head."), self.group);
    visit(Field("gradient", "Norm of the gradients, before clipping."), self.gradient);
    visit(Field("parameter", "Norm of the parameters, before the update."), self.parameter);
  }
};

}  // namespace weft
