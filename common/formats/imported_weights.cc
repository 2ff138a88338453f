#include "common/formats/imported_weights.h"

#include <optional>
#include <string>

#include "common/formats/safetensors_index.h"
#include "common/formats/weight_files.h"
#include "common/model/technique_cost.h"

namespace weft {
namespace {

Status CheckFolder(Env& env, const std::string& field, const std::string& folder,
                   bool missing_is_error) {
  if (!missing_is_error && !HoldsWeights(env, folder)) return OkStatus();
  const Status status =
      SafetensorsFolder::Open(env, folder).status().WithContext(field + ".import_path");
  if (status.code() == StatusCode::kNotFound) return InvalidError(status.message());
  if (status.code() != StatusCode::kCorrupt) return status;
  return InvalidError(status.message() + "; hint: copy or export the folder again");
}

}  // namespace

Status CheckImportedWeights(Env& env, const JobSpec& job, bool missing_is_error) {
  if (!job.model.import_path.empty()) {
    WEFT_RETURN_IF_ERROR(CheckFolder(env, "model", job.model.import_path, missing_is_error));
  }
  const std::optional<AddedNetwork> added = AddedNetworkOf(job.train);
  if (!added) return OkStatus();
  return CheckFolder(env, std::string(added->field), added->model->import_path, missing_is_error);
}

}  // namespace weft
