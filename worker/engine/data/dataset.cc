#include "worker/engine/data/dataset.h"

#include <algorithm>

#include "common/formats/tokenizer_files.h"
#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::engine {
namespace {

Result<std::shared_ptr<const TokenShard>> OpenShard(Env& env, const std::string& path,
                                                    size_t vocab_size, const DatasetInfo& info) {
  WEFT_ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(env, path));
  if (shard.vocab_size() != vocab_size || shard.tokenizer_hash() != info.tokenizer_hash) {
    return CorruptError(path + " belongs to another tokenizer than its dataset.json");
  }
  WEFT_RETURN_IF_ERROR(shard.Verify());
  return std::shared_ptr<const TokenShard>(std::make_shared<TokenShard>(std::move(shard)));
}

/// The documents of `name`.tokens and their labels, if the dataset has any; adds to `hashes`.
Result<TokenSpan> OpenSpan(Env& env, const std::string& folder, const std::string& name,
                           const DatasetInfo& info, std::string& hashes) {
  TokenSpan span;
  WEFT_ASSIGN_OR_RETURN(span.shard, OpenShard(env, JoinPath(folder, name + ".tokens"),
                                              static_cast<size_t>(info.vocab_size), info));
  hashes += span.shard->content_hash();
  if (info.answers) {
    const std::string path = JoinPath(folder, name + ".answers");
    WEFT_ASSIGN_OR_RETURN(span.answers, OpenShard(env, path, /*vocab_size=*/2, info));
    hashes += span.answers->content_hash();
    if (span.answers->size() != span.shard->size()) {
      return CorruptError(path + " has not one mark for each token");
    }
  }
  if (!info.labels) return span;
  const std::string path = JoinPath(folder, name + ".labels");
  WEFT_ASSIGN_OR_RETURN(span.labels, OpenShard(env, path, info.classes.size(), info));
  hashes += span.labels->content_hash();
  if (span.labels->size() + 1 != span.shard->document_starts().size()) {
    return CorruptError(path + " has not one label for each document");
  }
  return span;
}

}  // namespace

std::vector<uint64_t> TokenSpan::DocumentStarts() const {
  std::vector<uint64_t> starts = {0};
  if (count == 0) return starts;
  std::span<const uint64_t> all = shard->document_starts();
  for (auto it = std::upper_bound(all.begin(), all.end(), first);
       it != all.end() && *it < first + count; ++it) {
    starts.push_back(*it - first);
  }
  starts.push_back(count);
  return starts;
}

Result<Dataset> OpenDataset(Env& env, const std::string& folder) {
  Dataset dataset;
  dataset.folder = folder;
  const std::string path = JoinPath(folder, "dataset.json");
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(env, path, 1 << 20));
  Result<Json> json = ParseJson(text);
  if (!json.ok()) return CorruptError(path + ": " + json.status().message());
  Result<DatasetInfo> info = FromJson<DatasetInfo>(Document{*json, path, {}});
  if (!info.ok()) return CorruptError(info.status().message());
  dataset.info = *info;

  if (const std::string tokenizer_path = dataset.TokenizerPath(); !tokenizer_path.empty()) {
    WEFT_ASSIGN_OR_RETURN(std::vector<TokenizerFile> files,
                          ReadTokenizerFiles(env, tokenizer_path));
    if (HashOfTokenizerFiles(files) != info->tokenizer_hash) {
      return CorruptError(tokenizer_path + " does not match its hash");
    }
  }
  if (info->labels && info->classes.empty()) return CorruptError(path + " has no classes");
  const auto train = static_cast<uint64_t>(info->train_tokens);
  const auto validation = static_cast<uint64_t>(info->validation_tokens);
  std::string hashes;
  WEFT_ASSIGN_OR_RETURN(dataset.train, OpenSpan(env, folder, "train", *info, hashes));
  uint64_t expected = train;
  if (info->validation_file) {
    WEFT_ASSIGN_OR_RETURN(dataset.validation, OpenSpan(env, folder, "validation", *info, hashes));
    if (dataset.validation.shard->size() != validation) {
      return CorruptError(path + " does not fit validation.tokens");
    }
  } else {
    dataset.validation = dataset.train;
    dataset.validation.first = train;
    expected += validation;
  }
  if (dataset.train.shard->size() != expected) {
    return CorruptError(path + " does not fit train.tokens");
  }
  dataset.train.count = train;
  dataset.validation.count = validation;
  hashes += ":" + std::to_string(train);
  dataset.fingerprint = HashHex(std::as_bytes(std::span(hashes)));
  return dataset;
}

}  // namespace weft::engine
