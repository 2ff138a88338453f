#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/linear/linear.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/fp8_scaling.h"
#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/tensor_parallel.h"

namespace weft::engine {

/// What has changed of the parameters since they were packed.
enum class Repack : uint8_t {
  kAll,
  kTrained,  ///< Nothing that is frozen.
};

/// How products with weights are computed.
struct ProductOptions {
  ProductOptions(DType type, Fp8Scaling* scaling = nullptr,  // NOLINT(google-explicit-constructor)
                 const TensorParallel* ranks = nullptr)
      : compute(type), fp8(scaling), tensor(ranks) {}

  DType compute;    ///< Type of inputs and results.
  Fp8Scaling* fp8;  ///< Makes the operands of products, or none: they are of type `compute`.
  const TensorParallel* tensor;  ///< The ranks that share the matrices of blocks, or none.
};

/// A weight matrix of a ParameterSet, or several stacked ones as one, with its compute copies.
class PackedParameter {
 public:
  /// Parameters [index, index + count). `parameters` outlives this.
  PackedParameter(ParameterSet* parameters, int64_t index, const ProductOptions& products,
                  int64_t count = 1);

  /// Renews the copies from the master, padded rows included, where it may have changed. Where
  /// values come and go their residence does that.
  Status Pack(Context& context, Repack what);

  int64_t index() const { return copies_->index; }
  int64_t count() const { return copies_->count; }
  DType compute() const { return copies_->products.compute; }
  /// After Pack, unless products have FP8 operands.
  const kernels::PackedWeight* packed() const { return copies_->packed.weight.get(); }
  /// After Pack where they have.
  const Fp8Tensor& fp8() const { return copies_->fp8; }
  /// How often the copies have been made.
  int64_t version() const { return copies_->version; }

 private:
  struct Copies : DerivedCopies {
    const ParameterSet* parameters = nullptr;
    int64_t index = 0;
    int64_t count = 1;
    ProductOptions products{DType::kF32};
    PackedCopies* spare = nullptr;
    PackedCopy packed;
    Fp8Tensor fp8;
    int64_t fp8_weight = 0;  ///< Fp8Scaling::AddWeight
    int64_t version = 0;

    Tensor stored;  ///< On the device, of an offloaded matrix, what products read.

    TensorView Master() const;
    bool trained() const override;
    Status Reserve(Context& context) override;
    Status Make(Context& context) override;
    Status MakeOffloaded(Context& context, const TensorView& master);
    void Drop() override {
      spare->Give(std::move(packed));
      stored = {};
    }
  };
  std::shared_ptr<Copies> copies_;
};

struct LinearOptions {
  /// Name, number and role of each output: parameters `name`.weight and `name`.bias. Several
  /// outputs of one input (queries, keys and values, say) are one product, their columns side by
  /// side.
  std::vector<ParameterSet::StackedPart> outputs;
  int64_t in_features = 0;
  bool bias = true;
  /// Which columns of W and x stand here, when other ranks have the rest: then y is a summand of
  /// the result, and the first rank's one has the bias. One range.
  Shard inputs = {};
  /// Of a layer with FP8 operands whose input and result are parts of those of several layers,
  /// which have one scale: the number of that (Fp8Scaling::AddLayer), or none.
  std::optional<int64_t> fp8_layer = {};
};

/// GELU of a form, and its value.
struct GeluValue {
  kernels::GeluForm form = kernels::GeluForm::kTanh;
  Tensor value = {};
};

/// y = x Wᵀ + b with W [out, in]. Of a layer that several ranks share, `outputs` and `inputs` say
/// which rows or columns of W are here (Shoeybi et al. 2019, arXiv 1909.08053).
class Linear {
 public:
  Linear(ParameterSet* parameters, const LinearOptions& options, const ProductOptions& products);

  Status Pack(Context& context, Repack what);

  /// Index of the first output's weight.
  int64_t weight_index() const { return weight_.index(); }

  /// Columns of y.
  int64_t out_features() const { return out_features_; }

  /// [rows, in] -> [rows, out], compute type.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x) const;
  /// The same with what stands for x in the backward pass, and with GELU(y), unless it is null:
  /// a new tensor, which the backward pass does not know.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x, SavedTensor saved,
                        GeluValue* active = nullptr) const;

  /// y = x Wᵀ + b, not recorded.
  Result<Tensor> Apply(Context& context, const Tape& tape, const Tensor& x,
                       GeluValue* active = nullptr) const;

  /// The same into the rows `y`, which may be none.
  Status ApplyTo(Context& context, const Tape& tape, const Tensor& x, const Tensor& y,
                 GeluValue* active = nullptr) const;

  /// The gradient of y as the products of the backward pass read it.
  struct OutputGradient {
    Tensor dy;
    Fp8Tensor fp8;

    /// What AddWeightGradient reads of it, for those that are put off.
    OutputGradient ForWeight() const { return {dy, {{}, fp8.transposed, fp8.inverse_scale}}; }
  };
  /// `for_input`: InputGradient will be called, `for_weight`: AddWeightGradient. dy may have no
  /// rows.
  Result<OutputGradient> Prepare(Context& context, const Tape& tape, Tensor dy, bool for_input,
                                 bool for_weight) const;
  /// dy W in a new tensor. With `before`, of which x is the GELU: the gradient of that; its
  /// `value`, where there is one, becomes x again.
  Result<Tensor> InputGradient(Context& context, const OutputGradient& dy,
                               const Tensor& before = {}, const GeluValue& active = {}) const;
  /// The same into the rows `dx`.
  Status InputGradientTo(Context& context, const OutputGradient& dy, const Tensor& dx,
                         const Tensor& before = {}, const GeluValue& active = {}) const;
  /// Adds the gradients of W and b where they are trained; the last word on both from the use that
  /// Use announced. x may have no rows.
  Status AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                           const OutputGradient& dy) const;
  /// Announces a use of W and b in the forward pass.
  void Use(Tape& tape) const;
  /// Whether any part of W or b is trained: then AddWeightGradient is to be called.
  bool Trains(const Tape& tape) const;

 private:
  bool TrainsWeight(const Tape& tape) const;
  /// What AddWeightGradient does of an x without rows.
  Status AddNoGradient(Context& context, Tape& tape) const;
  TensorView Bias() const;
  Status WeightProduct(Context& context, const Tensor& x, const Fp8Tensor& x8,
                       const OutputGradient& dy, int64_t column, int64_t columns,
                       const kernels::LinearBackwardWeightArgs& to) const;

  const ParameterSet* parameters_;
  const Fp8Scaling* fp8_;
  int64_t fp8_layer_ = 0;
  Tensor fp8_bias_;            ///< As bf16, or none.
  bool adds_bias_;             ///< In the forward pass: not where another rank does.
  std::vector<int64_t> rows_;  ///< By output.
  PackedParameter weight_;
  int64_t bias_;  ///< Of the first output, or -1.
  int64_t in_features_;
  int64_t out_features_;
};

}  // namespace weft::engine
