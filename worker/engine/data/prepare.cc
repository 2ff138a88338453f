#include "worker/engine/data/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "common/formats/tokenizer_training.h"
#include "common/log.h"
#include "common/spec/spec_json.h"
#include "worker/engine/data/encode_documents.h"
#include "worker/engine/data/file_lock.h"

namespace weft::engine {
namespace {

/// Part of every key: a change of what is prepared from the same input must change it.
constexpr std::string_view kKeyVersion = "weft-dataset-2";

Result<std::vector<DocumentFile>> OpenFiles(Env& env, const std::vector<std::string>& paths,
                                            const DocumentOptions& options) {
  std::vector<DocumentFile> files;
  for (const std::string& path : paths) {
    WEFT_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::Open(env, path, options));
    files.push_back(std::move(file));
  }
  return files;
}

std::string KeyOf(const DataSpec& data, const std::string& tokenizer,
                  const std::vector<DocumentFile>& train,
                  const std::vector<DocumentFile>& validation) {
  // Strings are written as JSON, so that no two inputs give the same text.
  Json key = Json::array();
  key.push_back(kKeyVersion);
  key.push_back(tokenizer);
  auto add = [&](const std::vector<DocumentFile>& files) {
    Json list = Json::array();
    for (const DocumentFile& file : files) {
      list.push_back({HashHex(file.bytes()), file.is_jsonl() ? "jsonl:" + data.text_field
                                                             : "text:" + data.document_separator});
    }
    key.push_back(std::move(list));
  };
  add(train);
  add(validation);
  if (validation.empty()) key.push_back(data.validation_fraction);
  const std::string text = key.dump(-1, ' ', false, Json::error_handler_t::replace);
  return HashHex(std::as_bytes(std::span(text)));
}

/// Where the training tokens end and those held out begin.
uint64_t SplitPoint(const TokenShard& shard, double fraction) {
  const auto size = static_cast<double>(shard.size());
  const double held_out = std::floor(size * fraction);
  const uint64_t exact = shard.size() - static_cast<uint64_t>(held_out);
  if (held_out == 0) return exact;
  std::span<const uint64_t> starts = shard.document_starts();
  auto after = std::lower_bound(starts.begin(), starts.end(), exact);
  uint64_t nearest = *after;
  if (after != starts.begin() && exact - *std::prev(after) <= *after - exact) {
    nearest = *std::prev(after);
  }
  const double share = (size - static_cast<double>(nearest)) / size;
  return share >= fraction / 2 && share <= fraction * 2 && nearest > 0 ? nearest : exact;
}

void CountTokens(const TokenSpan& span, std::vector<uint64_t>& counts) {
  std::vector<int32_t> block(1 << 16);
  for (uint64_t at = 0; at < span.count; at += block.size()) {
    std::span<int32_t> part =
        std::span(block).first(std::min<uint64_t>(block.size(), span.count - at));
    span.shard->Read(span.first + at, part);
    for (int32_t token : part) ++counts[static_cast<size_t>(token)];
  }
}

double UnigramEntropy(const TokenSpan& train, const TokenSpan& validation, size_t vocab_size) {
  if (validation.count == 0) return 0;
  std::vector<uint64_t> seen(vocab_size);
  std::vector<uint64_t> asked(vocab_size);
  CountTokens(train, seen);
  CountTokens(validation, asked);
  const double total = static_cast<double>(train.count + vocab_size);
  double sum = 0;
  for (size_t token = 0; token < vocab_size; ++token) {
    if (asked[token] == 0) continue;
    sum -=
        static_cast<double>(asked[token]) * std::log(static_cast<double>(seen[token] + 1) / total);
  }
  return sum / static_cast<double>(validation.count);
}

Result<std::shared_ptr<const TokenShard>> WriteShard(Env& env, const std::string& path,
                                                     const std::vector<DocumentFile>& files,
                                                     const Tokenizer& tokenizer, int threads) {
  WEFT_ASSIGN_OR_RETURN(
      TokenShardWriter writer,
      TokenShardWriter::Create(env, path, static_cast<uint64_t>(tokenizer.vocab_size()),
                               tokenizer.hash()));
  WEFT_RETURN_IF_ERROR(
      EncodeDocuments(files, tokenizer, *tokenizer.end_of_text(), threads, writer));
  WEFT_RETURN_IF_ERROR(writer.Finish());
  WEFT_ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(env, path));
  return std::shared_ptr<const TokenShard>(std::make_shared<TokenShard>(std::move(shard)));
}

