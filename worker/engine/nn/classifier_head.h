#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/autograd/tape.h"
#include "worker/engine/nn/added_logits.h"
#include "worker/engine/nn/packed_parameter.h"
#include "worker/engine/nn/products.h"
#include "worker/engine/nn/tensor_parallel.h"
#include "worker/engine/nn/trained_table_rows.h"

namespace weft::engine {

/// What a batch costs.
struct BatchLoss {
  double sum = 0;     ///< Of the losses at all targets.
  int64_t right = 0;  ///< Targets with the largest logit, where they are counted.
};

/// What a head is to predict, row by row.
struct HeadTargets {
  Tensor classes;           ///< [rows] i32, kernels::kIgnoreTarget where nothing is.
  Tensor gradient_weights;  ///< [rows] f32 that gradients of logits are multiplied by; none: 1.
  Tensor losses;            ///< [rows] f32 that gets the loss of each row; none: nobody wants them.
  Tensor source_hidden = {};  ///< [rows, its width] LogitsSource::HiddenStates; with AddedLogits.
};

/// Logits and their softmax cross-entropy, over a vocabulary padded to whole tiles. The logits of
/// all tokens never exist: chunk after chunk they are computed, overwritten by their gradient and,
/// while in cache, multiplied into the gradients of the weight and of the input. Where the weight
/// is sharded by rows, ranks exchange three numbers a token, and the gradient of the input is a
/// partial sum; where it is sharded by columns, the logits are partial sums.
class ClassifierHead {
 public:
  /// `weight` [padded vocabulary, width] may be shared with an embedding; the caller packs it.
  /// `bias` is the index of a vector, padded alike, or -1. `counts` correct predictions, which is
  /// for few columns. `ranks` are those over which the weight is sharded, then without a bias, or
  /// null.
  ClassifierHead(const ParameterSet* parameters, const PackedParameter* weight, int64_t vocabulary,
                 int64_t bias = -1, bool counts = false, const TensorParallel* ranks = nullptr);

  /// Registers what `factory` has besides the weight (ProductsFactory::AdaptersOf), which then adds
  /// to the logits; null: nothing. `parameters` are those of the constructor, `compute` is the type
  /// of what the head reads.
  void Adapt(ParameterSet* parameters, ProductsFactory* factory, DType compute);

  /// Renews what is derived from the parameters of Adapt, where they may have changed.
  Status Pack(Context& context, Repack what) { return products_->Pack(context, what); }

  /// Says that rows of the weight are trained elsewhere, or for null that none are; outlives the
  /// head.
  void SetTrainedRows(const TrainedTableRows* rows) { rows_ = rows; }
  bool has_trained_rows() const { return rows_ != nullptr; }

  /// Says what Loss adds to the logits, to those of this rank's classes; outlives the head.
  void SetAddedLogits(const AddedLogits* added) { added_ = added; }

  /// Adds -log softmax at the targets that are not ignored to *total, in memory of the stream's
  /// device. When the tape records, the gradient of gradient_scale * sum, weighed row by row, is
  /// computed here, not in the backward pass.
  Status Loss(Context& context, Tape& tape, const Value& hidden, const HeadTargets& targets,
              kernels::StepValue<float> gradient_scale, BatchLoss* total) const;

  /// [rows, padded vocabulary], compute type; columns from the vocabulary on mean nothing.
  Result<Tensor> Logits(Context& context, const Tensor& hidden) const;

 private:
  /// The result of CountWork for one row of the products besides the weight's, of those that are
  /// trained with `tape`; null: of all.
  double AdapterFlops(const Tape* tape) const;
  /// Losses, and the gradients of logits in their place; `found` is memory for it, of tensor_.
  Status CrossEntropy(Context& context, const kernels::CrossEntropyArgs& args,
                      const Tensor& found) const;
  /// The gradient of the penalty of AddedLogits of a chunk, whose logits alone were `own`, where
  /// that of the loss is; the squares of each row go to `squares`.
  Status Penalize(Context& context, const Tensor& own, const Tensor& targets,
                  kernels::StepValue<float> gradient_scale, const Tensor& dlogits,
                  const Tensor& squares) const;
  Status AddWeightGradient(Context& context, Tape& tape, const Tensor& input,
                           const OutputGradient& dlogits) const;
  /// Adds the gradient of the trained rows alone.
  Status AddRowsGradient(Context& context, Tape& tape, const Tensor& input,
                         const Tensor& dlogits) const;
  /// The parameters whose gradients it computes, where they are trained.
  std::vector<int64_t> Parameters() const;

  /// Other ranks have other classes.
  bool shares_classes() const { return tensor_ != nullptr && tensor_->columns() > 1; }

  const ParameterSet* parameters_;
  const PackedParameter* weight_;
  std::unique_ptr<WeightProducts> products_;
  int64_t first_adapter_ = 0;  ///< Index of the first parameter of Adapt,
  int64_t adapters_ = 0;       ///< and their number.
  int64_t vocabulary_;
  int64_t bias_;
  bool counts_;
  const TensorParallel* tensor_;
  const TrainedTableRows* rows_ = nullptr;
  const AddedLogits* added_ = nullptr;
};

}  // namespace weft::engine
