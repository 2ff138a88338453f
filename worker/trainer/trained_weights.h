#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/env.h"
#include "common/spec/job_spec.h"
#include "common/status.h"
#include "worker/engine/checkpoint/manifest.h"
#include "worker/engine/nn/parameter_set.h"

namespace weft::trainer {

/// What happens to the frozen network that a checkpoint leaves out.
enum class LeftOutBase : uint8_t {
  kRead,   ///< It is read from its folder.
  kLeave,  ///< Its parameters stay as they are: for those who need what was trained alone.
};

/// Fills `parameters` with what the training of a checkpoint has come to: the averaged weights
/// where its job averages them and there were updates enough, the initial weights where it searches
/// for a ticket (LoadTicket), otherwise the weights themselves. `names`: of some of them the names
/// in the checkpoint, where they are others there. Errors as engine::LoadTensors and ReadBase.
Status LoadTrainedWeights(Env& env, const std::string& folder,
                          const engine::CheckpointManifest& manifest,
                          engine::ParameterSet& parameters,
                          const std::map<std::string, std::string>& names = {},
                          LeftOutBase base = LeftOutBase::kRead);

/// The same with the weights of the last step where the job averages them.
Status LoadLastWeights(Env& env, const std::string& folder,
                       const engine::CheckpointManifest& manifest,
                       engine::ParameterSet& parameters);

/// What the checkpoint of a training of several jobs together (TechniqueCost::JointJobs) calls the
/// parameters that job `part` would have by itself, where it has others.
std::map<std::string, std::string> NamesOfPart(const JobSpec& job, size_t part);

}  // namespace weft::trainer
