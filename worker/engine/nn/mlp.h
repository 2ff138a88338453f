#pragma once

#include <cstdint>
#include <string>

#include "worker/engine/nn/linear.h"

namespace weft::engine {

struct MlpOptions {
  std::string up;    ///< Name of the first layer.
  std::string down;  ///< Name of the second.
  int64_t width = 0;
  int64_t inner = 0;
  bool bias = true;
  double deviation = 0.02;         ///< Of the first layer's initial weights.
  double output_deviation = 0.02;  ///< Of the second's.
};

/// Two linear layers with a GELU between them.
class Mlp {
 public:
  Mlp(ParameterSet* parameters, const MlpOptions& o, DType compute)
      : up_(parameters, {{{o.up, o.inner}}, o.width, o.bias, o.deviation}, compute),
        down_(parameters, {{{o.down, o.width}}, o.inner, o.bias, o.output_deviation}, compute) {}

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
