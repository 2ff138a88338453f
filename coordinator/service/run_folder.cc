#include "coordinator/service/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "common/spec/phases.h"

namespace weft::coordinator {
namespace {

/// A folder that a job makes in its run folder.
bool IsOwnFolder(const std::string& name) {
  return name == "checkpoints" || name == "epochs" || name == "profiles" ||
         name.starts_with("rendezvous-");
}

/// A folder that a job makes among its checkpoints.
bool IsCheckpoint(const std::string& name) {
  constexpr std::string_view kStep = "step-";
  if (name.starts_with(".tmp-")) return true;
  return name.starts_with(kStep) && name.size() > kStep.size() &&
         std::all_of(name.begin() + kStep.size(), name.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

bool HoldsWeights(const std::string& name) {
  return name.ends_with(".safetensors") || name.ends_with(".bin") || name.ends_with(".pt");
}

}  // namespace

Result<std::string> ForeignContent(Env& env, const std::string& run_dir) {
  if (!env.FileExists(run_dir)) return std::string();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(run_dir));
  for (const std::string& name : names) {
    const std::string path = JoinPath(run_dir, name);
    if (IsPhaseFolder(name)) {
      WEFT_ASSIGN_OR_RETURN(const std::string foreign, ForeignContent(env, path));
      if (!foreign.empty()) return foreign;
      continue;
    }
    if (IsOwnFolder(name)) continue;
    if (HoldsWeights(name) || IsFolder(env, path)) return path;
  }
  const std::string checkpoints = JoinPath(run_dir, "checkpoints");
  if (!env.FileExists(checkpoints)) return std::string();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> steps, env.ListDir(checkpoints));
  for (const std::string& name : steps) {
    const std::string path = JoinPath(checkpoints, name);
    if (!IsCheckpoint(name) && IsFolder(env, path)) return path;
  }
  return std::string();
}

bool IsInRunFolder(const std::string& path, const std::string& run_dir) {
  const std::filesystem::path folder = std::filesystem::path(run_dir).lexically_normal();
  const std::filesystem::path relative =
      std::filesystem::path(path).lexically_normal().lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "." && *relative.begin() != "..";
}

Status DeleteRunFolder(Env& env, const std::string& run_root, const std::string& run_dir) {
  const std::string name = BaseName(run_dir);
  if (run_root.empty() || name.empty() || name == "." || name == ".." ||
      run_dir != JoinPath(run_root, name)) {
    return InvalidError("the run folder " + run_dir + " does not lie directly in " + run_root +
                        "; hint: delete it by hand");
  }
  return env.RemoveTree(run_dir);
}

}  // namespace weft::coordinator
