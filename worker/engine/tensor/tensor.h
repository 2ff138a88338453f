#pragma once

#include <utility>

#include "kernels/tensor_view.h"
#include "worker/engine/tensor/context.h"

namespace weft::engine {

/// A TensorView that shares the ownership of its memory. Copies and row slices look at the same
/// elements. Thread-compatible.
class Tensor {
 public:
  Tensor() = default;

  /// Contiguous, content undefined.
  static Result<Tensor> New(Context& context, Component component, DType dtype, Shape shape) {
    TensorView view(nullptr, dtype, shape, context.stream.device);
    WEFT_ASSIGN_OR_RETURN(BlockRef block, context.allocator->Allocate(component, view.Bytes()));
    view.data = block.data();
    return Tensor(view, std::move(block));
  }

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }  // NOLINT(google-explicit-constructor)
  explicit operator bool() const { return view_.data != nullptr; }

  const Shape& shape() const { return view_.shape; }
  DType dtype() const { return view_.dtype; }
  size_t Bytes() const { return view_.Bytes(); }
  template <class T>
  T* As() const {
    return view_.As<T>();
  }

  /// Nobody else holds the memory, so it may be overwritten in place.
  bool unique() const { return block_.unique(); }

  /// Elements [begin, begin + count) of a vector.
  Tensor Elements(int64_t begin, int64_t count) const {
    Tensor part = *this;
    char* data =
        static_cast<char*>(view_.data) + static_cast<size_t>(begin) * DTypeSize(view_.dtype);
    part.view_ = TensorView(data, view_.dtype, {count}, view_.device);
    return part;
  }

  /// The part from byte `offset` on, as a tensor of another type and shape.
  Tensor Part(size_t offset, DType dtype, const Shape& shape) const {
    Tensor part = *this;
    part.view_ = TensorView(static_cast<char*>(view_.data) + offset, dtype, shape, view_.device);
    return part;
  }

  /// Rows [begin, begin + count) of the [Rows(), shape[-1]] matrix.
  Tensor Rows(int64_t begin, int64_t count) const {
    Tensor rows = *this;
    rows.view_.shape = {count, view_.shape[-1]};
    rows.view_.data = static_cast<char*>(view_.data) +
                      static_cast<size_t>(begin * view_.row_stride) * DTypeSize(view_.dtype);
    return rows;
  }

  /// Columns [begin, begin + count) of the [Rows(), shape[-1]] matrix; rows stay strided.
  Tensor Columns(int64_t begin, int64_t count) const {
    Tensor columns = *this;
    columns.view_.shape = {view_.shape.Rows(), count};
    columns.view_.data =
        static_cast<char*>(view_.data) + static_cast<size_t>(begin) * DTypeSize(view_.dtype);
    return columns;
  }

 private:
  Tensor(const TensorView& view, BlockRef block) : view_(view), block_(std::move(block)) {}

  TensorView view_;
  BlockRef block_;
};

}  // namespace weft::engine
