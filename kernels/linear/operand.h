#pragma once

#include "kernels/cpu/aligned_memory.h"
#include "kernels/tensor_view.h"

namespace weft::kernels::cpu {

/// An operand or a result of type `type` and without gaps between rows, in place where it is so
/// already, and else as a copy: of its contents with `is_input`, and else uninitialized.
class Operand {
 public:
  Operand(const TensorView& view, DType type, bool is_input);
  Operand(const Operand&) = delete;
  Operand& operator=(const Operand&) = delete;

  const TensorView& view() const { return view_; }

  /// Moves a result computed in a copy to where it belongs.
  void WriteBack(const TensorView& to) const;

 private:
  TensorView view_;
  AlignedMemory copy_;
};

}  // namespace weft::kernels::cpu
