#include <algorithm>
#include <string>

#include "kernels/cpu/parallel.h"
#include "kernels/rope/rope.h"
#include "kernels/rope/rope_check.h"
#include "kernels/rope/rope_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay: some 10 us of work.
constexpr int64_t kGrain = 16384;

Status CheckPositions(const RopeArgs& args) {
  const int32_t* positions = args.positions.As<int32_t>();
  for (int64_t t = 0; t < args.positions.shape[0]; ++t) {
    if (positions[t] >= 0 && positions[t] < args.cosines.shape[0]) continue;
    return InvalidError("Rope: positions[" + std::to_string(t) + "] is " +
                        std::to_string(positions[t]) + ", outside of [0, " +
                        std::to_string(args.cosines.shape[0]) + ")");
  }
  return OkStatus();
}

}  // namespace

Status Rope(const Stream& stream, const RopeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckRope(stream, args));
  WEFT_RETURN_IF_ERROR(CheckPositions(args));
  const int64_t half = args.cosines.shape[1], columns = args.x.shape[1];
  const int64_t heads = columns / (2 * half);
  const int32_t* positions = args.positions.As<int32_t>();
  const float sign = args.inverse ? -1.0f : 1.0f;
  WithFloatType(args.x.dtype, [&]<class T>() {
    const RopeLoops<T>& loops = PickRopeKernels().Of<T>();
    ParallelFor(args.x.shape[0], kGrain / std::max<int64_t>(columns, 1) + 1,
                [&](int64_t begin, int64_t end) {
                  for (int64_t t = begin; t < end; ++t) {
                    const int64_t angles = positions[t] * half;
                    loops.rotate(args.x.As<T>() + t * args.x.row_stride,
                                 args.cosines.As<float>() + angles, args.sines.As<float>() + angles,
                                 sign, heads, half);
                  }
                });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
