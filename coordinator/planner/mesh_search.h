#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/model/sharded_parameters.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/mesh_options.h"
#include "coordinator/planner/option.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/remat_choice.h"
#include "coordinator/planner/schedule_cache.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// How long a step may take to matter, and takes at least, as far as is known.
struct StepBound {
  double limit = std::numeric_limits<double>::infinity();
  double least_seconds = 0;
};

/// Why the workers have no memory for an option of a job with these resources.
std::string MemoryReason(const ResourceSpec& resources, const WorkerGroups& workers,
                         const Option& option);

/// The options of a job with one mesh.
class MeshSearch {
 public:
  /// All outlive it. `share` is of a mesh with the same tensor, context and expert parallelism;
  /// `cache` has, or gets, the schedules of pipelines; `cut` is CutModel's.
  MeshSearch(const JobSpec& job, const WorkerGroups& workers, const RankShare& share,
             ScheduleCache& cache, std::vector<int64_t> cut);

  /// With the cheapest recomputation that fits. The cache has the schedule of a pipeline. Where
  /// none fits, with one that needs least and without a time; false. Above `bound.limit` it need
  /// not fit, and the time may be less than it is. From several threads, while the cache does not
  /// change.
  bool Judge(const Candidate& candidate, StepBound& bound, Option& option) const;

  /// Fills in the time of an option that says what it recomputes and how it is cut, with this many
  /// ranks on workers of these kinds, one after the other; false where the pipeline has no such
  /// schedule. Not for several threads at once.
  bool Time(const std::vector<std::pair<size_t, int64_t>>& placements, Option& option);

  /// Of a candidate for which the workers have no cores, with this reason.
  Option FewCores(const Candidate& candidate);

 private:
  Option OptionOf(const Candidate& candidate) const;
  /// Of a pipeline, else none.
  std::optional<ScheduleName> NameOf(const Option& option) const;
  /// From the cache; null without a pipeline.
  const CachedSchedule* Held(const Option& option) const;
  /// The same, made where it is not there.
  const CachedSchedule* MakeHeld(const Option& option);
  /// Of a pipeline: the machines of each of its ranks.
  std::vector<std::vector<PipelinePlace>> PlacesOf(
      const Option& option, const std::vector<std::pair<size_t, int64_t>>& placements) const;
  /// Kinds of the workers that have ranks of the option, and how many.
  std::vector<std::pair<size_t, int64_t>> Placements(const Option& option) const;
  /// Of a pipeline whose ranks are not all on machines of one kind.
  bool JudgeMixed(Option& option) const;
  /// Of an option that says how it is cut.
  bool JudgeCut(const CachedSchedule* held, StepBound& bound, Option& option) const;

  /// What the steps of an option depend on, except what it recomputes, which activations go over
  /// the link, and what the stages of a pipeline have.
  StepInputs StepOf(const Option& option, const MemoryInputs& memory) const;
  /// Of weights, what goes over the link.
  void SetLinkBytes(const MemoryInputs& memory, StepInputs& inputs) const;
  /// The same steps, without a pipeline, on the slowest of these places; in rounds by time the mean
  /// of the steps that ranks make on them, each at its own speed.
  TimeBreakdown SlowestOf(StepInputs inputs, const Option& option,
                          const std::vector<std::pair<size_t, int64_t>>& placements) const;
  TimeBreakdown MeanOfSpeeds(StepInputs inputs, const Option& option) const;
  TimeBreakdown SlowestRank(const Option& option, const MemoryInputs& memory,
                            const CachedSchedule* held, StepBound& bound,
                            const std::vector<std::pair<size_t, int64_t>>& placements) const;
  void SetOption(const Option& option, MemoryInputs& inputs) const;
  void SetOption(const Option& option, StepInputs& inputs) const;
  /// Of a pipeline, else none. `held` outlives it, as does the option.
  std::optional<PipelineMemory> MemoryOf(const Option& option, const CachedSchedule* held) const;
  /// The option's memory, of all its ranks.
  void SetMemory(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                 Option& option) const;
  /// Of it on the device, without offload.
  int64_t BytesWithoutTiers(const MemoryBreakdown& memory) const;
  int64_t DeviceBytes(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                      const MemoryBreakdown& memory) const;
  /// Within the job's own limits,
  bool WithinLimits(const Option& option) const;
  /// and the workers'.
  bool Fits(const Option& option) const;
  /// The same, whose memory is that of `inputs`, without activations and what comes and goes.
  bool FitsBeside(Option option, const MemoryInputs& inputs,
                  std::optional<PipelineMemory>& pipeline) const;
  /// What "optimal" comes to on a pipeline.
  std::optional<RematChoice> ScheduleStages(const Option& option, MemoryInputs inputs,
                                            const CachedSchedule& held,
                                            PipelineMemory& pipeline) const;
  /// On the worker that is looked at first.
  RematCosts CostsOfRemat(const Option& option) const;

  const PassCost& Pass(size_t kind, const Option& option) const {
    return share_.Pass(kind, option.threads, option.micro_batch);
  }
  /// What data- and context-parallel ranks shard of the parameters.
  const ShardedParameters& Sharded(const Option& option) const;
  int64_t ShardGroupSize(const Option& option) const;

  const JobSpec& job_;
  const WorkerGroups& workers_;
  const RankShare& share_;
  ScheduleCache& cache_;
  const int64_t tensor_;
  const int64_t pipeline_;
  MemoryInputs memory_;       ///< What of them is the same in all options ...
  StepInputs step_;           ///< ... and of these.
  std::vector<int64_t> cut_;  ///< Blocks of each stage, on machines of one kind.
};

}  // namespace weft::planner
