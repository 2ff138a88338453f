#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/nn/linear.h"

namespace weft::engine {

/// Two linear layers, named `name`.c_fc and `name`.c_proj, with a GELU between them.
class Mlp {
 public:
  Mlp(ParameterSet* parameters, const std::string& name, int64_t width, int64_t inner,
      double deviation, double output_deviation, DType compute)
      : up_(parameters, name + ".c_fc", width, inner, deviation, compute),
        down_(parameters, name + ".c_proj", inner, width, output_deviation, compute) {}

  Status Pack(Context& context) {
    WEFT_RETURN_IF_ERROR(up_.Pack(context));
    return down_.Pack(context);
  }

  /// [count, width] -> the same. Keeps x and the values before the GELU.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x) const {
    WEFT_ASSIGN_OR_RETURN(Value inner, up_.Forward(context, tape, x));
    return GeluLinear(context, tape, down_, inner);
  }

 private:
  Linear up_;
  Linear down_;
};

}  // namespace weft::engine
