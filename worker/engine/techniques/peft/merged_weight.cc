#include "worker/engine/techniques/peft/merged_weight.h"

#include <utility>

#include "kernels/cayley/cayley.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/linear/linear.h"
#include "kernels/swap_blocks/swap_blocks.h"
#include "worker/engine/techniques/peft/lora_products.h"
#include "worker/engine/techniques/peft/merged_weights_cost.h"
#include "worker/engine/techniques/peft/peft_targets_cost.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

Result<Tensor> NewMatrix(Context& context, int64_t rows, int64_t columns) {
  return Tensor::New(context, Component::kWorkspace, DType::kF32, {rows, columns});
}

/// The same numbers as another matrix.
TensorView As(const TensorView& view, int64_t rows, int64_t columns) {
  return {view.data, view.dtype, {rows, columns}, view.device};
}

/// A copy in f32 of a matrix whose rows may be strided.
Result<Tensor> InF32(Context& context, const TensorView& matrix) {
  WEFT_ASSIGN_OR_RETURN(const Tensor rows,
                        Tensor::New(context, Component::kWorkspace, matrix.dtype, matrix.shape));
  WEFT_RETURN_IF_ERROR(CopyRows(context.stream, matrix, rows));
  if (matrix.dtype == DType::kF32) return rows;
  WEFT_ASSIGN_OR_RETURN(Tensor copy, NewMatrix(context, matrix.shape[0], matrix.shape[1]));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {rows, copy}));
  return copy;
}

/// Rows or columns of a matrix, from `begin` on.
TensorView Piece(TensorView matrix, int axis, int64_t begin, int64_t count) {
  const int64_t elements = axis == 0 ? begin * matrix.row_stride : begin;
  matrix.data =
      static_cast<char*>(matrix.data) + static_cast<size_t>(elements) * DTypeSize(matrix.dtype);
  matrix.shape.dims[static_cast<size_t>(axis)] = count;
  return matrix;
}

/// The weight of a layer, or this tensor-parallel rank's shard of it.
struct PartOfWeight {
  Shape whole;  ///< Of the weight.
  Shard shard;  ///< What of it is here.

  /// What goes with the part here of a matrix that has the rows, the columns or both of the weight.
  Result<Tensor> Cut(Context& context, const TensorView& all) const {
    Shape shape = all.shape;
    shape.dims[static_cast<size_t>(shard.axis)] = shard.size();
    WEFT_ASSIGN_OR_RETURN(Tensor part,
                          Tensor::New(context, Component::kWorkspace, all.dtype, shape));
    WEFT_RETURN_IF_ERROR(ForEachPiece(all, part, [&](const TensorView& from, const TensorView& to) {
      return CopyRows(context.stream, from, to);
    }));
    return part;
  }
  /// The part in a matrix of the shape of the weight, which is zero elsewhere.
  Result<Tensor> Spread(Context& context, const TensorView& part) const {
    WEFT_ASSIGN_OR_RETURN(Tensor all, NewMatrix(context, whole[0], whole[1]));
    WEFT_RETURN_IF_ERROR(Clear(context.stream, all));
    WEFT_RETURN_IF_ERROR(ForEachPiece(all, part, [&](const TensorView& to, const TensorView& from) {
      return CopyRows(context.stream, from, to);
    }));
    return all;
  }

 private:
  /// Calls fn(of_all, of_part) for pieces of matrices that are the same.
  template <class Fn>
  Status ForEachPiece(const TensorView& all, const TensorView& part, Fn&& fn) const {
    int64_t at = 0;
    for (const Shard::Range& range : shard.ranges) {
      WEFT_RETURN_IF_ERROR(fn(Piece(all, shard.axis, range.begin, range.size()),
                              Piece(part, shard.axis, at, range.size())));
      at += range.size();
    }
    return OkStatus();
  }
};

