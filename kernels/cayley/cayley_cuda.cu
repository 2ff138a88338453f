#include "kernels/cayley/cayley.h"
#include "kernels/cayley/cayley_check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/vector.h"

namespace weft::kernels::cuda {
namespace {

// The threads of a block have one matrix, whose elements they take in turns. What one wrote the
// others read after Together.
__device__ void Together() {
  __syncthreads();
}

template <class T>
__device__ void Skew(const T* above, int64_t size, float* q) {
  for (int64_t e = threadIdx.x; e < size * size; e += blockDim.x) {
    const int64_t i = e / size, j = e % size;
    const int64_t low = i < j ? i : j, high = i < j ? j : i;
    // Rows before it have size - 1, size - 2, ... numbers.
    const int64_t place = low * (2 * size - low - 1) / 2 + high - low - 1;
    float value[1] = {0};
    if (i != j) LoadFloats(above + place, value);
    q[e] = i < j ? value[0] : -value[0];
  }
  Together();
}

// c = diagonal I + sign a b.
__device__ void Product(const float* a, const float* b, float sign, float diagonal, int64_t size,
                        float* c) {
  for (int64_t e = threadIdx.x; e < size * size; e += blockDim.x) {
    const int64_t i = e / size, j = e % size;
    float sum = 0;
    for (int64_t k = 0; k < size; ++k) sum += a[i * size + k] * b[k * size + j];
    c[e] = sign * sum + (i == j ? diagonal : 0.0f);
  }
  Together();
}

// c += a bᵀ.
__device__ void AddProductTransposed(const float* a, const float* b, int64_t size, float* c) {
  for (int64_t e = threadIdx.x; e < size * size; e += blockDim.x) {
    const int64_t i = e / size, j = e % size;
    float sum = 0;
    for (int64_t k = 0; k < size; ++k) sum += a[i * size + k] * b[j * size + k];
    c[e] += sum;
  }
  Together();
}

__device__ void AddDiagonal(float diagonal, int64_t size, const float* a, float* c) {
  for (int64_t e = threadIdx.x; e < size * size; e += blockDim.x) {
    c[e] = a[e] + (e / size == e % size ? diagonal : 0.0f);
  }
  Together();
}

// P1 = 2 I + Q, P2 = 2 I + Q P1, P3 = 2 I + Q P2 of a block: four matrices from `scratch` on, Q
// first.
template <class T>
__device__ void Series(const T* above, int64_t size, float* scratch) {
  const int64_t square = size * size;
  Skew(above, size, scratch);
  AddDiagonal(2, size, scratch, scratch + square);
  Product(scratch, scratch + square, 1, 2, size, scratch + 2 * square);
  Product(scratch, scratch + 2 * square, 1, 2, size, scratch + 3 * square);
}

constexpr int64_t kForwardMatrices = 4;
constexpr int64_t kBackwardMatrices = 7;

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    ForwardKernel(const T* q, int64_t size, float* scratch, float* r) {
  const int64_t block = blockIdx.x, square = size * size;
  float* const own = scratch + block * kForwardMatrices * square;
  Series(q + block * (size * (size - 1) / 2), size, own);
  Product(own, own + 3 * square, 1, 0, size, r + block * square);
}

template <class T>
__global__ void __launch_bounds__(kBlockThreads)
    BackwardKernel(const T* q, const float* dr, int64_t size, bool accumulate, float* scratch,
                   float* dq) {
  const int64_t block = blockIdx.x, square = size * size, above = size * (size - 1) / 2;
  float* const own = scratch + block * kBackwardMatrices * square;
  Series(q + block * above, size, own);
  float* const dskew = own + 4 * square;
  for (int64_t e = threadIdx.x; e < square; e += blockDim.x) dskew[e] = 0;
  Together();
  const float* d = dr + block * square;
  for (int64_t power = 3; power >= 1; --power) {
    AddProductTransposed(d, own + power * square, size, dskew);
    // Qᵀ is -Q. What is read and what is written take turns.
    float* const next = own + (power % 2 == 1 ? 5 : 6) * square;
    Product(own, d, -1, 0, size, next);
    d = next;
  }
  for (int64_t e = threadIdx.x; e < square; e += blockDim.x) {
    const int64_t i = e / size, j = e % size, turned = j * size + i;
    if (i >= j) continue;
    const int64_t place = block * above + i * (2 * size - i - 1) / 2 + j - i - 1;
    const float gradient = dskew[e] + d[e] - dskew[turned] - d[turned];
    dq[place] = accumulate ? dq[place] + gradient : gradient;
  }
}

}  // namespace

Status CayleyForward(const Stream& stream, const CayleyForwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCayleyForward(stream, args));
  const int64_t blocks = args.q.shape[0], size = args.r.shape[1];
  WEFT_ASSIGN_OR_RETURN(
      float* const scratch,
      ScratchOf<float>(stream, "CayleyForward", blocks * kForwardMatrices * size * size));
  return WithFloatType(args.q.dtype, [&]<class T>() {
    return Launch(stream, "CayleyForward",
                  {.grid = static_cast<unsigned>(blocks), .block = kBlockThreads}, ForwardKernel<T>,
                  args.q.As<T>(), size, scratch, args.r.As<float>());
  });
}

Status CayleyBackward(const Stream& stream, const CayleyBackwardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckCayleyBackward(stream, args));
  const int64_t blocks = args.q.shape[0], size = args.dr.shape[1];
  WEFT_ASSIGN_OR_RETURN(
      float* const scratch,
      ScratchOf<float>(stream, "CayleyBackward", blocks * kBackwardMatrices * size * size));
  return WithFloatType(args.q.dtype, [&]<class T>() {
    return Launch(stream, "CayleyBackward",
                  {.grid = static_cast<unsigned>(blocks), .block = kBlockThreads},
                  BackwardKernel<T>, args.q.As<T>(), args.dr.As<float>(), size, args.accumulate,
                  scratch, args.dq.As<float>());
  });
}

}  // namespace weft::kernels::cuda
