#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/model/growth_fit_memory.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/model/sharded_parameters.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/costed_plan.h"
#include "coordinator/planner/mesh_options.h"
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

/// Why the workers have no memory for a plan of a job with these resources.
std::string MemoryReason(const ResourceSpec& resources, const WorkerGroups& workers,
                         const CostedPlan& costed);

/// The plans of a job with one mesh.
class MeshSearch {
 public:
  /// All outlive it. `share` is of a mesh with the same tensor, context and expert parallelism;
  /// `cache` has, or gets, the schedules of pipelines; `cut` is CutModel's.
  MeshSearch(const JobSpec& job, const WorkerGroups& workers, const RankShare& share,
             ScheduleCache& cache, std::vector<int64_t> cut);

  /// Judges with the cheapest recomputation that fits. The cache has the schedule of a pipeline.
  /// Where none fits, takes one that needs least, without a time; false. Above `bound.limit` it
  /// need not fit, and the time may be less than it is. From several threads, while the cache does
  /// not change.
  bool Judge(const Candidate& candidate, StepBound& bound, CostedPlan& costed) const;

  /// Fills in the time of a plan that says what it recomputes and how it is cut, with this many
  /// ranks on workers of these kinds, one after the other; false where the pipeline has no such
  /// schedule. Not for several threads at once.
  bool Time(const std::vector<std::pair<size_t, int64_t>>& placements, CostedPlan& costed);

  /// The plan of a candidate for which the workers have no cores, with this reason.
  CostedPlan FewCores(const Candidate& candidate);

 private:
  CostedPlan CostedPlanOf(const Candidate& candidate) const;
  /// The schedule of a pipeline, else none.
  std::optional<ScheduleName> NameOf(const CostedPlan& costed) const;
  /// The schedule in the cache; null without a pipeline.
  const CachedSchedule* Held(const CostedPlan& costed) const;
  /// The same, made where it is not there.
  const CachedSchedule* MakeHeld(const CostedPlan& costed);
  /// The machines of each rank of a pipeline.
  std::vector<std::vector<PipelinePlace>> PlacesOf(
      const CostedPlan& costed, const std::vector<std::pair<size_t, int64_t>>& placements) const;
  /// Kinds of the workers that have ranks of the plan, and how many.
  std::vector<std::pair<size_t, int64_t>> Placements(const CostedPlan& costed) const;
  /// Judges a pipeline whose ranks are not all on machines of one kind.
  bool JudgeMixed(CostedPlan& costed) const;
  /// Judges a plan that says how it is cut.
  bool JudgeCut(const CachedSchedule* held, StepBound& bound, CostedPlan& costed) const;

  /// What the steps of a plan depend on, except what it recomputes, which activations go over
  /// the link, and what the stages of a pipeline have.
  StepInputs StepOf(const CostedPlan& costed, const MemoryInputs& memory) const;
  /// Sets the bytes of weights that go over the link.
  void SetLinkBytes(const MemoryInputs& memory, StepInputs& inputs) const;
  /// The same steps, without a pipeline, on the slowest of these places; in rounds by time the mean
  /// of the steps that ranks make on them, each at its own speed.
  TimeBreakdown SlowestOf(StepInputs inputs, const CostedPlan& costed,
                          const std::vector<std::pair<size_t, int64_t>>& placements) const;
  TimeBreakdown MeanOfSpeeds(StepInputs inputs, const CostedPlan& costed) const;
  TimeBreakdown SlowestRank(const CostedPlan& costed, const MemoryInputs& memory,
                            const CachedSchedule* held, StepBound& bound,
                            const std::vector<std::pair<size_t, int64_t>>& placements) const;
  void SetCostedPlan(const CostedPlan& costed, MemoryInputs& inputs) const;
  void SetCostedPlan(const CostedPlan& costed, StepInputs& inputs) const;
  /// The memory of a pipeline, else none. `held` outlives it, as does the plan.
  std::optional<PipelineMemory> MemoryOf(const CostedPlan& costed,
                                         const CachedSchedule* held) const;
  /// The plan's memory, of all its ranks: of its steps, or of what learns a growth operator before
  /// them where that is more.
  void SetMemory(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                 CostedPlan& costed) const;
  void SetMemoryOfSteps(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                        CostedPlan& costed) const;
  /// The part on the device of the rank that has most there, with offload.
  static MemoryBreakdown DeviceTier(const MemoryInputs& inputs,
                                    std::optional<PipelineMemory>& pipeline);
  /// Bytes of `memory` on the device without offload.
  int64_t BytesWithoutTiers(const MemoryBreakdown& memory) const;
  int64_t DeviceBytes(const MemoryInputs& inputs, std::optional<PipelineMemory>& pipeline,
                      const MemoryBreakdown& memory) const;
  /// Whether it is within the job's own limits,
  bool WithinLimits(const CostedPlan& costed) const;
  /// and the workers'.
  bool Fits(const CostedPlan& costed) const;
  /// The same, whose memory is that of `inputs`, without activations and what comes and goes.
  bool FitsWithInputs(CostedPlan costed, const MemoryInputs& inputs,
                      std::optional<PipelineMemory>& pipeline) const;
  /// What "optimal" comes to on a pipeline.
  std::optional<RematChoice> ScheduleStages(const CostedPlan& costed, MemoryInputs inputs,
                                            const CachedSchedule& held,
                                            PipelineMemory& pipeline) const;
  /// Costs on the worker that is looked at first.
  RematCosts CostsOfRemat(const CostedPlan& costed) const;

  const PassCost& Pass(size_t kind, const CostedPlan& costed) const {
    return share_.Pass(kind, costed.threads, costed.micro_batch);
  }
  /// What data- and context-parallel ranks shard of the parameters.
  const ShardedParameters& Sharded(const CostedPlan& costed) const;
  int64_t ShardGroupSize(const CostedPlan& costed) const;

  const JobSpec& job_;
  const WorkerGroups& workers_;
  const RankShare& share_;
  ScheduleCache& cache_;
  const int64_t tensor_;
  const int64_t pipeline_;
  MemoryInputs memory_;                        ///< What of them is the same in all plans ...
  std::optional<GrowthFitMemory> growth_fit_;  ///< None where none is learned.
  StepInputs step_;                            ///< ... and of these.
  std::vector<int64_t> cut_;                   ///< Blocks of each stage, on machines of one kind.
};

}  // namespace weft::planner
