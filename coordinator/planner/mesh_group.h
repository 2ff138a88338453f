#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include "common/spec/job_spec.h"
#include "coordinator/planner/mesh_options.h"
#include "coordinator/planner/meshes.h"
#include "coordinator/planner/pipeline_time.h"
#include "coordinator/planner/rank_share.h"
#include "coordinator/planner/schedule_cache.h"
#include "coordinator/planner/worker_groups.h"

namespace weft::planner {

/// Bounds are compared with what sums up in another order.
inline constexpr double kRoundingOfBounds = 1 - 1e-9;

/// What steps of ranks of `mesh` depend on, except what differs between its options, and what goes
/// through files.
StepInputs StepInputsOf(const JobSpec& mesh, const RankShare& share);

/// Sets what goes through files in an update, and in the passes of a micro-batch, for this mesh.
void SetFiles(const ResourceSpec& resources, StepInputs& inputs);

/// No plan of `choice` with that micro-batch has a shorter step, where the stages of a pipeline
/// are cut so. Of a pipeline each rank fills, has its passes and drains; where the machines decide
/// how it is cut, any has its share of all passes. The rest is left to MeshGroup.
double LeastSecondsOf(const JobSpec& mesh, const RankShare& share, const CutFloor& floor,
                      const RankChoice& choice, int64_t micro_batch);

/// The schedule of the micro-batches of a pipeline.
ScheduleName ScheduleOf(const JobSpec& mesh, const Candidate& candidate);

/// Whether gradients of inputs go on to the stage before without waiting for those of weights.
bool SplitsBackward(const ResourceSpec& resources);

/// Meshes of a family that have the same ranks to choose from and share tokens between matrices
/// alike: they differ in what data-parallel ranks shard, which passes take no less for. So their
/// candidates are found together.
class MeshGroup {
 public:
  struct Mesh {
    size_t number = 0;  ///< Of its job.
    const SharingChoice* sharing = nullptr;
  };
  /// A candidate of one of them.
  struct OfMesh {
    size_t mesh = 0;
    Candidate candidate;
  };
  /// What is the same for all groups of a search, or many of them. All outlive it.
  struct Context {
    const WorkerGroups& workers;
    const MeshOptions& options;
    const MeshOptions::Cut& cut;
    const RankShare& share;
    const ResourceSpec* asked;  ///< For MeshOptions::Has.
    double room;                ///< Bytes of a rank that may be full.
  };

  /// `job` is any of `meshes`; there is at least one.
  MeshGroup(const Context& context, JobSpec job, std::vector<Mesh> meshes);

  size_t first() const { return meshes_.front().number; }
  const JobSpec& job() const { return job_; }
  bool pipelined() const { return job_.resources.pipeline_parallel > 1; }

  /// Candidates that some of its meshes may have, with LeastSecondsOf up to `limit`; except some
  /// that certainly take longer than that. Each is given once.
  std::vector<Candidate> Take(double limit);
  /// LeastSecondsOf those that Take has not given yet.
  double left() const { return left_; }

  /// The meshes that have it, and room for what its ranks keep, each with a bound of its own. From
  /// several threads.
  std::vector<OfMesh> OfMeshes(const Candidate& candidate) const;

 private:
  /// Whether it has candidates of this many ranks, with room for what they keep.
  bool Has(const ResourceSpec& mesh, int64_t ranks) const;
  /// No step of any of the meshes is shorter.
  double LeastSeconds(const Candidate& candidate);
  double LeastSecondsOfPipeline(const Candidate& candidate);
  /// Without a pipeline, the same of one of them.
  double LeastSecondsOfMesh(const SharingChoice& sharing, const Candidate& candidate,
                            StepInputs& inputs) const;
  void SetCandidate(const Candidate& candidate, StepInputs& inputs) const;
  /// Without a pipeline, of the fastest kind of worker.
  double LeastOfWorkers(const StepInputs& inputs, const Candidate& candidate,
                        bool with_update) const;

  const Context context_;
  const JobSpec job_;
  const std::vector<Mesh> meshes_;
  StepInputs plain_;  ///< Without what data- and context-parallel ranks send.
  double taken_;      ///< All up to here was given.
  double left_;
  /// Floors of a pipeline on GPUs of one kind, by threads, micro-batch, ranks of a worker, least
  /// passes.
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, PipelineFloor> floors_;
};

}  // namespace weft::planner
