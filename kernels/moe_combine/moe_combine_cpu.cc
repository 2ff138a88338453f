#include "kernels/moe_combine/moe_combine.h"

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/parallel.h"
#include "kernels/moe_combine/moe_combine_check.h"
#include "kernels/moe_combine/moe_combine_simd.h"

namespace weft::kernels::cpu {
namespace {

// Elements a thread must have for a parallel region to pay.
constexpr int64_t kGrain = 16384;

Status CheckPlaces(const char* op, const TensorView& places, int64_t rows) {
  const auto* place = places.As<int32_t>();
  for (int64_t i = 0; i < places.shape.Elements(); ++i) {
    if (place[i] >= -1 && place[i] < rows) continue;
    return InvalidError(std::string(op) + ": places[" + std::to_string(i / places.shape[1]) + ", " +
                        std::to_string(i % places.shape[1]) + "] is " + std::to_string(place[i]) +
                        ", outside of [-1, " + std::to_string(rows) + ")");
  }
  return OkStatus();
}

template <class T>
T* Row(const TensorView& view, int64_t row) {
  return view.As<T>() + row * view.row_stride;
}

int64_t Grain(int64_t k, int64_t width) {
  return kGrain / std::max<int64_t>(k * width, 1) + 1;
}

}  // namespace

Status MoeCombine(const Stream& stream, const MoeCombineArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeCombine(stream, args));
  WEFT_RETURN_IF_ERROR(CheckPlaces("MoeCombine", args.places, args.x.shape[0]));
  const int64_t tokens = args.places.shape[0], k = args.places.shape[1], width = args.x.shape[1];
  WithFloatType(args.x.dtype, [&]<class T>() {
    const auto& loops = PickMoeCombineKernels().Of<T>();
    ParallelFor(tokens, Grain(k, width), [&](int64_t begin, int64_t end) {
      std::vector<const T*> rows(static_cast<size_t>(k));
      std::vector<float> weights(static_cast<size_t>(k));
      for (int64_t token = begin; token < end; ++token) {
        int64_t count = 0;
        for (int64_t i = token * k; i < (token + 1) * k; ++i) {
          const int32_t place = args.places.As<int32_t>()[i];
          if (place < 0) continue;
          rows[count] = Row<T>(args.x, place);
          weights[count++] = args.weights ? args.weights.As<float>()[i] : 1.0f;
        }
        loops.combine(rows.data(), weights.data(), count, Row<T>(args.y, token), width);
      }
    });
  });
  return OkStatus();
}

Status MoeCombineBackward(const Stream& stream, const MoeCombineBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckMoeCombineBackward(stream, args));
  WEFT_RETURN_IF_ERROR(CheckPlaces("MoeCombineBackward", args.places, args.x.shape[0]));
  const int64_t tokens = args.places.shape[0], k = args.places.shape[1], width = args.x.shape[1];
  WithFloatType(args.x.dtype, [&]<class T>() {
    const auto& loops = PickMoeCombineKernels().Of<T>();
    ParallelFor(tokens, Grain(k, width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * k; i < end * k; ++i) {
        const int32_t place = args.places.As<int32_t>()[i];
        args.dweights.As<float>()[i] =
            place < 0 ? 0.0f
                      : loops.backward(Row<T>(args.dy, i / k), Row<T>(args.x, place),
                                       args.weights.As<float>()[i], Row<T>(args.dx, place), width);
      }
    });
  });
  return OkStatus();
}

}  // namespace weft::kernels::cpu
