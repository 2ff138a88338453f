#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "common/model/memory_model.h"
#include "common/model/model_shape.h"
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

/// The first stage of a network that is cut so which has, by model.freeze, anything to train: those
/// before it get no gradients.
int64_t FirstTrainedStage(const ModelSpec& model, const std::vector<int64_t>& cut);

/// Stage `stage` of those.
ModelShape ShapeOfStage(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t stage);

/// All stages of rank `rank` of `ranks`, as if they were one.
ModelShape ShapeOfStages(const ModelShape& whole, const std::vector<int64_t>& cut, int64_t ranks,
                         int64_t rank);

/// The stages of pipelines of one network, or all stages of a rank as if they were one: what
/// ShapeOfStage and ShapeOfStages say, for those who ask often.
class StageShapes {
 public:
  explicit StageShapes(const ModelShape& whole);

  /// Blocks are all alike. Where they are not, because some are frozen, stages say which they have.
  bool alike() const { return whole_.spec.freeze.empty(); }
  const ModelShape& whole() const { return whole_; }

  /// A part of the network, with one of its ends or none.
  ModelShape Of(const StageShape& stage) const;

 private:
  ModelShape whole_;
  ModelShape inner_, first_, last_;  ///< Of one block.
};

/// What ranks have at a time by a schedule, however the network is cut.
class PipelineHoldings {
 public:
  explicit PipelineHoldings(const PipelineSchedule& schedule);

  int64_t ranks() const { return std::ssize(deferred_); }
  int64_t chunks() const { return chunks_; }
  /// Most that rank `rank` keeps of its micro-batches, from the forward to the last backward step
  /// of each, where a chunk of one leaves `saved` bytes.
  int64_t MostKept(int64_t rank, const std::vector<int64_t>& saved) const;
  /// Most backward passes of the rank whose gradients of weights are still to come,
  int64_t Deferred(int64_t rank) const { return deferred_[static_cast<size_t>(rank)]; }
  /// and most messages under way (MostMessagesUnderWay).
  int64_t Messages(int64_t rank) const { return messages_[static_cast<size_t>(rank)]; }

 private:
  int64_t chunks_;
  /// By rank, one after the other: micro-batches of each chunk that are kept, at times of which one
  /// is that of most bytes.
  std::vector<std::vector<int32_t>> kept_;
  std::vector<int64_t> deferred_;
  std::vector<int64_t> messages_;
};

/// The memory of a pipeline, for those who ask for several ways to recompute.
class PipelineMemory {
 public:
  /// `cut`: blocks of each stage. All outlive it.
  PipelineMemory(const StageShapes& shapes, const std::vector<int64_t>& cut,
                 const PipelineHoldings& holdings);

  /// PredictPipelineRanks. Inputs of later calls differ in what is recomputed alone. Not for
  /// several threads at once.
  std::vector<MemoryBreakdown> Ranks(const MemoryInputs& inputs);
  /// Of these one.
  MemoryBreakdown Rank(const MemoryInputs& inputs, int64_t rank) {
    return Rank(inputs, rank, true);
  }
  /// Of these what stands on the device, as PredictDeviceTier of one rank.
  std::vector<MemoryBreakdown> DeviceTiers(const MemoryInputs& inputs);

 private:
  /// Of a rank that has so many blocks: those that recompute, or recompute their attention, in
  /// segments of so many, whether it is the first rank or the last one, and whether what is on the
  /// host counts. Last which blocks, where they are not alike.
  using Kind =
      std::tuple<int64_t, int64_t, int64_t, int64_t, bool, bool, bool, std::vector<int64_t>>;

  std::vector<MemoryBreakdown> Ranks(const MemoryInputs& inputs, bool with_host);
  MemoryBreakdown Rank(const MemoryInputs& inputs, int64_t rank, bool with_host);

  const StageShapes& shapes_;
  const std::vector<int64_t>& cut_;
  const PipelineHoldings& holdings_;
  std::vector<int64_t> before_;            ///< Blocks before each stage.
  std::map<Kind, MemoryBreakdown> known_;  ///< As if the ranks had one stage.
  /// Of the inputs, since the first call.
  std::optional<BlockBytes> block_;
  int64_t deferred_block_ = 0;
  std::vector<int64_t> saved_, on_host_;  ///< By chunk of a rank, of one micro-batch.
};

/// Bytes at their peaks of each rank of a pipeline. `inputs` are those of one rank with the whole
/// network; its first `recomputed_blocks` recompute, in segments that end with their stage, and the
/// next `attention_blocks` their attention, wherever they are.
std::vector<MemoryBreakdown> PredictPipelineRanks(const MemoryInputs& inputs,
                                                  const std::vector<int64_t>& cut,
                                                  const PipelineSchedule& schedule);

/// Of these the fullest.
MemoryBreakdown PredictPipelineMemory(const MemoryInputs& inputs, const std::vector<int64_t>& cut,
                                      const PipelineSchedule& schedule);

}  // namespace weft
