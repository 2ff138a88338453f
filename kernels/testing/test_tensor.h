#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <string>
#include <vector>

#include "common/rng.h"
#include "kernels/cuda/device.h"
#include "kernels/tensor_view.h"

namespace weft::kernels::testing {

/// Memory that begins at a cache line, like the engine's tensors: some kernels treat whole lines
/// apart.
template <class T>
struct LineAllocator {
  using value_type = T;
  static constexpr std::align_val_t kLine{64};

  T* allocate(size_t count) { return static_cast<T*>(::operator new(count * sizeof(T), kLine)); }
  void deallocate(T* memory, size_t /*count*/) { ::operator delete(memory, kLine); }
  bool operator==(const LineAllocator&) const = default;
};
using Bytes = std::vector<uint8_t, LineAllocator<uint8_t>>;

/// A tensor for tests: owns its memory, has guard elements between rows (when padded) and behind
/// the last, and can return to the state it was made in, so that a case can run many times. One
/// made under a ScopedTestDevice of a CUDA device has its view there: Reset() copies it to the
/// device, and after an operation Fetch() brings back what all other functions return. Values of a
/// tensor of more than kMostDrawn elements repeat; one of more than kMostKept on a device is to be
/// timed alone, and is not kept here: Values() and its like are of the part that repeats.
class TestTensor {
 public:
  /// All elements poison (a NaN pattern, or an impossible integer).
  TestTensor(DType dtype, Shape shape, int64_t row_padding = 0);
  TestTensor(const TestTensor&) = delete;
  TestTensor& operator=(const TestTensor&) = delete;

  /// Fills with values uniform in +-[0.1, 1] * scale, so that no element is zero.
  TestTensor& Random(PhiloxStream& rng, double scale = 1.0);

  /// Fills with integers uniform in [low, high), likewise.
  TestTensor& RandomIntegers(PhiloxStream& rng, int64_t low, int64_t high);

  /// Fills with the given values in row-major order, rounded to the dtype.
  TestTensor& Assign(const std::vector<double>& values);

  /// Takes the absolute value of every element.
  TestTensor& Absolute();

  /// A prime, so that rows differ.
  static constexpr int64_t kMostDrawn = 1'048'573;

  /// Elements of a tensor on a device that the host keeps whole.
  static constexpr int64_t kMostKept = int64_t{1} << 24;

  /// Back to the values (or poison) it had after the last of the functions above.
  void Reset();

  /// Copies the content from the device, once its work is done; nothing to do on the CPU.
  void Fetch();

  TensorView view() const { return view_; }

  /// Elements in row-major order, without padding. The initial ones are what an operation that
  /// adds to its output starts from.
  std::vector<double> Values() const { return Read(memory_); }
  std::vector<double> InitialValues() const { return Read(initial_); }

  /// Raw bytes with padding, for bitwise comparison.
  const Bytes& bytes() const { return memory_; }

  /// True while nothing was written between or behind the rows.
  bool GuardsIntact() const;

 private:
  std::vector<double> Read(const Bytes& memory) const;
  void Write(int64_t offset, double value);
  int64_t Offset(int64_t element) const;
  int64_t DrawnElements() const;
  int64_t KeptElements() const;
  TestTensor& AssignRepeated(const std::vector<double>& values);

  TensorView view_;
  cuda::DeviceMemory device_memory_;
  Bytes memory_;
  Bytes initial_;
};

}  // namespace weft::kernels::testing
