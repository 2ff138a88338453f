#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/map.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/norm_stat/norm_stat.h"
#include "kernels/orthogonalize/orthogonalize.h"
#include "kernels/orthogonalize/orthogonalize_check.h"

namespace weft::kernels::cuda {
namespace {

constexpr const char* kOp = "Orthogonalize";
constexpr float kA = 3.4445f, kB = -4.7750f, kC = 2.0315f;
constexpr double kTiny = 1e-7;
constexpr int64_t kAlignment = 64;

// What NormStat() leaves on the device, and the factor made of it.
struct Norm {
  double squares;
  int64_t non_finite;
  float factor;
};

__global__ void FactorKernel(Norm* norm) {
  norm->factor = static_cast<float>(1 / (sqrt(norm->squares) + kTiny));
}

// to = from times the factor.
template <class T>
struct NormalizeMap {
  const float* from;
  T* to;
  const Norm* norm;

  template <int kCount>
  __device__ auto Load(int64_t i) const {
    return LoadPacked<kCount>(from + i);
  }
  template <int kCount>
  __device__ void Store(int64_t i, const Packed<float, kCount>& loaded) const {
    const float factor = norm->factor;
    float values[kCount];
#pragma unroll
    for (int k = 0; k < kCount; ++k) values[k] = loaded[k] * factor;
    StoreFloats(to + i, values);
  }
};

Status Normalize(const Stream& stream, const TensorView& from, const TensorView& to, Norm* norm) {
  const NormTensor all{from.As<float>(), from.shape.Elements()};
  WEFT_RETURN_IF_ERROR(NormStat(stream, {std::span(&all, 1), &norm->squares, &norm->non_finite}));
  WEFT_RETURN_IF_ERROR(Launch(stream, kOp, {.grid = {1}, .block = {1}}, FactorKernel, norm));
  return WithFloatType(to.dtype, [&]<class T>() {
    return LaunchMap<8>(stream, kOp, NormalizeMap<T>{from.As<float>(), to.As<T>(), norm},
                        from.shape.Elements(), Aligned16(from.data, to.data));
  });
}

}  // namespace

// X = a X + (b G + c G G) X with G = X Xᵀ, or on the other side with G = Xᵀ X, whichever is
// smaller. All matrices have the compute type; f32 is what products add up in.
Status Orthogonalize(const Stream& stream, const OrthogonalizeArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckOrthogonalize(stream, args));
  const int64_t rows = args.matrix.shape[0], columns = args.matrix.shape[1];
  if (rows == 0 || columns == 0) return OkStatus();
  const bool wide = columns > rows;
  const int64_t shorter = std::min(rows, columns);

  auto* memory = static_cast<char*>(args.workspace.data);
  const auto take = [&](Shape shape) {
    const TensorView view(memory, args.compute, shape, stream.device);
    memory += (static_cast<int64_t>(view.Bytes()) + kAlignment - 1) / kAlignment * kAlignment;
    return view;
  };
  TensorView x = take({rows, columns}), next = take({rows, columns});
  const TensorView gram = take({shorter, shorter}), polynomial = take({shorter, shorter});

  // The norm lies where the first product's result comes.
  WEFT_RETURN_IF_ERROR(Normalize(stream, args.matrix, x, static_cast<Norm*>(next.data)));
  for (int64_t i = 0; i < args.iterations; ++i) {
    WEFT_RETURN_IF_ERROR(Gemm(
        stream, kOp, {.a = x, .b = x, .c = gram, .a_transposed = !wide, .b_transposed = wide}));
    WEFT_RETURN_IF_ERROR(
        Gemm(stream, kOp,
             {.a = gram, .b = gram, .c = polynomial, .alpha = kC, .beta = kB, .plus = gram}));
    const bool last_in_f32 = i + 1 == args.iterations && args.compute == DType::kF32;
    const TensorView& result = last_in_f32 ? args.matrix : next;
    WEFT_RETURN_IF_ERROR(Gemm(stream, kOp,
                              {.a = wide ? polynomial : x,
                               .b = wide ? x : polynomial,
                               .c = result,
                               .beta = kA,
                               .plus = x}));
    std::swap(x, next);
  }
  return args.compute == DType::kF32 ? OkStatus() : Cast(stream, {.x = x, .y = args.matrix});
}

}  // namespace weft::kernels::cuda
