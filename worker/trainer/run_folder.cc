#include "worker/trainer/run_folder.h"

#include "worker/engine/checkpoint/catalog.h"

namespace weft::trainer {
namespace {

Status WriteAndRemove(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(auto file, env.NewWritableFile(path));
  WEFT_RETURN_IF_ERROR(file->Append(std::string_view("\n")));
  WEFT_RETURN_IF_ERROR(file->Close());
  return env.RemoveFile(path);
}

}  // namespace

Status CheckRunFolder(Env& env, const std::string& run_dir, int64_t rank) {
  for (const std::string& folder : {run_dir, engine::CheckpointsFolder(run_dir)}) {
    Status status = env.CreateDirs(folder);
    if (status.ok()) {
      status = WriteAndRemove(env, JoinPath(folder, ".writable-" + std::to_string(rank)));
    }
    const bool forbidden = status.code() == StatusCode::kInvalid ||
                           status.code() == StatusCode::kConflict ||
                           status.code() == StatusCode::kNotFound;
    if (forbidden) {
      return InvalidError("the run folder cannot be written: " + status.message() +
                          "; hint: make it writable for weft-worker, then `weft job retry`");
    }
    WEFT_RETURN_IF_ERROR(status);
  }
  return OkStatus();
}

}  // namespace weft::trainer
