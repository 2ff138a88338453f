#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <stop_token>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/context_attention.h"
#include "common/model/model_shape.h"
#include "common/model/optimizer_bytes.h"
#include "common/model/sharded_parameters.h"
#include "common/model/streamed_units.h"
#include "common/spec/job_spec.h"
#include "coordinator/planner/chain_cache.h"
#include "coordinator/planner/pass_cost.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/step_inputs.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// Blocks of the ranks of a pipeline, in all their stages: of the first, of the last, and of the
/// one between them with most, which has none where there is none.
struct RankBlocks {
  int64_t first = 0;
  int64_t last = 0;
  int64_t inner = 0;

  /// `cut`: blocks of each stage.
  RankBlocks(const std::vector<int64_t>& cut, int64_t ranks);
};

/// What a rank has of a model, on whatever machine.
struct RankParameters {
  explicit RankParameters(const JobSpec& job);

  ModelShape shape;
  OptimizerBytes optimizer;
  int64_t bucket_bytes;  ///< BucketBytes.
};

/// What a rank has of a model, and what its passes take: the same in all meshes with the same
/// tensor, context and expert parallelism. Made on one thread, then read by any number of them.
class RankShare {
 public:
  /// Costs passes of these numbers of threads and micro-batches. `workers` outlive it. Options need
  /// not be looked at any more after a request to `stop`.
  RankShare(const JobSpec& job, const WorkerGroups& workers, const std::set<int64_t>& threads,
            const std::set<int64_t>& micro_batches, std::stop_token stop = {})
      : RankShare(job, RankParameters(job), workers, threads, micro_batches, std::move(stop)) {}
  /// The same where what it has is known.
  RankShare(JobSpec job, RankParameters parameters, const WorkerGroups& workers,
            const std::set<int64_t>& threads, const std::set<int64_t>& micro_batches,
            std::stop_token stop = {});
  RankShare(const RankShare&) = delete;
  RankShare& operator=(const RankShare&) = delete;

  /// Finds what the stages of pipelines have and take.
  void AddStages();

  /// The shape of each stage of a pipeline as if it were alone.
  const ModelShape& shape() const { return parameters_.shape; }
  const OptimizerBytes& optimizer() const { return parameters_.optimizer; }
  int64_t bucket_bytes() const { return parameters_.bucket_bytes; }
  /// Where gradients are shared or leave the device.
  weft::OpenGradients OpenGradients() const;
  /// The same where these units are kept on the device, and the sum of these.
  weft::OpenGradients OpenGradientsBut(const std::vector<int64_t>& kept) const;
  StreamedUnit Kept(const std::vector<int64_t>& units) const;
  /// The parameters partitioned over `shard_ranks` ranks, as `zero_stage` 3 does; none of a
  /// lower stage or one rank.
  const ShardedParameters& Sharded(int64_t zero_stage, int64_t shard_ranks) const;

  /// The schedules of what its blocks may recompute, or send to the host.
  ChainCache& chains() const { return chains_; }
  const std::stop_token& stop() const { return chains_.stop(); }

  /// The cost of a pass of the whole network, on a kind of worker.
  const PassCost& Pass(size_t kind, int64_t threads, int64_t micro_batch) const {
    return passes_.at({kind, threads, micro_batch});
  }
  /// After AddStages, for pipelines.
  const StageShapes& stages() const { return *stages_; }
  const StagePasses& StagePass(size_t kind, int64_t threads, int64_t micro_batch) const {
    return stage_passes_.at({kind, threads, micro_batch});
  }
  /// No plan of `mesh`, whose blocks are cut so, where this many ranks sum their gradients has a
  /// fullest rank with fewer bytes: those of parameters, gradients and the optimizer's state. 0
  /// where more than that state is shared, something is outside the device, or stages are cut
  /// by machine or have blocks that are not alike.
  double LeastBytes(const ResourceSpec& mesh, const RankBlocks& blocks,
                    int64_t gradient_ranks) const;

  /// A pass over the whole network takes no less on any worker: what tensor- and expert-parallel
  /// ranks send each other, as near as they can be, and its products, on GPUs with what is bound by
  /// memory.
  double LeastPassSeconds(int64_t threads, int64_t micro_batch) const {
    return least_seconds_.at({threads, micro_batch});
  }
  /// The same of stages, after AddStages; null where machines of several kinds have them, each of
  /// which may have another cut, or blocks are not alike.
  const StagePasses::Least* LeastStageSeconds(int64_t threads, int64_t micro_batch) const {
    const auto found = least_stage_seconds_.find({threads, micro_batch});
    return found == least_stage_seconds_.end() ? nullptr : &found->second;
  }

 private:
  /// What a rank keeps from step to step.
  struct KeptBytes {
    double values = 0;  ///< Parameters and gradients.
    double state = 0;   ///< The optimizer's, which ranks may share.

    double Among(int64_t shard_ranks) const {
      return values + state / static_cast<double>(shard_ranks);
    }
  };

  void AddPasses(int64_t threads, int64_t micro_batch);
  void AddStagePasses();
  /// Ranks as near as they can be.
  StepInputs NearestRanks(int64_t threads, int64_t micro_batch) const;
  KeptBytes KeptOf(const ModelShape& shape) const;

  const JobSpec job_;
  const WorkerGroups& workers_;
  const PrecisionRecipe& precision_;
  const RankParameters parameters_;
  /// What few meshes ask for, found when it is asked for.
  mutable std::mutex mutex_;
  mutable std::optional<weft::OpenGradients> open_gradients_;
  mutable std::optional<FlatParameters> flat_parameters_;
  mutable std::map<int64_t, ShardedParameters> sharded_;  ///< By shard group size.
  mutable ChainCache chains_;
  std::map<std::tuple<size_t, int64_t, int64_t>, PassCost>
      passes_;      ///< Kind, threads, micro-batch.
  KeptBytes kept_;  ///< By the whole network.
  std::optional<StageShapes> stages_;
  KeptBytes kept_first_, kept_last_, kept_inner_;  ///< By stages of one block,
  KeptBytes kept_next_;                            ///< and what each more adds.
  std::map<std::tuple<size_t, int64_t, int64_t>, StagePasses> stage_passes_;  ///< As passes_.
  std::map<std::pair<int64_t, int64_t>, double> least_seconds_;  ///< By threads, micro-batch.
  std::map<std::pair<int64_t, int64_t>, StagePasses::Least> least_stage_seconds_;  ///< As these.
};

/// Bucket of the gradient all-reduce: 25 MiB, large enough for full bandwidth.
inline constexpr int64_t kBucketBytes = int64_t{25} << 20;

/// Bucket of gradients of `job`, with the sizes of `model`. Where gradients leave the device it has
/// no more than a block, so that few are there at a time.
int64_t BucketBytes(const JobSpec& job, const ModelSpec& model);

}  // namespace weft::planner
