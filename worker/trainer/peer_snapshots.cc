#include "worker/trainer/peer_snapshots.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <map>
#include <string_view>
#include <utility>

#include "common/json.h"
#include "common/memory_errors.h"
#include "common/spec/spec_json.h"
#include "worker/engine/checkpoint/catalog.h"
#include "worker/engine/checkpoint/epoch_fence.h"
#include "worker/engine/checkpoint/gathered.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::trainer {

using engine::CheckpointFile;
using engine::CheckpointManifest;
using engine::NamedTensor;

namespace {

/// The newest ones that are kept: a failure amid the newest leaves the one before.
constexpr size_t kKept = 2;
constexpr int64_t kMostRanks = int64_t{1} << 20;
constexpr uint64_t kNoLimit = std::numeric_limits<uint64_t>::max();

std::string StepName(int64_t step, int64_t of) {
  return BaseName(engine::CheckpointPath("", step)) + "-of-" + std::to_string(of);
}

/// Reads a name like "step-00000012-of-2"; nullopt for any other name.
std::optional<std::pair<int64_t, int64_t>> StepOf(const std::string& name) {
  long long step = 0, of = 0;
  char end = 0;
  if (std::sscanf(name.c_str(), "step-%lld-of-%lld%c", &step, &of, &end) != 2 || of <= 0) {
    return std::nullopt;
  }
  return std::pair<int64_t, int64_t>{step, of};
}

Status WriteBytes(Env& env, const std::string& path, std::string_view bytes) {
  WEFT_ASSIGN_OR_RETURN(auto file, env.NewWritableFile(path));
  WEFT_RETURN_IF_ERROR(file->Append(bytes));
  return file->Sync();
}

/// What the files of a copy take; the rest of a manifest is small.
int64_t BytesOf(const std::vector<NamedTensor>& tensors) {
  int64_t bytes = 0;
  for (const NamedTensor& tensor : tensors) bytes += static_cast<int64_t>(tensor.view.Bytes());
  return bytes;
}

/// The step whose files all ranks have together, with who gives which, or none.
struct Choice {
  int64_t step = -1;
  std::map<std::string, size_t> givers;  ///< By name of the file.
};

Result<Choice> Choose(const std::vector<std::string>& summaries) {
  int64_t saved = -1;
  struct Kept {
    int64_t of = 0;
    std::map<std::string, size_t> givers;
  };
  std::map<int64_t, Kept> steps;
  for (size_t rank = 0; rank < summaries.size(); ++rank) {
    WEFT_ASSIGN_OR_RETURN(const Json summary, ParseJson(summaries[rank]));
    saved = std::max(saved, summary.at("saved").get<int64_t>());
    for (const Json& item : summary.at("snapshots")) {
      Kept& kept = steps[item.at("step").get<int64_t>()];
      kept.of = item.at("of").get<int64_t>();
      for (const Json& name : item.at("files")) {
        kept.givers.emplace(name.get<std::string>(), rank);  // the first one that has it
      }
    }
  }
  for (auto it = steps.rbegin(); it != steps.rend() && it->first > saved; ++it) {
    if (std::ssize(it->second.givers) == it->second.of) return Choice{it->first, it->second.givers};
  }
  return Choice{};
}

}  // namespace

std::vector<int64_t> BuddyGroups(const std::vector<std::string>& rank_workers) {
  std::map<std::string, int64_t> workers;
  std::vector<int64_t> worker_of, number, counts;
  for (const std::string& name : rank_workers) {
    const int64_t worker = workers.emplace(name, std::ssize(workers)).first->second;
    if (worker == std::ssize(counts)) counts.push_back(0);
    worker_of.push_back(worker);
    number.push_back(counts[static_cast<size_t>(worker)]++);
  }
  const auto pair_of = [&](int64_t worker) {
    const bool last_odd = std::ssize(counts) % 2 == 1 && worker + 1 == std::ssize(counts);
    return last_odd && worker > 0 ? (worker - 1) / 2 : worker / 2;
  };
  std::map<int64_t, int64_t> fewest;  // ranks of a worker, by pair
  for (int64_t worker = 0; worker < std::ssize(counts); ++worker) {
    const int64_t count = counts[static_cast<size_t>(worker)];
    auto [it, added] = fewest.emplace(pair_of(worker), count);
    it->second = std::min(it->second, count);
  }
  std::vector<int64_t> groups;
  for (size_t rank = 0; rank < rank_workers.size(); ++rank) {
    const int64_t pair = pair_of(worker_of[rank]);
    groups.push_back(pair * kMostRanks + number[rank] % fewest.at(pair));
  }
  return groups;
}