/// A matrix in f32 that products multiply by. They read it where it is, too: `memory` keeps it.
class Operand {
 public:
  static Result<Operand> Of(Context& context, const TensorView& matrix, Tensor memory = {}) {
    Operand operand;
    operand.memory_ = std::move(memory);
    WEFT_ASSIGN_OR_RETURN(operand.packed_,
                          kernels::NewPackedWeight(context.stream.device, matrix.shape[0],
                                                   matrix.shape[1], DType::kF32));
    WEFT_RETURN_IF_ERROR(operand.packed_->Pack(context.stream, matrix));
    WEFT_RETURN_IF_ERROR(
        operand.bytes_.Set(context.allocator, Component::kWorkspace, operand.packed_->Bytes()));
    return operand;
  }
  const kernels::PackedWeight* get() const { return packed_.get(); }

 private:
  Tensor memory_;
  std::unique_ptr<kernels::PackedWeight> packed_;
  ExternalBytes bytes_;
};

/// A matrix [rows, columns] among the tensors of an adapter, or the product of two of them, a
/// [rows, rank] and b [rank, columns].
class Factor {
 public:
  Factor(const ParameterSet* parameters, int64_t index, bool factored)
      : parameters_(parameters), index_(index), factored_(factored) {}

  /// Number of its tensors.
  int64_t tensors() const { return factored_ ? 2 : 1; }

  /// Its value in f32.
  Result<Tensor> Value(Context& context) const {
    WEFT_ASSIGN_OR_RETURN(Tensor a, InF32(context, parameters_->operand(index_)));
    if (!factored_) return a;
    WEFT_ASSIGN_OR_RETURN(const Tensor b, InF32(context, parameters_->operand(index_ + 1)));
    WEFT_ASSIGN_OR_RETURN(const Operand operand, Operand::Of(context, b));
    WEFT_ASSIGN_OR_RETURN(Tensor product, NewMatrix(context, a.shape()[0], b.shape()[1]));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardInput(
        context.stream, {.dy = a, .weight = operand.get(), .dx = product}));
    return product;
  }

  /// The gradients of its tensors, whose places begin with that of `to.dtensors[first]`, from that
  /// of its value.
  Status Gradients(Context& context, const TensorView& gradient, size_t first,
                   const WeightGradientTarget& to) const {
    const TensorView da = to.dtensors[first];
    if (!factored_) {
      if (!da) return OkStatus();
      return kernels::AddScaled(context.stream, {.x = As(gradient, da.shape[0], da.shape[1]),
                                                 .y = da,
                                                 .keep = to.accumulate ? 1.0f : 0.0f});
    }
    if (da) {
      WEFT_ASSIGN_OR_RETURN(const Tensor b, InF32(context, parameters_->operand(index_ + 1)));
      WEFT_ASSIGN_OR_RETURN(const Operand operand, Operand::Of(context, b));
      WEFT_RETURN_IF_ERROR(kernels::LinearForward(
          context.stream,
          {.x = gradient, .weight = operand.get(), .y = da, .accumulate = to.accumulate}));
    }
    const TensorView db = to.dtensors[first + 1];
    if (!db) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Tensor a, InF32(context, parameters_->operand(index_)));
    return kernels::LinearBackwardWeight(
        context.stream, {.x = gradient, .dy = a, .dweight = db, .accumulate = to.accumulate});
  }

 private:
  const ParameterSet* parameters_;
  int64_t index_;  ///< Of the first of its tensors.
  bool factored_;
};

class Loha : public MergedWeight {
 public:
  Loha(const ParameterSet* parameters, int64_t first, double scale)
      : factors_{{parameters, first, true}, {parameters, first + 2, true}},
        scale_(static_cast<float>(scale)) {}

  Status Merge(Context& context, const TensorView& merged) const override {
    WEFT_ASSIGN_OR_RETURN(const Tensor delta, factors_[0].Value(context));
    WEFT_ASSIGN_OR_RETURN(const Tensor second, factors_[1].Value(context));
    WEFT_RETURN_IF_ERROR(kernels::Hadamard(context.stream, {.a = delta, .b = second, .y = delta}));
    return kernels::AddScaled(context.stream, {.x = delta, .y = merged, .factor = scale_});
  }

  Status Gradients(Context& context, const TensorView& /*weight*/, const Tensor& gradient,
                   const WeightGradientTarget& to) const override {
    for (size_t i = 0; i < 2; ++i) {
      WEFT_ASSIGN_OR_RETURN(const Tensor own, factors_[1 - i].Value(context));
      WEFT_RETURN_IF_ERROR(
          kernels::Hadamard(context.stream, {.a = gradient, .b = own, .y = own, .factor = scale_}));
      WEFT_RETURN_IF_ERROR(factors_[i].Gradients(context, own, 2 * i, to));
    }
    return OkStatus();
  }

