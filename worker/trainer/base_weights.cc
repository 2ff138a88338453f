#include "worker/trainer/base_weights.h"

#include <set>

#include "common/formats/weight_files.h"
#include "worker/engine/models/weights.h"

namespace weft::trainer {

using engine::CheckpointManifest;
using engine::NamedTensor;
using engine::Parameter;

void EraseBase(const std::vector<std::string>& base_tensors, const engine::ParameterSet& parameters,
               std::vector<NamedTensor>& tensors) {
  const std::set<std::string> base(base_tensors.begin(), base_tensors.end());
  std::erase_if(tensors, [&](const NamedTensor& tensor) {
    if (tensor.parameter < 0) return false;
    const Parameter& parameter = parameters[tensor.parameter];
    // Quantised ones have several tensors. Those that begin otherwise are state of something else.
    return parameter.frozen && base.contains(parameter.name) &&
           tensor.name.compare(0, parameter.name.size(), parameter.name) == 0;
  });
}

Status CheckBase(Env& env, const std::string& checkpoint, const CheckpointManifest& manifest,
                 const std::string& folder) {
  if (manifest.base_tensors.empty()) return OkStatus();
  const std::string what = "the checkpoint in " + checkpoint +
                           " leaves out the frozen weights of " + manifest.job.model.import_path;
  if (folder.empty()) {
    return InvalidError(what + ", and the job names no folder; hint: set model.import_path");
  }
  const Result<std::string> now = FingerprintOfWeights(env, folder);
  if (now.status().code() == StatusCode::kNotFound) {
    return InvalidError(what + ", and there is no folder " + folder +
                        "; hint: put it back as it was");
  }
  WEFT_RETURN_IF_ERROR(now.status());
  if (*now == manifest.base_fingerprint) return OkStatus();
  return InvalidError(what + ", and the weights in " + folder +
                      " are no longer those (fingerprint " + manifest.base_fingerprint + ", now " +
                      *now + "); hint: put the files back as they were");
}

Status ReadBase(Env& env, const std::string& checkpoint, const CheckpointManifest& manifest,
                const std::string& folder, const ModelSpec& model,
                engine::ParameterSet& parameters) {
  if (manifest.base_tensors.empty()) return OkStatus();
  WEFT_RETURN_IF_ERROR(CheckBase(env, checkpoint, manifest, folder));
  return OfGivenFiles(engine::ImportBase(env, folder, model, manifest.base_tensors, parameters));
}

}  // namespace weft::trainer
