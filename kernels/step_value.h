#pragma once

namespace weft::kernels {

/// A number that changes from step to step of a training, as an operation receives it: what it is
/// now and, where the operation may be recorded and run again (kernels/cuda/graph.h), where it lies
/// each time. Arguments are checked by `value`; results follow from Get().
template <class T>
struct StepValue {
  T value{};
  const T* at = nullptr;  ///< In memory of the stream's device, or none: it is `value`.

  constexpr StepValue() = default;
  // NOLINTNEXTLINE(google-explicit-constructor): a number is one that never changes.
  constexpr StepValue(T now, const T* where = nullptr) : value(now), at(where) {}

  /// Where the operation runs.
  constexpr T Get() const { return at == nullptr ? value : *at; }
};

}  // namespace weft::kernels
