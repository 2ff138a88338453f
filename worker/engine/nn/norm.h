#pragma once

#include <cstdint>
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

struct NormOptions {
  std::string name;  ///< Its parameters are `name`.weight and `name`.bias.
  int64_t width = 0;
  double epsilon = 1e-5;
};

/// Layer norm with the addition before it.
class Norm {
 public:
  Norm(ParameterSet* parameters, const NormOptions& options);

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
