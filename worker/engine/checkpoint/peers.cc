#include "worker/engine/checkpoint/peers.h"

#include <chrono>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::engine {
namespace {

/// Rank 0 first finishes what it does with an older checkpoint; others write as long as it takes.
constexpr std::chrono::minutes kPatience(30);

constexpr std::string_view kWrite = "write";
constexpr std::string_view kNothing = "nothing";

}  // namespace

std::string CheckpointPeers::Key(const std::string& what) const {
  return "checkpoint/" + std::to_string(save_) + "/" + what;
}

void CheckpointPeers::Begin() {
  ++save_;
  opened_ = false;
}

Status CheckpointPeers::Invite() {
  opened_ = true;
  return store_->Set(Key("open"), kWrite);
}

void CheckpointPeers::End() {
  // Without a store the attempt is over for all of them.
  if (!opened_) (void)store_->Set(Key("open"), kNothing);
  opened_ = true;
}

Result<std::vector<CheckpointFile>> CheckpointPeers::Files() {
  std::vector<CheckpointFile> files;
  for (int64_t rank = 1; rank < ranks_; ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    WEFT_ASSIGN_OR_RETURN(const std::string told,
                          store_->Get(Key("file-" + std::to_string(rank)), kPatience));
    WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(told));
    if (json.contains("error")) {
      return InternalError(name + ": " + json.value("error", std::string()));
    }
    WEFT_ASSIGN_OR_RETURN(CheckpointFile file, FromJson<CheckpointFile>(json));
    files.push_back(std::move(file));
  }
  return files;
}

Result<bool> CheckpointPeers::Invited() {
  WEFT_ASSIGN_OR_RETURN(const std::string open, store_->Get(Key("open"), kPatience));
  return open == kWrite;
}

Status CheckpointPeers::ReportFile(const Result<CheckpointFile>& file) {
  const Json json = file.ok() ? ToJson(*file) : Json{{"error", file.status().message()}};
  return store_->Set(Key("file-" + std::to_string(rank_)), json.dump());
}

}  // namespace weft::engine
