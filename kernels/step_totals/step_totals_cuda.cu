#include <cmath>
#include <cstdint>

#include "kernels/cuda/block_sum.h"
#include "kernels/cuda/launch.h"
#include "kernels/step_totals/step_totals.h"
#include "kernels/step_totals/step_totals_check.h"

namespace weft::kernels::cuda {
namespace {

// One block: the rows are few compared with the elements of one of their logits.
__global__ void __launch_bounds__(kBlockThreads)
    LossesKernel(const float* losses, const int32_t* predictions, const int32_t* targets,
                 int64_t rows, double* sum, int64_t* right) {
  double of_losses[1] = {0};
  int64_t of_right[1] = {0};
  for (int64_t row = threadIdx.x; row < rows; row += kBlockThreads) {
    of_losses[0] += losses[row];
    if (predictions != nullptr && predictions[row] == targets[row]) ++of_right[0];
  }
  BlockSum(of_losses);
  BlockSum(of_right);
  if (threadIdx.x != 0) return;
  *sum += of_losses[0];
  if (predictions != nullptr) *right += of_right[0];
}

__global__ void __launch_bounds__(kWarp) DecideKernel(const DecideUpdateArgs args) {
  if (threadIdx.x != 0) return;
  constexpr double kTiny = 1e-6, kInfinity = INFINITY;
  const double loss_scale = args.loss_scale.Get();
  const double loss = *args.loss_sum / args.targets.Get();
  const double norm = sqrt(*args.square_sum) / loss_scale;
  double clipping = 1;
  if (args.clip_norm > 0 && norm > args.clip_norm) clipping = args.clip_norm / (norm + kTiny);
  const bool finite = loss < kInfinity && loss > -kInfinity;
  *args.factor = static_cast<float>(clipping / loss_scale);
  *args.made = *args.non_finite == 0 && finite && !(loss > args.loss_limit.Get()) ? 1 : 0;
}

}  // namespace

Status AddLosses(const Stream& stream, const AddLossesArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAddLosses(stream, args));
  const bool counts = static_cast<bool>(args.predictions);
  return Launch(stream, "AddLosses", {.grid = {1}, .block = {kBlockThreads}}, LossesKernel,
                args.losses.As<float>(), counts ? args.predictions.As<int32_t>() : nullptr,
                counts ? args.targets.As<int32_t>() : nullptr, args.losses.shape.Elements(),
                args.sum, args.right);
}

Status DecideUpdate(const Stream& stream, const DecideUpdateArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckDecideUpdate(stream, args));
  return Launch(stream, "DecideUpdate", {.grid = {1}, .block = {kWarp}}, DecideKernel, args);
}

}  // namespace weft::kernels::cuda