int64_t Documents(const TokenSpan& span) {
  return static_cast<int64_t>(span.DocumentStarts().size()) - 1;
}

/// Fills an empty folder; dataset.json comes last.
Status Fill(Env& env, const std::string& folder, const DataSpec& data, const Tokenizer& tokenizer,
            const std::vector<DocumentFile>& train, const std::vector<DocumentFile>& validation,
            int threads) {
  WEFT_RETURN_IF_ERROR(WriteFileAtomic(env, JoinPath(folder, "tokenizer.json"), tokenizer.json()));
  WEFT_ASSIGN_OR_RETURN(
      auto shard, WriteShard(env, JoinPath(folder, "train.tokens"), train, tokenizer, threads));
  TokenSpan trained{shard, nullptr, 0, shard->size()};
  TokenSpan held;
  DatasetInfo info;
  info.validation_file = !validation.empty();
  if (info.validation_file) {
    WEFT_ASSIGN_OR_RETURN(auto other, WriteShard(env, JoinPath(folder, "validation.tokens"),
                                                 validation, tokenizer, threads));
    held = {other, nullptr, 0, other->size()};
  } else {
    trained.count = SplitPoint(*shard, data.validation_fraction);
    held = {shard, nullptr, trained.count, shard->size() - trained.count};
  }
  info.vocab_size = tokenizer.vocab_size();
  info.end_of_text = *tokenizer.end_of_text();
  info.padding = info.end_of_text;
  info.tokenizer_hash = tokenizer.hash();
  info.train_tokens = static_cast<int64_t>(trained.count);
  info.train_documents = Documents(trained);
  info.validation_tokens = static_cast<int64_t>(held.count);
  info.validation_documents = Documents(held);
  info.unigram_entropy_nats = UnigramEntropy(trained, held, static_cast<size_t>(info.vocab_size));
  return WriteFileAtomic(env, JoinPath(folder, "dataset.json"), ToJson(info).dump(2) + "\n");
}

}  // namespace

Result<Dataset> PrepareDataset(Env& env, const DataSpec& data, const std::string& cache_dir,
                               int threads) {
  const DocumentOptions options{data.format, data.text_field, data.document_separator};
  WEFT_ASSIGN_OR_RETURN(auto train, OpenFiles(env, data.train, options));
  WEFT_ASSIGN_OR_RETURN(auto validation, OpenFiles(env, data.validation, options));
  std::optional<Tokenizer> tokenizer;
  std::string tokenizer_key = "train:" + std::to_string(data.tokenizer.vocab_size);
  if (!data.tokenizer.path.empty()) {
    WEFT_ASSIGN_OR_RETURN(tokenizer, Tokenizer::Load(env, data.tokenizer.path));
    if (!tokenizer->end_of_text()) {
      return InvalidError("the tokenizer " + data.tokenizer.path +
                          " has no end-of-text token. hint: its added_tokens must hold a special "
                          "\"<|endoftext|>\", \"<|end_of_text|>\" or \"</s>\"");
    }
    tokenizer_key = "given:" + tokenizer->hash();
  }
  const std::string key = KeyOf(data, tokenizer_key, train, validation);
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
    if (!tokenizer) {
      WEFT_ASSIGN_OR_RETURN(tokenizer,
                            TrainTokenizer(env, data.train, options, data.tokenizer.vocab_size));
    }
    WEFT_RETURN_IF_ERROR(Fill(env, temporary, data, *tokenizer, train, validation, threads));
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
