#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "worker/engine/nn/packed_copies.h"
#include "worker/engine/nn/parameter_prefetcher.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::engine {

/// A weight matrix of a ParameterSet, or several stacked ones as one, with its compute copy.
class PackedParameter {
 public:
  /// Parameters [index, index + count), for products of type `compute`. `parameters` outlives this.
  PackedParameter(ParameterSet* parameters, int64_t index, DType compute, int64_t count = 1);

  /// Renews the copy from the master, padded rows included, where it may have changed. Where values
  /// are streamed their prefetcher does that.
  Status Pack(Context& context, Repack what);

  int64_t index() const { return copies_->index; }
  /// After Pack.
  const kernels::PackedWeight* packed() const { return copies_->packed.weight.get(); }

 private:
  struct Copies : DerivedCopies {
    const ParameterSet* parameters = nullptr;
    int64_t index = 0;
    int64_t count = 1;
    DType compute = DType::kF32;
    PackedCopies* spare = nullptr;
    PackedCopy packed;
    bool made = false;  ///< Once at least.
    Tensor stored;      ///< On the device, of an offloaded matrix, what products read.

    TensorView Master() const;
    bool trained() const override { return parameters->AnyTrainable(index, count); }
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

}  // namespace weft::engine
