#include "kernels/cuda/map.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/hadamard/hadamard_check.h"

namespace weft::kernels::cuda {
namespace {

struct ScaledProduct {
  float factor;
  __device__ float operator()(float a, float b) const { return factor * (a * b); }
};

}  // namespace

Status Hadamard(const Stream& stream, const HadamardArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckHadamard(stream, args));
  return LaunchMap<kWide<float>>(
      stream, "Hadamard",
      BinaryMap<float, float, float, ScaledProduct>{
          args.a.As<float>(), args.b.As<float>(), args.y.As<float>(), {args.factor}},
      args.a.shape.Elements(), Aligned16(args.a.data, args.b.data, args.y.data));
}

}  // namespace weft::kernels::cuda
