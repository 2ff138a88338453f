#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/sharded_parameters.h"
#include "common/pipeline/schedule.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/option.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/remat_choice.h"
#include "coordinator/planner/time_model.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// What of an option is chosen before anything is known of its memory.
struct Candidate {
  int64_t threads = 1;
  int64_t ranks = 1;
  int64_t ranks_per_worker = 1;
  int64_t micro_batch = 1;
  double least_seconds = 0;  ///< No option that is made of it has a shorter step.
};

/// The options of a job whose ranks share the model in one way.
class MeshSearch {
 public:
  /// All outlive it. With `asked`, the job of another mesh, options that this one has in common
  /// with that of fewer things shared are left to it: what one rank shares with nobody, and a group
  /// of all ranks.
  MeshSearch(const JobSpec& job, const WorkerGroups& workers, const JobSpec* asked = nullptr);

  /// Every number of ranks, spread, threads and micro-batch for which the workers have cores. To be
  /// called once, before the others; those may then be called from several threads.
  std::vector<Candidate> Candidates();

  /// With the cheapest recomputation that fits. Where none does, with one that needs least and
  /// without a time; false.
  bool Judge(const Candidate& candidate, Option& option) const;

  /// Fills in the time of an option that says what it recomputes, with so many ranks on workers of
  /// these kinds; false where the pipeline has no such schedule. Not for several threads at once.
  bool Time(const std::vector<std::pair<size_t, int64_t>>& placements, Option& option);

  /// Why the workers have no memory for such an option.
  std::string MemoryReason(const Option& option) const;

  /// Where the workers have no cores for the ranks that the job itself asks for, one such option
  /// with its reason; else one without.
  const Option& FewCores() const { return few_cores_; }

 private:
  int64_t Replica() const { return tensor_ * pipeline_ * context_.ranks; }
  int64_t OwnLength() const { return sequence_length_ / context_.ranks; }

  std::vector<int64_t> RankChoices(int64_t threads) const;
  std::vector<int64_t> MicroBatchChoices(int64_t ranks) const;
  bool IsOfAnotherMesh(int64_t data_ranks) const;
  Option OptionOf(const Candidate& candidate) const;
  /// Fills what the methods below look up; false where the pipeline has no such schedule.
  bool Prepare(const Option& option);
  /// Of a pipeline, else none.
  PipelineSchedule ScheduleOf(const Option& option) const;
  PipelineStageInputs StagesOf(const Option& option) const;
  void ReportFewCores(Option option);

  /// `inputs` are some option's.
  double LeastSeconds(const Option& option, StepInputs& inputs);
  TimeBreakdown SlowestRank(const Option& option, const MemoryInputs& memory,
                            const PipelineSchedule& schedule,
                            const std::vector<std::pair<size_t, int64_t>>& placements) const;
  void SetOption(const Option& option, MemoryInputs& inputs) const;
  void SetOption(const Option& option, StepInputs& inputs) const;
  MemoryBreakdown Memory(const MemoryInputs& inputs, const PipelineSchedule& schedule) const;
  int64_t DeviceBytes(const MemoryInputs& inputs, const MemoryBreakdown& memory) const;
  bool Fits(const Option& option) const;
  /// The same, whose memory is that of `inputs`, without activations and what comes and goes.
  bool FitsBeside(Option option, const MemoryInputs& inputs) const;
  /// On the worker that is looked at first.
  RematCosts CostsOfRemat(const Option& option) const;

  const PassCost& Pass(size_t kind, const Option& option) const {
    return passes_.at({kind, option.threads, option.micro_batch});
  }
  const ShardedParameters& Sharded(int64_t data_ranks) const;
  int64_t Sharers(int64_t data_ranks) const;

  const JobSpec& job_;
  const WorkerGroups& workers_;
  const JobSpec* const asked_;
  const int64_t sequence_length_;
  const int64_t tensor_;
  const int64_t pipeline_;
  const ContextSharing context_;
  const PrecisionRecipe& precision_;
  MemoryInputs memory_;                      ///< What of them is the same in all options ...
  StepInputs step_;                          ///< ... and of these.
  std::vector<int64_t> cut_;                 ///< Blocks of each stage.
  std::optional<ParameterRegions> regions_;  ///< Where ranks share out parameters.

  std::map<std::tuple<size_t, int64_t, int64_t>, PassCost>
      passes_;                                    ///< Kind, threads, micro-batch.
  std::map<int64_t, ShardedParameters> sharded_;  ///< By ranks that share.
  /// Of a pipeline on GPUs: kind, threads, micro-batch, ranks of a worker.
  std::map<std::tuple<size_t, int64_t, int64_t, int64_t>, std::vector<StageForecast>> stages_;
  Option few_cores_;
};

/// Bucket of the gradient all-reduce: 25 MiB, large enough for full bandwidth.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Bucket of gradients of `job`, with the sizes of `model`. Where gradients leave the device it has
/// no more than a block, so that few are there at a time.
int64_t BucketBytes(const JobSpec& job, const ModelSpec& model);

/// What a rank of `job` has of its model, of each stage as if it were alone.
ModelShape ShapeOfRank(const JobSpec& job);

}  // namespace weft::planner
