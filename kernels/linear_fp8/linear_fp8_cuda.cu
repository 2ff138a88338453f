#include "kernels/cuda/device.h"
#include "kernels/cuda/gemm.h"
#include "kernels/linear_fp8/linear_fp8.h"
#include "kernels/linear_fp8/linear_fp8_check.h"

namespace weft::kernels::cuda {

Status MatmulFp8(const Stream& stream, const MatmulFp8Args& args) {
  constexpr const char* kOp = "MatmulFp8";
  WEFT_RETURN_IF_ERROR(CheckMatmulFp8(stream, args));
  const DeviceLimits& limits = stream.cuda->limits();
  if (limits.major * 10 + limits.minor < 89) {
    return UnavailableError(std::string(kOp) + ": this device, of compute capability " +
                            std::to_string(limits.major) + "." + std::to_string(limits.minor) +
                            ", multiplies no FP8; hint: 8.9 (Ada) and 9.0 (Hopper) on do");
  }
  if (args.a.codes.shape[0] == 0) return OkStatus();
  return Gemm(stream, kOp,
              {.a = args.a.codes,
               .b = args.b.codes,
               .c = args.c,
               .b_transposed = true,
               .beta = args.accumulate ? 1.0f : 0.0f,
               .bias = args.bias,
               .a_scale = args.a.inverse_scale.As<float>(),
               .b_scale = args.b.inverse_scale.As<float>(),
               .fast_sums = args.fast_sums});
}

}  // namespace weft::kernels::cuda
