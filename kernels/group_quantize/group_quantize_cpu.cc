#include <algorithm>

#include "kernels/argument_check.h"
#include "kernels/cpu/parallel.h"
#include "kernels/group_quantize/group_quantize.h"
#include "kernels/group_quantize/group_quantize_simd.h"

namespace weft::kernels::cpu {
namespace {

constexpr int64_t kGrainGroups = 64;

Status Check(const Stream& stream, std::string_view op, const TensorView& values,
             const TensorView& codes, const TensorView& scales, int64_t bits) {
  const int64_t groups = QuantizeGroups(values.shape.Elements());
  return ArgumentCheck(stream, op)
      .ContiguousTensor("values", values, values.shape, kFloatTypes)
      .ContiguousTensor("codes", codes, {groups, 16 * bits}, {DType::kU8})
      .ContiguousTensor("scales", scales, {groups, 2}, {DType::kF32})
      .That(bits == 8 || bits == 4 || bits == 2, "bits are not 8, 4 or 2")
      .status();
}

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
  WEFT_RETURN_IF_ERROR(Check(stream, "GroupQuantize", args.x, args.codes, args.scales, args.bits));
  if (args.first_element % 4 != 0) {
    return InvalidError("GroupQuantize: first_element is not a multiple of 4");
  }
  WithFloatType(args.x.dtype, [&]<class T>() {
    const GroupQuantizeLoop<T>& loop = PickGroupQuantizeKernels().Of<T>();
    ForGroups(args.x.shape.Elements(), [&](int64_t group, int64_t begin, int64_t count) {
      loop.quantize(args.key, (args.first_element + static_cast<uint64_t>(begin)) / 4,
                    static_cast<int>(args.bits), args.x.As<T>() + begin, count,
                    args.codes.As<uint8_t>() + group * 16 * args.bits,
                    args.scales.As<float>() + group * 2);
    });
  });
  return OkStatus();
}

Status GroupDequantize(const Stream& stream, const GroupDequantizeArgs& args) {
  WEFT_RETURN_IF_ERROR(
      Check(stream, "GroupDequantize", args.y, args.codes, args.scales, args.bits));
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
