#include <algorithm>
#include <bit>
#include <limits>

#include "kernels/cpu/parallel.h"
#include "kernels/quantize_int8/quantize_int8.h"
#include "kernels/quantize_int8/quantize_int8_check.h"
#include "kernels/quantize_int8/quantize_int8_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay.
constexpr int64_t kGrain = 16384;

// Calls fn(row, first column, columns, number among all groups) for each group of a matrix.
template <class Fn>
void ForGroups(const Shape& shape, int64_t group, Fn&& fn) {
  const int64_t columns = shape[1], groups = Int8Groups(columns, group);
  ParallelFor(shape[0], kGrain / std::max<int64_t>(columns, 1) + 1,
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  for (int64_t g = 0; g < groups; ++g) {
                    fn(row, g * group, std::min(group, columns - g * group), row * groups + g);
                  }
                }
              });
}

}  // namespace

Status QuantizeInt8(const Stream& stream, const QuantizeInt8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckQuantizeInt8(stream, args));
  auto* q = static_cast<uint8_t*>(args.q.data);
  auto* scales = args.scale.As<float>();
  return WithFloatType(args.x.dtype, [&]<class T>() {
    const QuantizeInt8Loops<T>& loops = PickQuantizeInt8Kernels().Of<T>();
    ForGroups(args.x.shape, args.group, [&](int64_t row, int64_t column, int64_t count, int64_t g) {
      const T* x = args.x.As<T>() + row * args.x.row_stride + column;
      uint8_t* codes = q + row * args.x.shape[1] + column;
      const auto largest = std::bit_cast<float>(loops.largest(x, count));
      if (largest >= kSmallestInt8Group && largest <= std::numeric_limits<float>::max()) {
        scales[g] = largest / kLargestInt8;
        loops.quantize(x, kLargestInt8 / largest, codes, count);
      } else {
        scales[g] = largest < kSmallestInt8Group ? 0.0f : std::numeric_limits<float>::quiet_NaN();
        std::fill_n(codes, count, uint8_t{0});
      }
    });
    return OkStatus();
  });
}

Status DequantizeInt8(const Stream& stream, const DequantizeInt8Args& args) {
  WEFT_RETURN_IF_ERROR(CheckDequantizeInt8(stream, args));
  const auto* q = static_cast<const uint8_t*>(args.q.data);
  const auto* scales = args.scale.As<float>();
  return WithFloatType(args.y.dtype, [&]<class T>() {
    const QuantizeInt8Loops<T>& loops = PickQuantizeInt8Kernels().Of<T>();
    ForGroups(args.y.shape, args.group, [&](int64_t row, int64_t column, int64_t count, int64_t g) {
      loops.dequantize(q + row * args.y.shape[1] + column, scales[g],
                       args.y.As<T>() + row * args.y.row_stride + column, count);
    });
    return OkStatus();
  });
}

}  // namespace weft::kernels::cpu