/// The name of a run's folder; of the search of a phase, after that of the phase.
std::string RunName(const std::string& run_dir) {
  const std::string name = BaseName(run_dir);
  return name == "search" ? BaseName(DirName(run_dir)) + "." + name : name;
}

PeerSnapshots::PeerSnapshots(Env& env, const AttemptSpec& spec, engine::Collective* world)
    : env_(env),
      spec_(spec),
      world_(world),
      run_folder_(spec.memory_dir.empty()
                      ? ""
                      : JoinPath(spec.memory_dir, spec.job_id + "." + RunName(spec.run_dir))),
      rank_folder_(JoinPath(run_folder_, "rank-" + std::to_string(spec.rank))),
      work_folder_(JoinPath(rank_folder_, "part")) {}

Result<std::unique_ptr<PeerSnapshots>> PeerSnapshots::Open(Env& env, const AttemptSpec& spec,
                                                           engine::Collective* world) {
  std::unique_ptr<PeerSnapshots> snapshots(new PeerSnapshots(env, spec, world));
  const std::vector<int64_t> groups = BuddyGroups(spec.plan.rank_workers);
  if (world->size() > 1) {
    WEFT_ASSIGN_OR_RETURN(snapshots->buddies_,
                          world->Split(groups.at(static_cast<size_t>(spec.rank)), "snapshots"));
  }
  return snapshots;
}

std::string PeerSnapshots::Folder(int64_t step, int64_t of) const {
  return JoinPath(rank_folder_, StepName(step, of));
}

Result<std::string> PeerSnapshots::Errors(const Status& own) {
  if (world_->size() == 1) return own.message();
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, world_->AllGather(own.message()));
  std::string errors;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    errors += (errors.empty() ? "rank " : "; rank ") + std::to_string(rank) + ": " + all[rank];
  }
  return errors;
}

Status PeerSnapshots::Write(CheckpointManifest& manifest, int64_t saving_rank, int64_t saving_ranks,
                            const std::vector<NamedTensor>& tensors, const Stream& stream,
                            std::string& own) {
  if (run_folder_.empty()) return UnavailableError("its worker has no folder in memory");
  WEFT_RETURN_IF_ERROR(env_.RemoveTree(work_folder_));
  WEFT_RETURN_IF_ERROR(env_.CreateDirs(work_folder_));
  if (saving_rank >= saving_ranks) return OkStatus();
  std::error_code error;
  const std::filesystem::space_info space = std::filesystem::space(rank_folder_, error);
  // Its own files and those of its buddies, and the files as they are sent.
  const int64_t wanted = (buddies_ ? 2 * buddies_->size() : 1) * BytesOf(tensors);
  if (!error && space.available < static_cast<uintmax_t>(wanted)) {
    return DiskFullError("no room for " + std::to_string(wanted) + " bytes in " + spec_.memory_dir);
  }
  std::vector<engine::HostCopy> copies;
  std::vector<NamedTensor> on_host = tensors;
  for (NamedTensor& tensor : on_host) {
    if (tensor.stored != nullptr || tensor.view.device.type == DeviceType::kCpu) continue;
    WEFT_ASSIGN_OR_RETURN(engine::HostCopy copy, engine::HostCopy::Of(stream, tensor.view));
    copies.push_back(std::move(copy));
    tensor.view = copies.back().view();
  }
  WEFT_ASSIGN_OR_RETURN(
      CheckpointFile file,
      engine::WriteTensorFile(env_, work_folder_, saving_rank, saving_ranks, on_host));
  own = ToJson(file).dump() + "\n";
  WEFT_ASSIGN_OR_RETURN(const std::string bytes,
                        ReadFile(env_, JoinPath(work_folder_, file.name), kNoLimit));
  own += bytes;
  manifest.files.push_back(std::move(file));
  return OkStatus();
}