 private:
  Factor factors_[2];
  float scale_;
};

class Lokr : public MergedWeight {
 public:
  Lokr(const ParameterSet* parameters, int64_t first, const KroneckerSizes& size, double scale,
       PartOfWeight part)
      : part_(std::move(part)),
        size_(size),
        first_(parameters, first, size.factored[0]),
        second_(parameters, first + first_.tensors(), size.factored[1]),
        scale_(static_cast<float>(scale)) {}

  // All products of two numbers, W1 down and W2 across; the blocks of each row of W1 then go where
  // the Kronecker product has them.
  Status Merge(Context& context, const TensorView& merged) const override {
    WEFT_ASSIGN_OR_RETURN(const Tensor first, first_.Value(context));
    WEFT_ASSIGN_OR_RETURN(const Tensor second, second_.Value(context));
    WEFT_ASSIGN_OR_RETURN(const Tensor outer, NewMatrix(context, Numbers(0), Numbers(1)));
    WEFT_RETURN_IF_ERROR(
        kernels::LinearBackwardWeight(context.stream, {.x = As(second, 1, Numbers(1)),
                                                       .dy = As(first, 1, Numbers(0)),
                                                       .dweight = outer,
                                                       .accumulate = false}));
    WEFT_ASSIGN_OR_RETURN(const Tensor delta, NewMatrix(context, part_.whole[0], part_.whole[1]));
    WEFT_RETURN_IF_ERROR(kernels::SwapBlocks(
        context.stream,
        {.x = ByRow(outer), .y = ByRow(delta), .outer = size_.in[0], .inner = size_.out[1]}));
    Tensor own = delta;
    if (!part_.shard.whole()) {
      WEFT_ASSIGN_OR_RETURN(own, part_.Cut(context, delta));
    }
    return kernels::AddScaled(context.stream, {.x = own, .y = merged, .factor = scale_});
  }

  // The gradient of a part of the weight is that of a weight whose other numbers have none.
  Status Gradients(Context& context, const TensorView& /*weight*/, const Tensor& gradient,
                   const WeightGradientTarget& to) const override {
    Tensor whole = gradient;
    if (!part_.shard.whole()) {
      WEFT_ASSIGN_OR_RETURN(whole, part_.Spread(context, gradient));
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor outer, NewMatrix(context, Numbers(0), Numbers(1)));
    WEFT_RETURN_IF_ERROR(kernels::SwapBlocks(
        context.stream,
        {.x = ByRow(whole), .y = ByRow(outer), .outer = size_.out[1], .inner = size_.in[0]}));
    WEFT_RETURN_IF_ERROR(kernels::Scale(context.stream, {outer, scale_}));
    {
      WEFT_ASSIGN_OR_RETURN(const Tensor second, second_.Value(context));
      WEFT_ASSIGN_OR_RETURN(const Operand row, Operand::Of(context, As(second, 1, Numbers(1))));
      WEFT_ASSIGN_OR_RETURN(const Tensor own, NewMatrix(context, Numbers(0), 1));
      WEFT_RETURN_IF_ERROR(
          kernels::LinearForward(context.stream, {.x = outer, .weight = row.get(), .y = own}));
      WEFT_RETURN_IF_ERROR(first_.Gradients(context, As(own, size_.out[0], size_.in[0]), 0, to));
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor first, first_.Value(context));
    WEFT_ASSIGN_OR_RETURN(const Tensor own, NewMatrix(context, 1, Numbers(1)));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream,
        {.x = outer, .dy = As(first, Numbers(0), 1), .dweight = own, .accumulate = false}));
    return second_.Gradients(context, As(own, size_.out[1], size_.in[1]),
                             static_cast<size_t>(first_.tensors()), to);
  }

 private:
  /// Numbers of W1 or W2.
  int64_t Numbers(size_t which) const { return size_.out[which] * size_.in[which]; }
  /// What belongs to each row of W1 as one row.
  TensorView ByRow(const TensorView& matrix) const {
    return As(matrix, size_.out[0], size_.in[0] * Numbers(1));
  }

  PartOfWeight part_;
  KroneckerSizes size_;  ///< Of the whole weight.
  Factor first_, second_;
  float scale_;
};

