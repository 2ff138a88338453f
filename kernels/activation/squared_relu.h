#pragma once

#include "common/rng.h"

namespace weft::kernels {

/// A squared ReLU and its derivative at a point. A NaN goes through.
struct SquaredReluAt {
  float relu;

  WEFT_HOST_DEVICE explicit SquaredReluAt(float x) : relu(x < 0 ? 0.0f : x) {}
  WEFT_HOST_DEVICE float Value() const { return relu * relu; }
  WEFT_HOST_DEVICE float Derivative() const { return 2 * relu; }
};

/// Four neighbours of a squared ReLU: their values and derivatives, and which of them count.
struct SquaredReluGroup {
  float x[4];
  bool kept[4] = {true, true, true, true};

  /// Keeps those of the two largest x, of equals the first. A NaN counts as the largest.
  WEFT_HOST_DEVICE void KeepTwo() {
    for (int k = 0; k < 4; ++k) {
      int before = 0;
      for (int j = 0; j < 4; ++j) before += x[j] > x[k] || (j < k && x[j] == x[k]) ? 1 : 0;
      kept[k] = before < 2;
    }
  }

  // A NaN goes through.
  WEFT_HOST_DEVICE float Relu(int k) const { return !kept[k] || x[k] < 0 ? 0.0f : x[k]; }
  WEFT_HOST_DEVICE float Value(int k) const { return Relu(k) * Relu(k); }
  WEFT_HOST_DEVICE float Derivative(int k) const { return 2 * Relu(k); }
};

}  // namespace weft::kernels
