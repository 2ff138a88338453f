#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "common/model/in_flight_activations.h"
#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
#include "common/model/parameter_list.h"
#include "common/model/pass_memory.h"
#include "common/pipeline/cut_stages.h"
#include "common/pipeline/schedule.h"
#include "common/status.h"

namespace weft {

/// How the network of `job` is cut into the stages of its pipeline (resources.pipeline_parallel x
/// resources.pipeline_chunks): blocks of each, so that the most costly stage costs least, by
/// floating-point operations; embedding and classifier are layers like others. With `ranks`, one
/// for each rank of the pipeline, by the time that each takes, and within the blocks that all
/// stages of each may have (CutStages). kInvalid when there are fewer blocks than stages. Sizes of
/// an imported model must have been put into job.model.
Result<std::vector<int64_t>> CutModel(const JobSpec& job,
                                      const std::vector<StageMachine>& ranks = {});

/// The first stage of such a cut that has anything to train, by model.freeze; earlier ones get no
/// gradients.
int64_t FirstTrainedStage(const ModelSpec& model, const std::vector<int64_t>& cut);

/// Stage `stage` of those.
ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage);

/// All stages of rank `rank` of `ranks`, as if they were one.
ModelShape ShapeOfStages(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t ranks,
                         int64_t rank);

/// A cache of ShapeOfStage and ShapeOfStages: the stages of pipelines of one network, or all stages
/// of a rank as if they were one.
class StageShapes {
 public:
  explicit StageShapes(const ModelShape& whole);

  /// Blocks are all alike. Where they are not, because some are frozen, stages say which they have.
  bool alike() const { return alike_; }
  const ModelShape& whole() const { return whole_; }

  /// A part of the network, with one of its ends or none.
  ModelShape Of(const StageShape& stage) const;

 private:
  ModelShape whole_;
  bool alike_;
  ModelShape inner_, first_, last_;     ///< Of one block.
  std::vector<int64_t> block_numbers_;  ///< What grows with the blocks, of inner_.
};

/// The memory of a pipeline, for repeated queries with different recomputation.
class PipelineMemory {
 public:
  /// `cut`: blocks of each stage. All outlive it.
  PipelineMemory(const StageShapes& shapes, const std::vector<int64_t>& cut,
                 const InFlightActivations& in_flight);

  /// PredictPipelineRanks. Inputs of later calls differ in what is recomputed alone. Not for
  /// several threads at once.
  std::vector<MemoryBreakdown> Ranks(const MemoryInputs& inputs) { return Ranks(inputs, true); }
  /// The first of Ranks() that has most: found without those that cannot be it.
  MemoryBreakdown Fullest(const MemoryInputs& inputs) { return Fullest(inputs, true); }
  /// One of Ranks().
  MemoryBreakdown Rank(const MemoryInputs& inputs, int64_t rank) {
    return Rank(inputs, rank, true);
  }
  /// The part of Ranks() on the device, as PredictDeviceTier of one rank.
  std::vector<MemoryBreakdown> DeviceTiers(const MemoryInputs& inputs) {
    return Ranks(inputs, false);
  }
  MemoryBreakdown FullestDeviceTier(const MemoryInputs& inputs) { return Fullest(inputs, false); }
  MemoryBreakdown DeviceTier(const MemoryInputs& inputs, int64_t rank) {
    return Rank(inputs, rank, false);
  }

 private:
  /// The memory of a rank outside its passes.
  struct Rest {
    MemoryBreakdown memory;  ///< With passes of all its stages as if they were one, without any
                             ///< recomputation but next to quantised values.
    int64_t update = 0;      ///< Of its workspace.
    int64_t scratch = 0;
  };

  /// The values of the inputs that hold for all ranks.
  struct OfAll {
    OfAll(const MemoryInputs& inputs, bool defers);

    StagePassMemory passes;
    int64_t batch;
    int64_t message;
    int64_t evaluation;  ///< It has a few messages, and no activations.
  };

  /// A stage of each chunk of a rank.
  std::vector<StageKind> KindsOf(const MemoryInputs& inputs, int64_t rank) const;
  std::vector<MemoryBreakdown> Ranks(const MemoryInputs& inputs, bool with_host);
  MemoryBreakdown Fullest(const MemoryInputs& inputs, bool with_host);
  MemoryBreakdown Rank(const MemoryInputs& inputs, int64_t rank, bool with_host);
  /// The memory of the stage with that number, which is one of this kind.
  StageMemory OfStage(const MemoryInputs& inputs, const StageKind& kind, size_t stage);
  const Rest& RestOf(const MemoryInputs& inputs, int64_t rank, StageKind all, bool with_host);

  const StageShapes& shapes_;
  const std::vector<int64_t>& cut_;
  const InFlightActivations& in_flight_;
  std::vector<int64_t> before_;  ///< Blocks before each stage.
  std::optional<OfAll> of_all_;  ///< Since the first call.
  std::map<StageKind, StageMemory> stages_;
  /// And whether what is on the host counts; which blocks, where they are not alike; those at the
  /// beginning and at the end of the network that are left to bf16.
  using Kind = std::tuple<StageKind, bool, std::vector<int64_t>, std::array<int64_t, 2>>;
  std::map<Kind, Rest> rests_;
  std::vector<PassBytes> saved_, workspace_,
      offloaded_;  ///< By chunk of a rank, of one micro-batch.
};

/// Bytes at their peaks of each rank of a pipeline. `inputs` are those of one rank with the whole
/// network; its first `recomputed_blocks` recompute, in segments that end with their stage, and the
/// next `attention_blocks` their attention, wherever they are; or all do what `remat` says, with
/// each step in one stage.
std::vector<MemoryBreakdown> PredictPipelineRanks(const MemoryInputs& inputs,
                                                  const std::vector<int64_t>& cut,
                                                  const PipelineSchedule& schedule);

/// The fullest of these ranks.
MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule);

}  // namespace weft