class Oft : public MergedWeight {
 public:
  Oft(const ParameterSet* parameters, int64_t index, int64_t size, int64_t first_column)
      : parameters_(parameters), index_(index), size_(size), first_block_(first_column / size) {}

  // W + W (R - I)ᵀ, so that it is W where R is I.
  Status Merge(Context& context, const TensorView& merged) const override {
    WEFT_ASSIGN_OR_RETURN(const Tensor blocks, NewMatrix(context, merged.shape[1], size_));
    WEFT_RETURN_IF_ERROR(
        kernels::CayleyForward(context.stream, {OwnBlocks(merged.shape[1]), blocks}));
    for (int64_t at = 0; at < merged.shape[1]; at += size_) {
      WEFT_ASSIGN_OR_RETURN(const Operand block, Operand::Of(context, blocks.Rows(at, size_)));
      WEFT_ASSIGN_OR_RETURN(const Tensor weight, InF32(context, Piece(merged, 1, at, size_)));
      WEFT_RETURN_IF_ERROR(kernels::LinearForward(context.stream, {.x = weight,
                                                                   .weight = block.get(),
                                                                   .y = Piece(merged, 1, at, size_),
                                                                   .accumulate = true}));
    }
    return OkStatus();
  }

  Status Gradients(Context& context, const TensorView& weight, const Tensor& gradient,
                   const WeightGradientTarget& to) const override {
    const TensorView& dq = to.dtensors.front();
    if (!dq) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(const Tensor dblocks, NewMatrix(context, weight.shape[1], size_));
    for (int64_t at = 0; at < weight.shape[1]; at += size_) {
      WEFT_ASSIGN_OR_RETURN(const Tensor own, InF32(context, Piece(weight, 1, at, size_)));
      WEFT_RETURN_IF_ERROR(
          kernels::LinearBackwardWeight(context.stream, {.x = own,
                                                         .dy = gradient.Columns(at, size_),
                                                         .dweight = dblocks.Rows(at, size_),
                                                         .accumulate = false}));
    }
    const int64_t own = weight.shape[1] / size_;
    if (!to.accumulate && own < dq.shape[0]) WEFT_RETURN_IF_ERROR(Clear(context.stream, dq));
    return kernels::CayleyBackward(
        context.stream,
        {OwnBlocks(weight.shape[1]), dblocks, Piece(dq, 0, first_block_, own), to.accumulate});
  }

 private:
  /// Those of this many columns, which are here.
  TensorView OwnBlocks(int64_t columns) const {
    return Piece(parameters_->operand(index_), 0, first_block_, columns / size_);
  }

  const ParameterSet* parameters_;
  int64_t index_;
  int64_t size_;         ///< Of a block.
  int64_t first_block_;  ///< Of the columns here.
};

/// W + diag(b) B diag(d) A with trained vectors b and d, and the rows of B and columns of A that W
/// has of the factors that all adapters share.
class Vera : public MergedWeight {
 public:
  Vera(const ParameterSet* parameters, int64_t first, int64_t a, int64_t b, PartOfWeight part)
      : parameters_(parameters), first_(first), a_(a), b_(b), part_(std::move(part)) {}

  Status Merge(Context& context, const TensorView& merged) const override {
    WEFT_ASSIGN_OR_RETURN(const Operand a, OperandA(context, merged.shape[1]));
    WEFT_ASSIGN_OR_RETURN(const Tensor b, FactorB(context, merged.shape[0]));
    const int64_t out = b.shape()[0], rank = b.shape()[1];
    WEFT_ASSIGN_OR_RETURN(const Tensor scales, NewMatrix(context, out, rank));
    WEFT_RETURN_IF_ERROR(kernels::LinearBackwardWeight(
        context.stream, {.x = As(parameters_->operand(first_ + 1), 1, rank),
                         .dy = As(parameters_->operand(first_), 1, out),
                         .dweight = scales,
                         .accumulate = false}));
    WEFT_RETURN_IF_ERROR(kernels::Hadamard(context.stream, {.a = b, .b = scales, .y = b}));
    return kernels::LinearBackwardInput(
        context.stream, {.dy = b, .weight = a.get(), .dx = merged, .accumulate = true});
  }

