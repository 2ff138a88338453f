#include "worker/engine/data/dataset.h"

#include <algorithm>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::engine {
namespace {

Result<std::shared_ptr<const TokenShard>> OpenShard(Env& env, const std::string& path,
                                                    const DatasetInfo& info) {
  WEFT_ASSIGN_OR_RETURN(TokenShard shard, TokenShard::Open(env, path));
  if (shard.vocab_size() != static_cast<uint64_t>(info.vocab_size) ||
      shard.tokenizer_hash() != info.tokenizer_hash) {
    return CorruptError(path + " belongs to another tokenizer than its dataset.json");
  }
  WEFT_RETURN_IF_ERROR(shard.Verify());
  return std::shared_ptr<const TokenShard>(std::make_shared<TokenShard>(std::move(shard)));
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

  WEFT_ASSIGN_OR_RETURN(std::string tokenizer, ReadFile(env, dataset.TokenizerPath()));
  if (HashHex(std::as_bytes(std::span(tokenizer))) != info->tokenizer_hash) {
    return CorruptError(dataset.TokenizerPath() + " does not match its hash");
  }
  const auto train = static_cast<uint64_t>(info->train_tokens);
  const auto validation = static_cast<uint64_t>(info->validation_tokens);
  WEFT_ASSIGN_OR_RETURN(auto shard, OpenShard(env, JoinPath(folder, "train.tokens"), *info));
  std::string hashes = shard->content_hash();
  dataset.train = {shard, nullptr, 0, train};
  uint64_t expected = train;
  if (info->validation_file) {
    WEFT_ASSIGN_OR_RETURN(auto other, OpenShard(env, JoinPath(folder, "validation.tokens"), *info));
    hashes += other->content_hash();
    if (other->size() != validation) {
      return CorruptError(path + " does not fit validation.tokens");
    }
    dataset.validation = {other, nullptr, 0, validation};
  } else {
    dataset.validation = {shard, nullptr, train, validation};
    expected += validation;
  }
  if (shard->size() != expected) return CorruptError(path + " does not fit train.tokens");
  hashes += ":" + std::to_string(train);
  dataset.fingerprint = HashHex(std::as_bytes(std::span(hashes)));
  return dataset;
}

}  // namespace weft::engine