Status PeerSnapshots::Keep(CheckpointManifest& manifest, const std::vector<std::string>& all) {
  for (size_t buddy = 0; buddy < all.size(); ++buddy) {
    if (all[buddy].empty() || static_cast<int>(buddy) == buddies_->rank()) continue;
    const size_t line = all[buddy].find('\n');
    if (line == std::string::npos) return CorruptError("a buddy sent no file");
    const std::string_view text = all[buddy];
    WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text.substr(0, line)));
    WEFT_ASSIGN_OR_RETURN(CheckpointFile file, FromJson<CheckpointFile>(json));
    WEFT_RETURN_IF_ERROR(
        WriteBytes(env_, JoinPath(work_folder_, file.name), text.substr(line + 1)));
    manifest.files.push_back(std::move(file));
  }
  return WriteFileAtomic(env_, JoinPath(work_folder_, engine::kManifestName),
                         ManifestText(manifest));
}

Result<std::string> PeerSnapshots::Take(CheckpointManifest manifest, int64_t saving_rank,
                                        int64_t saving_ranks,
                                        const std::vector<NamedTensor>& tensors,
                                        const Stream& stream) {
  manifest.files.clear();
  std::string own;
  Status status = CatchExhaustion("taking a snapshot", [&] {
    return Write(manifest, saving_rank, saving_ranks, tensors, stream, own);
  });
  std::vector<std::string> all;
  if (buddies_ && buddies_->size() > 1) {
    WEFT_ASSIGN_OR_RETURN(all, buddies_->AllGather(status.ok() ? own : std::string()));
  }
  if (status.ok()) {
    status = CatchExhaustion("keeping a snapshot", [&] { return Keep(manifest, all); });
  }
  WEFT_ASSIGN_OR_RETURN(std::string errors, Errors(status));
  if (!errors.empty()) {
    if (!run_folder_.empty()) (void)env_.RemoveTree(work_folder_);
    return errors;
  }
  // A rank that fails from here on has an older one, and so have all the others.
  const std::string folder = Folder(manifest.step, saving_ranks);
  WEFT_RETURN_IF_ERROR(env_.RemoveTree(folder));
  WEFT_RETURN_IF_ERROR(env_.Rename(work_folder_, folder));
  WEFT_RETURN_IF_ERROR(Prune(manifest.step));
  return std::string();
}

Status PeerSnapshots::Prune(int64_t newest) const {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> names, env_.ListDir(rank_folder_));
  std::map<int64_t, std::string> kept;
  for (const std::string& name : names) {
    if (const auto step = StepOf(name)) kept[step->first] = name;
  }
  // Those past the newest are of a run that went on from an older state.
  std::vector<std::string> old;
  for (auto it = kept.upper_bound(newest); it != kept.end(); ++it) old.push_back(it->second);
  kept.erase(kept.upper_bound(newest), kept.end());
  while (kept.size() > kKept) {
    old.push_back(kept.begin()->second);
    kept.erase(kept.begin());
  }
  for (const std::string& name : old) {
    WEFT_RETURN_IF_ERROR(env_.RemoveTree(JoinPath(rank_folder_, name)));
  }
  return OkStatus();
}

std::vector<PeerSnapshots::Found> PeerSnapshots::FindAll() const {
  std::vector<Found> found;
  if (run_folder_.empty()) return found;
  const Result<std::vector<std::string>> ranks = env_.ListDir(run_folder_);
  if (!ranks.ok()) return found;
  for (const std::string& rank : *ranks) {
    const Result<std::vector<std::string>> names = env_.ListDir(JoinPath(run_folder_, rank));
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const auto step = StepOf(name);
      if (!step) continue;
      const std::string folder = JoinPath(JoinPath(run_folder_, rank), name);
      Result<CheckpointManifest> manifest = engine::ReadManifest(env_, folder);
      if (manifest.ok()) found.push_back({folder, step->second, std::move(*manifest)});
    }
  }
  return found;
}

Result<std::optional<int64_t>> PeerSnapshots::Restore() {
  WEFT_ASSIGN_OR_RETURN(const std::optional<int64_t> step, RestoreNewest());
  // What is older than a checkpoint is of no use any more, nor is what could not be used.
  WEFT_RETURN_IF_ERROR(Forget());
  return step;
}

