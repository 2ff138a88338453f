#include "coordinator/service/imported_sizes.h"

#include <filesystem>
#include <optional>
#include <string>

#include "common/formats/added_network.h"
#include "common/formats/huggingface.h"
#include "common/model/technique_cost.h"

namespace weft::coordinator {

Status ResolveImport(Env& files, JobSpec& spec) {
  const std::string& folder = spec.model.import_path;
  if (!folder.empty() && !std::filesystem::path(folder).is_absolute()) {
    return InvalidError("model.import_path '" + folder + "' is not an absolute path");
  }
  Status status = ResolveImportedModel(files, spec);
  if (status.code() == StatusCode::kNotFound) {
    return InvalidError("model.import_path: " + status.message() +
                        "; hint: the folder must be readable here and on the workers");
  }
  WEFT_RETURN_IF_ERROR(status.WithContext("model.import_path"));
  const std::optional<AddedNetwork> added = AddedNetworkOf(spec.train);
  if (added && !std::filesystem::path(added->model->import_path).is_absolute()) {
    return InvalidError(std::string(added->field) + ".import_path '" + added->model->import_path +
                        "' is not an absolute path");
  }
  return ResolveAddedNetwork(files, spec);
}

}  // namespace weft::coordinator
