#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/env.h"
#include "common/model/technique_cost.h"
#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::trainer {

/// Which weights of a training: those of its last step, or what it came to, averages where it has
/// them.
enum class TrainedAs : uint8_t { kLast, kResult };

/// The weights in a checkpoint, to be read one by one, under their masks. Where a
/// technique computes weights from other tensors, these are what can be read. Thread-safe.
class TrainedTensors {
 public:
  /// Opens the checkpoint in `folder`, whose hashes have been verified. Errors as
  /// engine::StoredTensors::Open; kInvalid when masks of growth still hide a part of the network.
  static Result<TrainedTensors> Open(Env& env, const std::string& folder,
                                     const engine::CheckpointManifest& manifest,
                                     TrainedAs which = TrainedAs::kResult);

  /// Fills `targets`, whole weights with their names in the checkpoint. Averaged ones are f32.
  /// Errors as engine::StoredTensors::Load. `stream`: of the device that targets are on.
  Status Load(const std::vector<engine::NamedTensor>& targets, const Stream& stream = {}) const;

  /// All tensors of the checkpoint, as they are there.
  const engine::StoredTensors& stored() const { return stored_; }

 private:
  explicit TrainedTensors(engine::StoredTensors stored) : stored_(std::move(stored)) {}

  std::vector<engine::NamedTensor> With(const StateName& state,
                                        const std::vector<engine::NamedTensor>& targets) const;
  Status LoadAverages(const std::vector<engine::NamedTensor>& targets, const Stream& stream) const;
  Status ApplyMasks(const std::vector<engine::NamedTensor>& targets, const Stream& stream) const;

  engine::StoredTensors stored_;
  std::vector<StateName> averages_;   ///< That replace weights by their mean; none: nothing does.
  std::optional<ExportedMask> mask_;  ///< That weights are under.
};

/// What happens to the frozen network that a checkpoint leaves out.
enum class LeftOutBase : uint8_t {
  kRead,   ///< It is read from its folder.
  kLeave,  ///< Its parameters stay as they are: for those who need what was trained alone.
};

/// Fills `parameters` with what the training of a checkpoint has come to: the averaged weights
/// where its job averages them and there were updates enough, the initial weights where it searches
/// for a ticket (LoadTicket), otherwise the weights themselves. `names`: of some of them the names
/// in the checkpoint, where they are others there. Errors as TrainedTensors and ReadBase.
Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters,
                          const std::map<std::string, std::string>& names = {},
                          LeftOutBase base = LeftOutBase::kRead);

/// What the checkpoint of a training of several jobs together (TechniqueCost::JointJobs) calls the
/// parameters that job `part` would have by itself, where it has others.
std::map<std::string, std::string> NamesOfPart(const JobSpec& job, size_t part);

}  // namespace weft::trainer