Result<std::optional<int64_t>> PeerSnapshots::RestoreNewest() {
  const std::vector<Found> found = FindAll();
  Json summary{{"saved", -1}, {"snapshots", Json::array()}};
  if (spec_.rank == 0) {
    WEFT_ASSIGN_OR_RETURN(const auto checkpoints, engine::ListCheckpoints(env_, spec_.run_dir));
    for (const engine::CheckpointInfo& checkpoint : checkpoints) {
      if (checkpoint.verified) summary["saved"] = checkpoint.step;
    }
  }
  for (const Found& snapshot : found) {
    Json files = Json::array();
    for (const CheckpointFile& file : snapshot.manifest.files) files.push_back(file.name);
    summary["snapshots"].push_back(
        {{"step", snapshot.manifest.step}, {"of", snapshot.of}, {"files", files}});
  }
  std::vector<std::string> summaries = {summary.dump()};
  if (world_->size() > 1) {
    WEFT_ASSIGN_OR_RETURN(summaries, world_->AllGather(summary.dump()));
  }
  WEFT_ASSIGN_OR_RETURN(const Choice choice, Choose(summaries));
  if (choice.step < 0) return std::optional<int64_t>();

  const std::string gathered = engine::GatherFolder(spec_.run_dir, choice.step, spec_.epoch);
  Status status;
  if (spec_.rank == 0) status = env_.CreateDirs(gathered);
  WEFT_ASSIGN_OR_RETURN(std::string errors, Errors(status));
  CheckpointManifest manifest;
  if (errors.empty()) {
    manifest.step = -1;
    for (const Found& snapshot : found) {
      if (snapshot.manifest.step != choice.step) continue;
      for (const CheckpointFile& file : snapshot.manifest.files) {
        const auto giver = choice.givers.find(file.name);
        const bool mine = giver->second == static_cast<size_t>(spec_.rank);
        const bool done = std::any_of(manifest.files.begin(), manifest.files.end(),
                                      [&](const auto& each) { return each.name == file.name; });
        if (!mine || done || !status.ok()) continue;
        if (manifest.step < 0) {
          manifest = snapshot.manifest;
          manifest.files.clear();
        }
        Result<std::string> bytes = ReadFile(env_, JoinPath(snapshot.folder, file.name), kNoLimit);
        status =
            bytes.ok() ? WriteBytes(env_, JoinPath(gathered, file.name), *bytes) : bytes.status();
        manifest.files.push_back(file);
      }
    }
    WEFT_ASSIGN_OR_RETURN(errors, Errors(status));
  }
  const std::string given = manifest.files.empty() ? "" : ToJson(manifest).dump();
  std::vector<std::string> manifests = {given};
  if (world_->size() > 1) {
    WEFT_ASSIGN_OR_RETURN(manifests, world_->AllGather(given));
  }
  if (errors.empty() && spec_.rank == 0) {
    CheckpointManifest whole;
    for (const std::string& text : manifests) {
      if (text.empty()) continue;
      WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text));
      WEFT_ASSIGN_OR_RETURN(CheckpointManifest part, FromJson<CheckpointManifest>(json));
      std::vector<CheckpointFile> files = std::move(whole.files);
      files.insert(files.end(), part.files.begin(), part.files.end());
      whole = std::move(part);
      whole.files = std::move(files);
    }
    std::sort(whole.files.begin(), whole.files.end(),
              [](const auto& a, const auto& b) { return a.rank < b.rank; });
    engine::EpochFence fence(env_, spec_.run_dir, spec_.epoch);
    status = engine::PublishGathered(env_, spec_.run_dir, fence, std::move(whole));
  } else if (spec_.rank == 0) {
    (void)env_.RemoveTree(gathered);
  }
  if (errors.empty()) {
    WEFT_ASSIGN_OR_RETURN(errors, Errors(status));
  }
  if (errors.empty()) return std::optional<int64_t>(choice.step);
  warning_ = "the snapshot of step " + std::to_string(choice.step) + " was not used: " + errors;
  return std::optional<int64_t>();
}

Status PeerSnapshots::Forget() {
  const std::vector<std::string>& workers = spec_.plan.rank_workers;
  const auto own = static_cast<size_t>(spec_.rank);
  const bool first =
      own >= workers.size() ||
      std::find(workers.begin(), workers.end(), workers[own]) - workers.begin() == spec_.rank;
  Status removed = first && !run_folder_.empty() ? env_.RemoveTree(run_folder_) : OkStatus();
  if (world_->size() > 1) WEFT_RETURN_IF_ERROR(world_->Barrier());
  return removed;
}

}  // namespace weft::trainer
