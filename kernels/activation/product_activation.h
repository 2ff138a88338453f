#pragma once

#include <cstdint>

#include "kernels/activation/activation.h"
#include "kernels/swiglu/swiglu.h"

namespace weft::kernels {

/// What the result of a product goes through, where the product takes it while it is written. Gated
/// ones read gate and up side by side, as halves of the columns.
enum class ProductActivation : uint8_t {
  kTanhGelu,     ///< GeluForm::kTanh
  kErfGelu,      ///< GeluForm::kErf
  kSquaredRelu,  ///< SquaredReluForwardArgs
  kSwiGlu,       ///< GateFunction::kSilu
  kGeglu,        ///< GateFunction::kGelu
  kErfGeglu,     ///< GateFunction::kErfGelu
};

constexpr bool IsGated(ProductActivation activation) {
  return activation >= ProductActivation::kSwiGlu;
}

constexpr ProductActivation ActivationOf(GeluForm form) {
  return form == GeluForm::kErf ? ProductActivation::kErfGelu : ProductActivation::kTanhGelu;
}

/// The form of one that is GELU.
constexpr GeluForm GeluFormOf(ProductActivation activation) {
  return activation == ProductActivation::kErfGelu ? GeluForm::kErf : GeluForm::kTanh;
}

/// What the gate of a gated one goes through.
constexpr GateFunction GateOf(ProductActivation activation) {
  switch (activation) {
    case ProductActivation::kGeglu:
      return GateFunction::kGelu;
    case ProductActivation::kErfGeglu:
      return GateFunction::kErfGelu;
    default:
      return GateFunction::kSilu;
  }
}

/// The halves of the columns of a matrix.
struct GatedColumns {
  TensorView gate, up;
};
inline GatedColumns GatedColumnsOf(const TensorView& both) {
  GatedColumns halves = {both, both};
  const int64_t width = both.shape[1] / 2;
  halves.gate.shape = halves.up.shape = {both.shape[0], width};
  halves.up.data =
      static_cast<char*>(both.data) + width * static_cast<int64_t>(DTypeSize(both.dtype));
  return halves;
}

}  // namespace weft::kernels
