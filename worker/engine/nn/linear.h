#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/nn/products.h"

namespace weft::engine {

struct LinearOptions {
  /// Name, number and role of each output: parameters `name`.weight and `name`.bias. Several
  /// outputs of one input (for example queries, keys and values) are one product, with adjacent
  /// columns.
  std::vector<ParameterList::StackedPart> outputs;
  int64_t in_features = 0;
  bool bias = true;
  /// Which columns of W and x this rank holds, when other ranks have the rest. Then y is a partial
  /// sum of the result, and that of the first rank includes the bias. One range.
  Shard inputs = {};
  /// A name that layers have in common whose inputs are rows of one tensor, and their results of
  /// another, whichever rows each gets: those of experts. Empty: it is alone.
  std::string group = {};
};

/// y = x Wᵀ + b with W [out, in]. In a tensor-parallel layer, `outputs` and `inputs` say which rows
/// or columns of W this rank holds (Shoeybi et al. 2019, arXiv 1909.08053). This is what the tape
/// knows of it; WeightProducts compute.
class Linear {
 public:
  Linear(ParameterSet* parameters, const LinearOptions& options, const ProductOptions& products);

  Status Pack(Context& context, Repack what) { return products_->Pack(context, what); }

  /// Index of the first output's weight, or of the first tensor in its place.
  int64_t weight_index() const { return weights_.front().first; }
  /// Whether the first output has its weight, and no tensors in its place.
  bool has_weight() const { return weights_.front().tensors == 0; }

  /// Rows of W that are here: columns of y, unless the products leave some out.
  int64_t out_features() const { return out_features_; }

  /// WeightProducts::Fuses
  bool Fuses(kernels::ProductActivation activation) const { return products_->Fuses(activation); }

  /// [rows, in] -> [rows, out], compute type; of what the products do not leave out.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x) const;
  /// Computes Forward with what stands for x in the backward pass, and GELU(y), or the activation
  /// in its place, unless it is null: a new tensor, which the backward pass does not know.
  Result<Value> Forward(Context& context, Tape& tape, const Value& x, SavedTensor saved,
                        GeluValue* active = nullptr) const;

  /// y = x Wᵀ + b, not recorded.
  Result<Tensor> Apply(Context& context, const Tape& tape, const Tensor& x,
                       GeluValue* active = nullptr) const;

  /// Writes what Apply returns into the rows `y`, which may be none.
  Status ApplyTo(Context& context, const Tape& tape, const Tensor& x, const Tensor& y,
                 const GeluValue& active = {}) const;

  /// The gradient of y as the products of the backward pass read it. `for_input`: InputGradient
  /// will be called, `for_weight`: AddWeightGradient. dy may have no rows.
  Result<OutputGradient> Prepare(Context& context, const Tape& tape, Tensor dy, bool for_input,
                                 bool for_weight) const;
  /// Returns dy W in a new tensor. With `before`, whose GELU, or the activation in its place, is x,
  /// returns the gradient of `before`; the `value`, if any, becomes x again.
  Result<Tensor> InputGradient(Context& context, const OutputGradient& dy,
                               const Tensor& before = {}, const GeluValue& active = {}) const;
  /// Writes what InputGradient returns into the rows `dx`.
  Status InputGradientTo(Context& context, const OutputGradient& dy, const Tensor& dx,
                         const Tensor& before = {}, const GeluValue& active = {}) const;
  /// Adds the gradients of W and b where they are trained; the last word on both from the use that
  /// Use announced. x may have no rows.
  Status AddWeightGradient(Context& context, Tape& tape, const Tensor& x,
                           const OutputGradient& dy) const;
  /// Announces a use of W and b, and of what is in the place of W or besides it, in the forward
  /// pass.
  void Use(Tape& tape) const;
  /// Whether any part of W or b is trained: then AddWeightGradient is to be called.
  bool Trains(const Tape& tape) const;

 private:
  bool TrainsWeight(const Tape& tape) const;
  /// What AddWeightGradient does of an x without rows.
  Status AddNoGradient(Context& context, Tape& tape) const;
  /// The gradients of the trained parameters, marked as written.
  Result<std::vector<WeightGradientTarget>> TrainedTargets(ParameterGradients& gradients) const;
  int64_t outputs() const { return static_cast<int64_t>(weights_.size()); }
  /// Counts `products` multiply-adds for each of these rows, less what is left out.
  void CountProduct(Context& context, int64_t rows, int64_t products) const;
  /// Multiply-adds of a row of x with the matrices of an output: those that are trained, or without
  /// `gradients` all.
  int64_t ProductsOf(const OutputWeight& weight, const ParameterGradients* gradients) const;
  /// Calls fn(index) for all that is registered, output by output, up to an error.
  template <class Fn>
  Status ForEachParameter(Fn&& fn) const;

  const ParameterSet* parameters_;
  std::vector<OutputWeight> weights_;  ///< By output.
  int64_t bias_;                       ///< Of the first output, or -1.
  DType compute_;
  int64_t in_features_;
  int64_t out_features_;
  bool has_tensors_;         ///< Tensors are in the place of some weight, or besides it.
  int64_t products_of_row_;  ///< ProductsOf all outputs.
  std::unique_ptr<WeightProducts> products_;
};

}  // namespace weft::engine
