#pragma once

#include <string>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// The residual stream of a transformer: `stream`, and `delta` that the last sub-layer computed and
/// that the next norm adds to it on the fly (or none).
struct Residual {
  Value stream;
  Value delta;
};

/// Layer norm with the addition before it.
class LayerNorm {
 public:
  LayerNorm(ParameterSet* parameters, const std::string& name, int64_t width, double epsilon);

  struct Output {
    Value stream;      ///< stream + delta
    Value normalized;  ///< its norm
  };
  Result<Output> Forward(Context& context, Tape& tape, const Residual& x) const;

 private:
  const ParameterSet* parameters_;
  int64_t weight_;
  int64_t bias_;
  float epsilon_;
};

}  // namespace weft::engine
