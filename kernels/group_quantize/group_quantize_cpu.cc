#include <algorithm>

#include "kernels/cpu/parallel.h"
#include "kernels/group_quantize/group_quantize.h"
#include "kernels/group_quantize/group_quantize_check.h"
#include "kernels/group_quantize/group_quantize_simd.h"

namespace weft::kernels::cpu {
namespace {

constexpr int64_t kGrainGroups = 64;

/// Calls fn(group, first element, count) for all groups of `count` elements.
template <class Fn>
void ForGroups(int64_t count, Fn&& fn) {
  ParallelFor(QuantizeGroups(count), kGrainGroups, [&](int64_t first, int64_t last) {
    for (int64_t group = first; group < last; ++group) {
      const int64_t begin = group * kQuantizeGroup;
      fn(group, begin, std::min(kQuantizeGroup, count - begin));
    }
  });
}

}  // namespace

Status GroupQuantize(const Stream& stream, const GroupQuantizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGroupQuantize(stream, args));
  WithFloatType(args.x.dtype, [&]<class T>() {
    const GroupQuantizeLoop<T>& loop = PickGroupQuantizeKernels().Of<T>();
    ForGroups(args.x.shape.Elements(), [&](int64_t group, int64_t begin, int64_t count) {
      loop.quantize(args.key, args.WordOf(group) / 4, static_cast<int>(args.bits),
                    args.x.As<T>() + begin, count,
                    args.codes.As<uint8_t>() + group * 16 * args.bits,
                    args.scales.As<float>() + group * 2);
    });
  });
  return OkStatus();
}

Status GroupDequantize(const Stream& stream, const GroupDequantizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckGroupDequantize(stream, args));
  WithFloatType(args.y.dtype, [&]<class T>() {
    const GroupQuantizeLoop<T>& loop = PickGroupQuantizeKernels().Of<T>();
    ForGroups(args.y.shape.Elements(), [&](int64_t group, int64_t begin, int64_t count) {
      loop.dequantize(static_cast<int>(args.bits),
                      args.codes.As<uint8_t>() + group * 16 * args.bits,
                      args.scales.As<float>() + group * 2, args.y.As<T>() + begin, count);
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
