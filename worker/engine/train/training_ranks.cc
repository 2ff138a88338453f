#include "worker/engine/train/training_ranks.h"

#include "worker/engine/comm/sum_scalars.h"
#include "worker/engine/techniques/trained_matrices.h"
#include "worker/engine/train/step_clock.h"

namespace weft::engine {

int64_t TrainingRanks::data_ranks() const {
  const int64_t context_ranks = parts_.sequences != nullptr ? parts_.sequences->degree() : 1;
  if (parts_.outer != nullptr) return parts_.outer->world_size();
  return parts_.reducer != nullptr ? parts_.reducer->world_size() / context_ranks : 1;
}

Status TrainingRanks::SumScalars(std::span<double> values, PhaseSeconds& seconds) const {
  if (parts_.reducer == nullptr) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->SumScalars(values));
  ChargePhase(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status TrainingRanks::SumOverReplica(std::span<double> values, PhaseSeconds& seconds) const {
  Stopwatch watch;
  if (parts_.tensor != nullptr) WEFT_RETURN_IF_ERROR(parts_.tensor->SumScalars(values));
  if (parts_.experts != nullptr) {
    WEFT_RETURN_IF_ERROR(engine::SumScalars(parts_.experts->group(), values));
  }
  if (parts_.pipeline != nullptr) WEFT_RETURN_IF_ERROR(parts_.pipeline->SumScalars(values));
  ChargePhase(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status TrainingRanks::SumOverParts(std::span<double> values, PhaseSeconds& seconds) const {
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->SumOverParts(values));
  ChargePhase(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Result<std::vector<float>> TrainingRanks::GatherParts(int64_t index, std::span<const float> own,
                                                      PhaseSeconds& seconds) const {
  if (parts_.reducer == nullptr) return std::vector<float>(own.begin(), own.end());
  Stopwatch watch;
  WEFT_ASSIGN_OR_RETURN(std::vector<float> whole, parts_.reducer->GatherParts(index, own));
  ChargePhase(*parts_.context, "wait for ranks", watch.Lap(), seconds.communication_exposed);
  return whole;
}

Status TrainingRanks::FinishGradients(PhaseSeconds& seconds) const {
  if (parts_.reducer == nullptr && parts_.tensor == nullptr && parts_.pipeline == nullptr) {
    return OkStatus();
  }
  const Stream& stream = parts_.context->stream;
  const ParameterSet& parameters = parts_.model->parameters();
  if (parameters.offloaded() && stream.device.type == DeviceType::kCuda) {
    // What the host waits for until the passes are over is in their times.
    WEFT_RETURN_IF_ERROR(stream.cuda->Synchronize());
  }
  Stopwatch watch;
  if (parts_.pipeline != nullptr) {
    WEFT_RETURN_IF_ERROR(parts_.pipeline->SumSharedGradients(stream, parameters));
    for (int64_t i = 0; i < parameters.size() && parts_.reducer != nullptr; ++i) {
      if (!parameters[i].shared_by_stages || !parameters[i].trainable()) continue;
      WEFT_RETURN_IF_ERROR(parts_.reducer->OnGradientReady(i));
    }
  }
  if (parts_.reducer != nullptr) WEFT_RETURN_IF_ERROR(parts_.reducer->Finish());
  if (parts_.tensor != nullptr) {
    WEFT_RETURN_IF_ERROR(
        SumPartialGradients(*parts_.context, *parts_.tensor, parameters, updated_parts()));
  }
  ChargePhase(*parts_.context, "wait for gradients", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status TrainingRanks::SplitDerived(const GradientReducer::Split& split) const {
  const std::vector<int64_t> derived = DerivedMatrices(parts_.model->parameters());
  if (derived.empty()) return OkStatus();
  return parts_.reducer == nullptr ? split(derived) : parts_.reducer->SplitDerived(derived, split);
}

Status TrainingRanks::GatherParameters(PhaseSeconds& seconds) const {
  if (updated_parts().empty()) return OkStatus();
  Stopwatch watch;
  WEFT_RETURN_IF_ERROR(parts_.reducer->GatherParameters());
  ChargePhase(*parts_.context, "wait for parameters", watch.Lap(), seconds.communication_exposed);
  return OkStatus();
}

Status TrainingRanks::TakeMaxima(const TensorView& magnitudes, double& waited) const {
  if (parts_.reducer == nullptr && parts_.tensor == nullptr) return OkStatus();
  Stopwatch watch;
  if (parts_.reducer != nullptr) WEFT_RETURN_IF_ERROR(parts_.reducer->Maximum(magnitudes));
  if (parts_.tensor != nullptr) {
    const Stream& stream = parts_.context->stream;
    WEFT_RETURN_IF_ERROR(
        parts_.tensor->group()
            .AllReduce(stream, magnitudes, Reduction::kMaxMagnitude, "largest magnitudes")
            .Wait(stream));
  }
  ChargePhase(*parts_.context, "wait for ranks", watch.Lap(), waited);
  return OkStatus();
}

int64_t TrainingRanks::held_bytes() const {
  int64_t bytes = parts_.reducer == nullptr ? 0 : parts_.reducer->held_bytes();
  if (parts_.outer != nullptr) bytes += parts_.outer->held_bytes();
  if (parts_.tensor != nullptr) bytes += parts_.tensor->held_bytes();
  return bytes;
}

}  // namespace weft::engine
