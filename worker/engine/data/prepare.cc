#include "worker/engine/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/hash.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "worker/engine/data/dataset_input.h"
#include "worker/engine/data/file_lock.h"

namespace weft::engine {
namespace {

/// Part of every key: a change of what is prepared from the same input must change it.
constexpr std::string_view kKeyVersion = "weft-dataset-4";

std::string KeyOf(const JobSpec& job, const DatasetInput& input) {
  // Strings are written as JSON, so that no two inputs give the same text.
  Json key = {kKeyVersion, input.Key()};
  if (job.data.validation.empty()) key.push_back(job.data.validation_fraction);
  const std::string text = key.dump(-1, ' ', false, Json::error_handler_t::replace);
  return HashHex(std::as_bytes(std::span(text)));
}

/// The starts of every `together` documents, and the end.
std::vector<uint64_t> StartsOfGroups(const TokenShard& shard, int64_t together) {
  std::vector<uint64_t> starts;
  const std::span<const uint64_t> all = shard.document_starts();
  for (size_t d = 0; d < all.size(); d += static_cast<size_t>(together)) starts.push_back(all[d]);
  return starts;
}

bool AllAsLong(const std::vector<uint64_t>& starts) {
  for (size_t i = 1; i < starts.size(); ++i) {
    if (starts[i] - starts[i - 1] != starts[1] - starts[0]) return false;
  }
  return true;
}

/// Where the training tokens end and those held out begin: at a border of documents if one is near,
/// or always.
uint64_t SplitPoint(const TokenShard& shard, double fraction, const DatasetInput& input) {
  const auto size = static_cast<double>(shard.size());
  const double held_out = std::floor(size * fraction);
  const uint64_t exact = shard.size() - static_cast<uint64_t>(held_out);
  if (held_out == 0) return exact;
  const std::vector<uint64_t> starts = StartsOfGroups(shard, input.documents_together());
  if (!input.may_cut_documents() && AllAsLong(starts)) {
    // By their number: the same images, whatever their size.
    const size_t groups = starts.size() - 1, inner = groups > 1 ? 1 : 0;
    const double share = std::floor(static_cast<double>(groups) * fraction + 0.5);
    return starts[std::clamp(groups - static_cast<size_t>(share), inner, groups - inner)];
  }
  auto after = std::lower_bound(starts.begin(), starts.end(), exact);
  uint64_t nearest = *after;
  if (after != starts.begin() && exact - *std::prev(after) <= *after - exact) {
    nearest = *std::prev(after);
  }
  if (!input.may_cut_documents()) {
    // Something is left on both sides as long as there are two documents.
    const size_t inner = starts.size() > 2 ? 1 : 0;
    return std::clamp(nearest, starts[inner], starts[starts.size() - 1 - inner]);
  }
  const double share = (size - static_cast<double>(nearest)) / size;
  return share >= fraction / 2 && share <= fraction * 2 && nearest > 0 ? nearest : exact;
}

/// Counts the targets among the tokens; returns how many there are.
uint64_t CountTargets(const TokenSpan& span, std::vector<uint64_t>& counts) {
  uint64_t total = 0;
  std::vector<int32_t> block(1 << 16);
  for (uint64_t at = 0; at < span.count; at += block.size()) {
    std::span<int32_t> part =
        std::span(block).first(std::min<uint64_t>(block.size(), span.count - at));
    span.shard->Read(span.first + at, part);
    for (uint64_t i = 0; i < part.size(); ++i) {
      if (span.answers != nullptr && (*span.answers)[span.first + at + i] == 0) continue;
      ++counts[static_cast<size_t>(part[i])];
      ++total;
    }
  }
  return total;
}

double UnigramEntropy(const TokenSpan& train, const TokenSpan& validation, size_t vocab_size) {
  if (validation.count == 0) return 0;
  std::vector<uint64_t> seen(vocab_size);
  std::vector<uint64_t> asked(vocab_size);
  const double total = static_cast<double>(CountTargets(train, seen) + vocab_size);
  const uint64_t targets = CountTargets(validation, asked);
  if (targets == 0) return 0;
  double sum = 0;
  for (size_t token = 0; token < vocab_size; ++token) {
    if (asked[token] == 0) continue;
    sum -=
        static_cast<double>(asked[token]) * std::log(static_cast<double>(seen[token] + 1) / total);
  }
  return sum / static_cast<double>(targets);
}

Result<std::shared_ptr<const TokenShard>> OpenShard(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(env, path));
  return std::shared_ptr<const TokenShard>(std::make_shared<TokenShard>(std::move(shard)));
}

/// All of the tokens of a part ("train") of a folder, and the marks of answers where it has some.
Result<TokenSpan> OpenWhole(Env& env, const std::string& folder, const std::string& part,
                            const DatasetInfo& info) {
  TokenSpan span;
  WEFT_ASSIGN_OR_RETURN(span.shard, OpenShard(env, JoinPath(folder, part + ".tokens")));
  span.count = span.shard->size();
  if (info.answers) {
    WEFT_ASSIGN_OR_RETURN(span.answers, OpenShard(env, JoinPath(folder, part + ".answers")));
  }
  return span;
}

int64_t Documents(const TokenSpan& span) {
  return static_cast<int64_t>(span.DocumentStarts().size()) - 1;
}

/// Fills an empty folder; dataset.json comes last.
Status Fill(Env& env, const std::string& folder, const JobSpec& job, DatasetInput& input,
            int threads) {
  DatasetInfo info;
  WEFT_RETURN_IF_ERROR(input.Write(env, folder, threads, info));
  WEFT_ASSIGN_OR_RETURN(TokenSpan trained, OpenWhole(env, folder, "train", info));
  TokenSpan held;
  info.validation_file = !job.data.validation.empty();
  if (info.validation_file) {
    WEFT_ASSIGN_OR_RETURN(held, OpenWhole(env, folder, "validation", info));
  } else {
    held = trained;
    trained.count = SplitPoint(*trained.shard, job.data.validation_fraction, input);
    held.first = trained.count;
    held.count -= trained.count;
  }
  info.train_tokens = static_cast<int64_t>(trained.count);
  info.train_documents = Documents(trained);
  info.validation_tokens = static_cast<int64_t>(held.count);
  info.validation_documents = Documents(held);
  if (!info.labels) {
    info.unigram_entropy_nats = UnigramEntropy(trained, held, static_cast<size_t>(info.vocab_size));
  }
  return WriteFileAtomic(env, JoinPath(folder, "dataset.json"), ToJson(info).dump(2) + "\n");
}

}  // namespace

