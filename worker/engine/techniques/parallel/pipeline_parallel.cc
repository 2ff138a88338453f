#include "worker/engine/techniques/parallel/pipeline_parallel.h"

#include <numeric>
#include <utility>

#include "common/pipeline/named_schedule.h"
#include "worker/engine/comm/sum_scalars.h"

namespace weft::engine {
Result<std::unique_ptr<PipelineParallel>> PipelineParallel::New(Collective* stages,
                                                                const Options& options) {
  std::unique_ptr<PipelineParallel> pipeline(new PipelineParallel(stages, options));
  // Reports what is impossible before any rank connects; any number that fits the ranks will do.
  WEFT_RETURN_IF_ERROR(pipeline->ScheduleOf(stages->size()).status());
  WEFT_RETURN_IF_ERROR(pipeline->Connect());
  return pipeline;
}

// A split makes groups of ranks that no other group of it has: edges of the ring that touch are of
// different splits.
Status PipelineParallel::Connect() {
  const auto ranks = static_cast<int>(degree()), own = static_cast<int>(rank());
  // Without further chunks nothing goes from the last rank to the first.
  const int edges = options_.chunks > 1 ? ranks : ranks - 1;
  const auto split_of = [&](int edge) {
    return edge == ranks - 1 && ranks % 2 == 1 ? 2 : edge % 2;
  };
  for (const bool gradients : {false, true}) {
    for (int split = 0; split < 3; ++split) {
      int touched = -1;
      bool any = false;
      for (int edge = 0; edge < edges; ++edge) {
        if (split_of(edge) != split) continue;
        any = true;
        if (own == edge || own == (edge + 1) % ranks) touched = edge;
      }
      if (!any) continue;
      WEFT_ASSIGN_OR_RETURN(
          std::unique_ptr<Collective> group,
          stages_->Split(touched >= 0 ? touched : ranks + own,
                         gradients ? "gradients of stages" : "activations of stages"));
      if (touched < 0) continue;
      const bool upper = own == touched;
      const Direction direction = gradients
                                      ? (upper ? Direction::kFromNext : Direction::kToPrevious)
                                      : (upper ? Direction::kToNext : Direction::kFromPrevious);
      On(direction).peer = 1 - group->rank();
      const bool sends = upper != gradients;
      WEFT_RETURN_IF_ERROR(group->OpenChannel(sends ? group->rank() : On(direction).peer,
                                              sends ? On(direction).peer : group->rank()));
      On(direction).group = std::move(group);
    }
  }
  if (!options_.tied) return OkStatus();
  const bool shares = own == 0 || own == ranks - 1;
  WEFT_ASSIGN_OR_RETURN(shared_, stages_->Split(shares ? 0 : 1 + own, "first and last stage"));
  if (!shares) shared_.reset();
  return OkStatus();
}

Result<const PipelineSchedule*> PipelineParallel::ScheduleOf(int64_t micro_batches) {
  const auto known = schedules_.find(micro_batches);
  if (known != schedules_.end()) return &known->second;
  WEFT_ASSIGN_OR_RETURN(PipelineSchedule schedule,
                        NamedSchedule(options_.schedule, degree(), chunks(), micro_batches));
  return &schedules_.emplace(micro_batches, std::move(schedule)).first->second;
}

Work PipelineParallel::Send(const Stream& stream, Direction direction, const TensorView& values) {
  return On(direction).group->Send(
      stream, values, On(direction).peer,
      direction == Direction::kToNext ? "send activations" : "send gradients");
}

Work PipelineParallel::Receive(const Stream& stream, Direction direction,
                               const TensorView& values) {
  return On(direction).group->Receive(
      stream, values, On(direction).peer,
      direction == Direction::kFromPrevious ? "receive activations" : "receive gradients");
}

double PipelineParallel::BytesOn(Direction direction) const {
  const End& end = ends_[static_cast<size_t>(direction)];
  if (end.group == nullptr) return 0;
  const CollectiveTotals totals = end.group->account().totals(CollectiveKind::kExchange);
  const bool sends = direction == Direction::kToNext || direction == Direction::kToPrevious;
  return sends ? totals.sent_bytes : totals.bytes;
}

Status PipelineParallel::SumScalars(std::span<double> values) const {
  return engine::SumScalars(*stages_, values);
}

Status PipelineParallel::SumSharedGradients(const Stream& stream,
                                            const ParameterSet& parameters) const {
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].shared_by_stages || !parameters[i].trainable()) continue;
    Collective* const ranks = parameters[i].of_all_blocks ? stages_ : shared_.get();
    if (ranks == nullptr) continue;
    WEFT_RETURN_IF_ERROR(ranks
                             ->AllReduce(stream, parameters.padded_gradient(i), Reduction::kSum,
                                         "sum shared gradients")
                             .Wait(stream));
  }
  return OkStatus();
}

std::vector<AxisAccount> PipelineParallel::Accounts() const {
  const std::string axis = "pipeline";
  std::vector<AxisAccount> accounts;
  for (const End& end : ends_) {
    if (end.group != nullptr) accounts.push_back({axis, &end.group->account()});
  }
  if (shared_ != nullptr) accounts.push_back({axis, &shared_->account()});
  return accounts;
}

void PipelineParallel::Abort() {
  for (End& end : ends_) {
    if (end.group != nullptr) end.group->Abort();
  }
  if (shared_ != nullptr) shared_->Abort();
}

Result<PipelinePart> PipelinePartOf(const Plan& plan, int64_t rank, int64_t layers) {
  const auto stages = static_cast<size_t>(plan.mesh.pipeline * plan.pipeline_chunks);
  const std::vector<int64_t>& cut = plan.stage_blocks;
  if (cut.size() != stages || std::accumulate(cut.begin(), cut.end(), int64_t{0}) != layers) {
    return InvalidError("plan.stage_blocks are " + std::to_string(cut.size()) +
                        " stages of a pipeline of " + std::to_string(stages) +
                        ", or not all of the " + std::to_string(layers) + " blocks");
  }
  PipelinePart own{.stages = {}, .first = rank == 0, .last = rank + 1 == plan.mesh.pipeline};
  int64_t first = 0;
  for (size_t stage = 0; stage < stages; ++stage) {
    if (static_cast<int64_t>(stage) % plan.mesh.pipeline == rank) {
      own.stages.push_back({first, cut[stage]});
    }
    first += cut[stage];
  }
  return own;
}

}  // namespace weft::engine
