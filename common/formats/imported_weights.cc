#include "common/formats/imported_weights.h"

#include <optional>
#include <string>
#include <utility>

#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "common/formats/safetensors_index.h"
#include "common/formats/weight_files.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

/// `status` of reading the folder that `field`.import_path names.
Status OfField(const std::string& field, const Status& status) {
  Status named = status.WithContext(field + ".import_path");
  if (named.code() == StatusCode::kNotFound) return InvalidError(named.message());
  return OfGivenFiles(std::move(named));
}

Status CheckFolder(Env& env, const std::string& field, const std::string& folder,
                   bool missing_is_error) {
  if (!missing_is_error && !HoldsWeights(env, folder)) return OkStatus();
  return OfField(field, SafetensorsFolder::Open(env, folder).status());
}

/// The folder of an adapter, whose method is known.
Status CheckAdapter(Env& env, const PeftSpec& adapter, bool missing_is_error) {
  const std::string path = JoinPath(adapter.import_path, AdapterWeightsName(adapter));
  if (!env.FileExists(path)) {
    if (!missing_is_error) return OkStatus();
    return InvalidError("model.peft.import_path: there is no file " + path +
                        "; hint: copy or export the folder again");
  }
  return OfField("model.peft", SafetensorsFile::Open(env, path).status());
}

}  // namespace

Status CheckImportedWeights(Env& env, const JobSpec& job, bool missing_is_error) {
  WEFT_RETURN_IF_ERROR(CheckStartWeights(env, job, missing_is_error));
  return CheckAddedWeights(env, job, missing_is_error);
}

Status CheckStartWeights(Env& env, const JobSpec& job, bool missing_is_error) {
  const ModelSpec& model = job.model;
  if (!model.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(CheckFolder(env, "model", model.import_path, missing_is_error));
  }
  if (model.peft.import_path.empty()) return OkStatus();
  return CheckAdapter(env, model.peft, missing_is_error);
}

Status CheckAddedWeights(Env& env, const JobSpec& job, bool missing_is_error) {
  const std::optional<AddedNetwork> added = AddedNetworkOf(job.train);
  if (!added) return OkStatus();
  return CheckFolder(env, std::string(added->field), added->model->import_path, missing_is_error);
}

}  // namespace weft
