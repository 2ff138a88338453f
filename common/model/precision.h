#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/dtype.h"

namespace weft {

struct TrainSpec;

/// Which blocks of a network have products in the format of a recipe, and what these keep.
struct FormatBlocks {
  int64_t dense_first = 0;  ///< The first blocks have dense products,
  int64_t dense_last = 0;   ///< and so have the last.
  int64_t state_bytes = 0;  ///< Of each other block: scales, and what they are made of.

  /// How many blocks of a network of `blocks` are in the format.
  int64_t Of(int64_t blocks) const { return blocks - dense_first - dense_last; }
};

/// A format of the operands of products with weights, which are made of operands of type
/// PrecisionRecipe::products: what counting and the planner know of it. A technique has a constant
/// of this type.
struct ProductFormat {
  std::string_view name;       ///< In messages.
  std::string_view rate_name;  ///< What measured rates of its products are called: GemmRate.
  /// Bytes of a number. Weights and gradients are there twice, by rows and by columns; inputs by
  /// rows for the product and by columns for the gradient of the weight.
  int64_t element_bytes = 1;
  int64_t size_multiple = 16;  ///< Columns, and padded rows, of operands are multiples of this.
  /// GPUs of this compute capability and later ones multiply it.
  std::string_view compute_capability;
  FormatBlocks (*blocks)(const TrainSpec& train);
};

/// Which type each kind of number of a training run has: the one place that says so, read by
/// models, optimizer, checkpoints and planner. A recipe is one file in common/model/precision/, or
/// part of a technique (TechniqueCost::precision).
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
  /// The format of the products with the weights of blocks, and of their gradients; null: dense, as
  /// all other products are.
  const ProductFormat* block_products = nullptr;
  /// The loss is multiplied by a scale that follows overflows (train.loss_scaling).
  bool loss_scaling = false;
};

extern const PrecisionRecipe kFp32Precision;
extern const PrecisionRecipe kBf16Precision;
extern const PrecisionRecipe kFp16Precision;
extern const PrecisionRecipe kBf16PurePrecision;

/// All recipes, those of techniques last.
std::span<const PrecisionRecipe* const> AllPrecisions();

/// The recipe of that name, or null.
const PrecisionRecipe* FindPrecision(std::string_view name);

/// The recipe of a name that a job or plan that was read has: their field admits no others.
const PrecisionRecipe& PrecisionOf(std::string_view name);

/// The blocks in the format of `precision` in a training; none where it has no format.
FormatBlocks FormatBlocksOf(const PrecisionRecipe& precision, const TrainSpec& train);

/// The format with that ProductFormat::rate_name, or null.
const ProductFormat* FindFormat(std::string_view rate_name);

/// The name of measured product rates with operands of this type: GemmRate::precision.
std::string_view GemmRateName(DType products);

inline int64_t ElementBytes(DType dtype) {
  return static_cast<int64_t>(DTypeSize(dtype));
}

}  // namespace weft
