#include "worker/trainer/run_folder.h"

#include "common/json.h"
#include "common/spec/field.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"

namespace weft::trainer {
namespace {

struct RunTime {
  double seconds = 0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("seconds", "Duration of all attempts; of one that was killed up to its last save.")
              .Unit("seconds"),
          self.seconds);
  }
};

std::string RunTimePath(const std::string& run_dir) {
  return JoinPath(run_dir, "attempts.json");
}

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

Status SaveRunSeconds(Env& env, const std::string& run_dir, double seconds) {
  return WriteFileAtomic(env, RunTimePath(run_dir), ToJson(RunTime{seconds}).dump(2) + "\n");
}

Result<double> ReadRunSeconds(Env& env, const std::string& run_dir) {
  const std::string path = RunTimePath(run_dir);
  if (!env.FileExists(path)) return 0.0;
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(env, path));
  const auto parse = [&]() -> Result<RunTime> {
    WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
    return FromJson<RunTime>(json);
  };
  const Result<RunTime> time = parse();
  if (time.ok()) return time->seconds;
  return InvalidError(path + ": " + time.status().message() +
                      "; hint: delete it, and the time of earlier attempts does not count");
}

}  // namespace weft::trainer
