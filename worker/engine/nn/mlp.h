#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "worker/engine/nn/linear.h"

namespace weft::engine {

enum class MlpActivation : uint8_t {
  kGelu,         ///< GELU in its tanh form (Hendrycks and Gimpel 2016, arXiv 1606.08415).
  kErfGelu,      ///< In its exact form.
  kSwiGlu,       ///< silu(gate) * up (Shazeer 2020, arXiv 2002.05202).
  kSquaredRelu,  ///< max(x, 0)^2 (So et al. 2021, arXiv 2109.08668).
  kRelu,         ///< max(x, 0).
  kSilu,         ///< x / (1 + e^-x).
};

struct MlpOptions {
  MlpActivation activation = MlpActivation::kGelu;
  /// Names of the layers before the activation: one, or for kSwiGlu those of gate and up.
  std::vector<std::string> up;
  std::string down;  ///< Name of the layer after it.
  int64_t width = 0;
  int64_t inner = 0;
  bool bias = true;
};

/// Two linear layers with an activation between them; gate and up are one product. Tensor-parallel
/// ranks (products.tensor) have some of the inner columns each.
class Mlp {
 public:
  Mlp(ParameterSet* parameters, const MlpOptions& options, const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// [count, width] -> the same. Saves x and the values before the activation, which is computed
  /// again in the backward pass, in the same sweep as its derivative. GELU and its derivative are
  /// part of the products before them, and so are others that these fuse. A squared ReLU keeps two
  /// of four columns where ProductsFactory::PrunesActivations.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x) const;

 private:
  /// The activation, where `layer` takes it with its product: GELU, or one that it fuses.
  std::optional<GeluValue> TakenBy(const Linear& layer) const;
  /// The second layer's product with the activation of x, which is `active` where it is known.
  Result<Value> Project(Context& context, Tape& tape, const Value& x, Tensor active) const;
  Status Activate(Context& context, const Tensor& x, const Tensor& y) const;
  Result<Tensor> DifferentiateSwiGlu(Context& context, const Tensor& dactive, const Tensor& x,
                                     const Tensor& active) const;
  /// The gradient of what an activation reads, from that of the second layer's result; of a gated
  /// one only where that layer takes it. `active`, when given, becomes the result of the activation
  /// again.
  Result<Tensor> DifferentiateBehind(Context& context, const OutputGradient& dy, const Tensor& x,
                                     const Tensor& active) const;
  bool gated() const { return activation_ == MlpActivation::kSwiGlu; }
  bool is_gelu() const {
    return activation_ == MlpActivation::kGelu || activation_ == MlpActivation::kErfGelu;
  }
  /// Whether other ranks have other addends of what a product makes.
  bool sums_features() const { return tensor_ != nullptr && tensor_->rows() > 1; }
  bool keeps_two_of_four() const { return factory_ != nullptr && factory_->PrunesActivations(); }
  /// Inner columns of x, what the activation reads: those that are here and not left out.
  int64_t InnerOf(const Tensor& x) const { return x.shape()[-1] / (gated() ? 2 : 1); }
  Shape ActiveShape(const Tensor& x) const { return {x.shape().Rows(), InnerOf(x)}; }

  MlpActivation activation_;
  const TensorParallel* tensor_;    ///< Tensor-parallel ranks, or none.
  const ProductsFactory* factory_;  ///< Or none.
  Linear up_;
  Linear down_;
  int64_t inner_;  ///< That are here.
};

}  // namespace weft::engine
