#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"
#include "worker/engine/tensor/shard.h"

namespace weft::engine {

/// Rows [begin, begin + count) of a matrix.
inline TensorView RowsOf(TensorView matrix, int64_t begin, int64_t count) {
  matrix.data = static_cast<char*>(matrix.data) +
                static_cast<size_t>(begin * matrix.row_stride) * DTypeSize(matrix.dtype);
  matrix.shape = {count, matrix.shape[-1]};
  return matrix;
}

/// A weight matrix of a ParameterSet, or several stacked ones as one, with its compute copy.
class PackedParameter {
 public:
  /// Parameters [index, index + count), for products of type `compute`. `parameters` outlives this.
  PackedParameter(ParameterSet* parameters, int64_t index, DType compute, int64_t count = 1)
      : PackedParameter(parameters, index, compute, count, {}) {}
  /// Rows of parameter `index` alone.
  PackedParameter(ParameterSet* parameters, int64_t index, DType compute, const Shard::Range& rows)
      : PackedParameter(parameters, index, compute, 1, rows) {}

  /// Renews the copy from the master, padded rows included, where it may have changed. Where values
  /// are streamed, or quantised, their prefetcher does that.
  Status Pack(Context& context, Repack what);

  /// Frees the copy, and what unused ones there are, until the next Pack; nobody makes it before.
  void Release();

  int64_t index() const { return copies_->index; }
  /// After Pack.
  const kernels::PackedWeight* packed() const { return copies_->packed.weight.get(); }

 private:
  PackedParameter(ParameterSet* parameters, int64_t index, DType compute, int64_t count,
                  const Shard::Range& rows);

  struct Copies : DerivedCopies {
    const ParameterSet* parameters = nullptr;
    int64_t index = 0;
    int64_t count = 1;
    Shard::Range rows = {};  ///< Of the parameter; none: all.
    DType compute = DType::kF32;
    PackedCopies* spare = nullptr;
    PackedCopy packed;
    bool made = false;    ///< Once at least, since it was released.
    bool unused = false;  ///< Released.
    Tensor stored;        ///< On the device, of an offloaded matrix, what products read.

    TensorView Master() const;
    bool trained() const override { return parameters->AnyTrainable(index, count); }
    Status Reserve(Context& context) override;
    Status Make(Context& context) override;
    Status MakeOffloaded(Context& context, const TensorView& master);
    bool read_values() const override { return packed.weight->reads_master(); }
    void Drop() override {
      spare->Give(std::move(packed));
      stored = {};
    }
  };
  std::shared_ptr<Copies> copies_;
};

}  // namespace weft::engine
