#include <cmath>

#include "kernels/step_totals/step_totals.h"
#include "kernels/step_totals/step_totals_check.h"

namespace weft::kernels::cpu {

Status AddLosses(const Stream& stream, const AddLossesArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckAddLosses(stream, args));
  const int64_t rows = args.losses.shape.Elements();
  const auto* losses = args.losses.As<float>();
  double sum = 0;
  for (int64_t row = 0; row < rows; ++row) sum += losses[row];
  *args.sum += sum;
  if (!args.predictions) return OkStatus();
  const auto* predictions = args.predictions.As<int32_t>();
  const auto* targets = args.targets.As<int32_t>();
  for (int64_t row = 0; row < rows; ++row) {
    if (predictions[row] == targets[row]) ++*args.right;
  }
  return OkStatus();
}

Status DecideUpdate(const Stream& stream, const DecideUpdateArgs& args) {
  WEFT_RETURN_IF_ERROR(CheckDecideUpdate(stream, args));
  constexpr double kTiny = 1e-6;
  const double loss_scale = args.loss_scale.Get();
  const double loss = *args.loss_sum / args.targets.Get();
  const double norm = std::sqrt(*args.square_sum) / loss_scale;
  const double clipping =
      args.clip_norm > 0 && norm > args.clip_norm ? args.clip_norm / (norm + kTiny) : 1.0;
  *args.factor = static_cast<float>(clipping / loss_scale);
  *args.made =
      *args.non_finite == 0 && std::isfinite(loss) && !(loss > args.loss_limit.Get()) ? 1 : 0;
  return OkStatus();
}

}  // namespace weft::kernels::cpu
