#include "worker/engine/train/part_losses.h"

#include "kernels/step_totals/step_totals.h"

namespace weft::engine {

Result<PartLosses> PartLosses::New(Context& context, int64_t parts) {
  PartLosses losses;
  if (parts == 1) return losses;
  losses.parts_ = static_cast<size_t>(parts);
  WEFT_ASSIGN_OR_RETURN(losses.sums_, ReadbackOf<BatchLoss>::New(context, losses.parts_));
  WEFT_RETURN_IF_ERROR(losses.sums_.Clear(context));
  return losses;
}

Status PartLosses::Clear(Context& context) {
  return parts_ == 0 ? OkStatus() : sums_.Clear(context);
}

Status PartLosses::Prepare(Context& context, TokenBatch& batch) const {
  if (parts_ == 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(batch.losses,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, {batch.count}));
  return OkStatus();
}

Status PartLosses::Add(Context& context, const TokenBatch& batch) const {
  const int64_t rows = parts_ == 0 ? 0 : batch.count / static_cast<int64_t>(parts_);
  for (size_t part = 0; part < parts_; ++part) {
    WEFT_RETURN_IF_ERROR(kernels::AddLosses(
        context.stream, {.losses = batch.losses.Elements(static_cast<int64_t>(part) * rows, rows),
                         .sum = &sums_.device()[part].sum}));
  }
  return OkStatus();
}

Result<std::vector<double>> PartLosses::Sum(Context& context, const TrainingRanks& ranks,
                                            const PipelineParallel* pipeline) {
  if (parts_ == 0) return std::vector<double>();
  WEFT_RETURN_IF_ERROR(sums_.Fetch(context));
  WEFT_ASSIGN_OR_RETURN(const BatchLoss* own, sums_.Wait());
  std::vector<double> sums;
  for (size_t part = 0; part < parts_; ++part) sums.push_back(own[part].sum);
  PhaseSeconds ignored;
  WEFT_RETURN_IF_ERROR(ranks.SumScalars(sums, ignored));
  if (pipeline != nullptr) WEFT_RETURN_IF_ERROR(pipeline->SumScalars(sums));
  return sums;
}

}  // namespace weft::engine
