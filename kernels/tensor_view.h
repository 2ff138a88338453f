#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "common/check.h"
#include "kernels/dtype.h"

namespace weft {

/// The types that activations are stored in.
inline constexpr std::initializer_list<DType> kFloatTypes = {DType::kF32, DType::kBF16,
                                                             DType::kF16};

/// The types that weight matrices are stored in.
inline constexpr std::initializer_list<DType> kMatrixTypes = {DType::kF32, DType::kBF16};

enum class DeviceType : uint8_t { kCpu, kCuda };

/// Where memory lives and work runs.
struct Device {
  DeviceType type = DeviceType::kCpu;
  int index = 0;
  bool operator==(const Device&) const = default;
};

inline constexpr int kMaxRank = 5;

/// Sizes of a tensor, outermost first.
struct Shape {
  std::array<int64_t, kMaxRank> dims{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    WEFT_CHECK(sizes.size() <= kMaxRank, "tensor rank");
    for (int64_t size : sizes) dims[rank++] = size;
  }
  int64_t operator[](int i) const { return dims[i < 0 ? rank + i : i]; }
  int64_t Elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= dims[i];
    return count;
  }
  /// Elements of all but the last dimension.
  int64_t Rows() const {
    return rank == 0 ? 1 : Elements() / (dims[rank - 1] == 0 ? 1 : dims[rank - 1]);
  }
  bool operator==(const Shape& o) const {
    if (rank != o.rank) return false;
    for (int i = 0; i < rank; ++i)
      if (dims[i] != o.dims[i]) return false;
    return true;
  }
  /// "[2, 3]"
  std::string ToString() const {
    std::string text = "[";
    for (int i = 0; i < rank; ++i) text += (i > 0 ? ", " : "") + std::to_string(dims[i]);
    return text + "]";
  }
};

/// A typed look at memory that it does not own. Rows may be strided: element (r, c) of the
/// matrix of all-but-last against last dimension is at r * row_stride + c.
struct TensorView {
  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  Shape shape;
  int64_t row_stride = 0;  ///< Elements between rows; shape[-1] when contiguous.

  TensorView() = default;
  TensorView(void* memory, DType type, Shape sizes, Device where = {})
      : data(memory),
        dtype(type),
        device(where),
        shape(sizes),
        row_stride(sizes.rank == 0 ? 1 : sizes[-1]) {}

  explicit operator bool() const { return data != nullptr; }
  bool Contiguous() const { return shape.rank == 0 || row_stride == shape[-1]; }
  /// The elements of contiguous memory as one row.
  TensorView Flat() const { return {data, dtype, {shape.Elements()}, device}; }
  size_t Bytes() const { return static_cast<size_t>(shape.Elements()) * DTypeSize(dtype); }

  template <class T>
  T* As() const {
    WEFT_CHECK(dtype == kDTypeOf<T>, "tensor read as another type");
    return static_cast<T*>(data);
  }
};

}  // namespace weft
