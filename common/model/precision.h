#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/dtype.h"

namespace weft {

/// What the operands of products with weights are.
enum class ProductFormat : uint8_t {
  kDense,  ///< As they are.
  kFp8,    ///< FP8 with a scale for each tensor (train.fp8), cast from those.
};

/// Which type each kind of number of a training run has: the one place that says so, read by
/// models, optimizer, checkpoints and planner. A recipe is one file in common/model/precision/.
///
/// Whatever the types, arithmetic on elements is f32, and these are always stored as f32: vectors
/// (biases, gains of norms), gradients of parameters and their sums over micro-batches and ranks,
/// optimizer state, statistics of norms, softmax and loss.
struct PrecisionRecipe {
  std::string_view name;  ///< As in train.precision.

  /// Residual stream, and tensors between operations.
  DType activations = DType::kF32;
  /// Operands of the matrix products in blocks, attention included. Sums are f32.
  DType products = DType::kF32;
  /// Operands of the classifier's products, and the logits.
  DType classifier = DType::kF32;
  /// Weight matrices and embedding tables, as they are updated and saved. Types narrower than f32
  /// are rounded stochastically after each update.
  DType matrices = DType::kF32;
  /// Format of the products with the weights of blocks, and of their gradients; cast from operands
  /// of type `products`. All other products are dense.
  ProductFormat block_products = ProductFormat::kDense;
  /// The loss is multiplied by a scale that follows overflows (train.loss_scaling).
  bool loss_scaling = false;
};

extern const PrecisionRecipe kFp32Precision;
extern const PrecisionRecipe kBf16Precision;
extern const PrecisionRecipe kFp16Precision;
extern const PrecisionRecipe kBf16PurePrecision;
extern const PrecisionRecipe kFp8Precision;

/// All recipes.
std::span<const PrecisionRecipe* const> AllPrecisions();

/// The recipe of that name, or null.
const PrecisionRecipe* FindPrecision(std::string_view name);

/// The same for a name that a job or plan that was read has: their field admits no others.
const PrecisionRecipe& PrecisionOf(std::string_view name);

/// What measured product rates with operands of this type are called: GemmRate::precision.
std::string_view GemmRateName(DType products);

inline int64_t ElementBytes(DType dtype) {
  return static_cast<int64_t>(DTypeSize(dtype));
}

}  // namespace weft
