#pragma once

#include <initializer_list>
#include <string_view>

#include "common/status.h"
#include "kernels/stream.h"

namespace weft::kernels {

/// Collects the first thing wrong with the arguments of one call, as kInvalid with the operation,
/// the argument and its value:
///   return ArgumentCheck(stream, "Add").Tensor("a", args.a, shape, {DType::kF32}).status();
class ArgumentCheck {
 public:
  ArgumentCheck(const Stream& stream, std::string_view op);

  /// `view` has this shape, one of these types, memory on the stream's device, and rows that do not
  /// overlap.
  ArgumentCheck& Tensor(std::string_view name, const TensorView& view, const Shape& shape,
                        std::initializer_list<DType> types);

  /// And its rows follow each other without gaps.
  ArgumentCheck& ContiguousTensor(std::string_view name, const TensorView& view, const Shape& shape,
                                  std::initializer_list<DType> types);

  /// Any other condition; `problem` says what is wrong when it does not hold.
  ArgumentCheck& That(bool condition, std::string_view problem);

  Status status() const { return status_; }

 private:
  void Fail(std::string_view problem);

  const Stream& stream_;
  std::string_view op_;
  Status status_;
};

}  // namespace weft::kernels
