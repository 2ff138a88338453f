#include "common/model/job_paths.h"

#include <algorithm>
#include <filesystem>

#include "common/model/technique_cost.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

/// The path that the kernel comes to, as far as it exists; nothing is followed twice.
fs::path RealPath(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(path, error);
  return error ? fs::path() : real;
}

}  // namespace

std::vector<JobPath> PathsOf(const JobSpec& job) {
  std::vector<JobPath> paths;
  JobSpec named = job;
  for (const DataList& data : DataLists(named)) {
    for (const std::string& path : *data.paths) paths.push_back({data.field, path});
  }
  paths.push_back({"data.tokenizer.path", job.data.tokenizer.path});
  // With a brace it is a template itself (ChatTemplateSource).
  if (job.data.chat_template.find('{') == std::string::npos) {
    paths.push_back({"data.chat_template", job.data.chat_template});
  }
  paths.push_back({"model.import_path", job.model.import_path});
  paths.push_back({"model.peft.import_path", job.model.peft.import_path});
  paths.push_back({"resources.offload_directory", job.resources.offload_directory});
  std::erase_if(paths, [](const JobPath& item) { return item.path.empty(); });
  return paths;
}

bool IsBelow(const std::string& path, const std::vector<std::string>& roots) {
  if (!fs::path(path).is_absolute()) return false;
  const fs::path real = RealPath(path);
  if (real.empty()) return false;
  return std::any_of(roots.begin(), roots.end(), [&](const std::string& root) {
    const fs::path base = RealPath(root);
    const fs::path relative = base.empty() ? fs::path() : real.lexically_relative(base);
    return !relative.empty() && *relative.begin() != "..";
  });
}

Status CheckPaths(const JobSpec& job, const std::vector<std::string>& roots,
                  const std::string& hint) {
  if (roots.empty()) return OkStatus();
  for (const JobPath& item : PathsOf(job)) {
    if (!IsBelow(item.path, roots)) {
      return InvalidError(item.field + " '" + item.path +
                          "' is not below a folder that is allowed" + "; hint: " + hint);
    }
  }
  return OkStatus();
}

}  // namespace weft