  // With G = dW' Aᵀ the gradients are sums over B * G: db of its rows with the factors d, dd of its
  // columns with the factors b.
  Status Gradients(Context& context, const TensorView& weight, const Tensor& gradient,
                   const WeightGradientTarget& to) const override {
    const int64_t out = weight.shape[0], rank = parameters_->operand(first_ + 1).shape[0];
    WEFT_ASSIGN_OR_RETURN(const Tensor sums, NewMatrix(context, out, rank));
    {
      WEFT_ASSIGN_OR_RETURN(const Operand a, OperandA(context, weight.shape[1]));
      WEFT_RETURN_IF_ERROR(
          kernels::LinearForward(context.stream, {.x = gradient, .weight = a.get(), .y = sums}));
      WEFT_ASSIGN_OR_RETURN(const Tensor b, FactorB(context, out));
      WEFT_RETURN_IF_ERROR(kernels::Hadamard(context.stream, {.a = b, .b = sums, .y = sums}));
    }
    if (const TensorView& db = to.dtensors[0]; db) {
      WEFT_ASSIGN_OR_RETURN(const Operand d,
                            Operand::Of(context, As(parameters_->operand(first_ + 1), 1, rank)));
      WEFT_RETURN_IF_ERROR(kernels::LinearForward(
          context.stream,
          {.x = sums, .weight = d.get(), .y = As(db, out, 1), .accumulate = to.accumulate}));
    }
    const TensorView& dd = to.dtensors[1];
    if (!dd) return OkStatus();
    return kernels::LinearBackwardWeight(context.stream,
                                         {.x = sums,
                                          .dy = As(parameters_->operand(first_), out, 1),
                                          .dweight = As(dd, 1, rank),
                                          .accumulate = to.accumulate});
  }

 private:
  /// As many columns of A as the part here has: the first ones, of a whole weight.
  Result<Operand> OperandA(Context& context, int64_t in) const {
    WEFT_ASSIGN_OR_RETURN(const Tensor own, Own(context, parameters_->operand(a_), 1, in));
    return Operand::Of(context, own, own);
  }
  /// The same of the rows of B.
  Result<Tensor> FactorB(Context& context, int64_t out) const {
    return Own(context, parameters_->operand(b_), 0, out);
  }
  /// In f32, of a shared factor what goes with the part of the weight along one of its axes.
  Result<Tensor> Own(Context& context, const TensorView& factor, int axis, int64_t count) const {
    if (part_.shard.whole() || part_.shard.axis != axis) {
      return InF32(context, Piece(factor, axis, 0, count));
    }
    WEFT_ASSIGN_OR_RETURN(const Tensor own, part_.Cut(context, factor));
    return InF32(context, own);
  }

  const ParameterSet* parameters_;
  int64_t first_;  ///< Index of b, then of d.
  int64_t a_, b_;
  PartOfWeight part_;
};

}  // namespace

std::unique_ptr<MergedWeight> NewMergedWeight(const LinearLayer& layer, const PeftSpec& spec,
                                              const OutputWeight& weight) {
  const ParameterSet* const parameters = layer.parameters;
  const int64_t first = weight.first_adapter;
  const Parameter& own = (*parameters)[weight.first];
  const PartOfWeight part{own.logical_shape(), own.shard};
  if (spec.method == "oft") {
    return std::make_unique<Oft>(parameters, first, spec.oft_block_size, FirstInput(layer));
  }
  if (spec.method == "vera") {
    const Result<int64_t> a = parameters->Find(kVeraA), b = parameters->Find(kVeraB);
    WEFT_CHECK(a.ok() && b.ok(), "the first target has the shared factors");
    return std::make_unique<Vera>(parameters, first, *a, *b, part);
  }
  ParameterInfo info;
  info.name = (*parameters)[first].adapter_of;
  info.shape = {part.whole[0], part.whole[1]};
  const double scale = LoraScale(spec, info.name);
  if (spec.method == "loha") return std::make_unique<Loha>(parameters, first, scale);
  return std::make_unique<Lokr>(parameters, first, KroneckerOf(spec, info), scale, part);
}

}  // namespace weft::engine