Result<Dataset> PrepareDataset(Env& env, const JobSpec& job, const std::string& cache_dir,
                               int threads) {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<DatasetInput> input, OpenDatasetInput(env, job));
  const std::string key = KeyOf(job, *input);
  const std::string folder = JoinPath(cache_dir, key);
  WEFT_RETURN_IF_ERROR(env.CreateDirs(cache_dir));
  WEFT_ASSIGN_OR_RETURN(FileLock lock, FileLock::Acquire(folder + ".lock"));
  if (env.FileExists(folder)) {
    Result<Dataset> ready = OpenDataset(env, folder);
    if (ready.ok()) return ready;
    WEFT_LOG_WARNING << "preparing the data again: " << ready.status().message();
    WEFT_RETURN_IF_ERROR(env.RemoveTree(folder));
  }
  // Under the lock anything with this name was left by a process that died.
  const std::string temporary = folder + ".tmp";
  auto make = [&]() -> Status {
    WEFT_RETURN_IF_ERROR(env.RemoveTree(temporary));
    WEFT_RETURN_IF_ERROR(env.CreateDirs(temporary));
    WEFT_RETURN_IF_ERROR(Fill(env, temporary, job, *input, threads));
    WEFT_RETURN_IF_ERROR(env.Rename(temporary, folder));
    return env.SyncDir(cache_dir);
  };
  if (Status status = make(); !status.ok()) {
    (void)env.RemoveTree(temporary);
    return status.WithContext("preparing the data");
  }
  return OpenDataset(env, folder);
}

}  // namespace weft::engine
