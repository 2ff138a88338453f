#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/hash.h"
#include "common/status.h"

namespace weft::engine {

/// A file of tokens with the borders of their documents, mapped. docs/formats.md gives it byte by
/// byte. Immutable, so thread-safe. Sizes, counts and the document index are checked on opening;
/// the tokens themselves by Verify.
class TokenShard {
 public:
  static Result<TokenShard> Open(Env& env, const std::string& path);

  uint64_t size() const { return token_count_; }
  uint64_t vocab_size() const { return vocab_size_; }
  const std::string& tokenizer_hash() const { return tokenizer_hash_; }
  const std::string& content_hash() const { return content_hash_; }

  /// Token `i` < size().
  int32_t operator[](uint64_t i) const;

  /// Copies tokens [first, first + out.size()), which must lie inside the shard.
  void Read(uint64_t first, std::span<int32_t> out) const;

  /// Index of the first token of each document, then size().
  std::span<const uint64_t> document_starts() const { return document_starts_; }

  /// Reads everything once. kCorrupt: the hash does not match, or a token is past the vocabulary.
  Status Verify() const;

 private:
  Status Check(const std::string& path);

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::span<const std::byte> tokens_;
  std::span<const uint64_t> document_starts_;
  uint64_t token_count_ = 0;
  uint64_t vocab_size_ = 0;
  uint64_t token_bytes_ = 2;
  std::string tokenizer_hash_;
  std::string content_hash_;
};

/// Writes a shard from its start. Not thread-safe.
class TokenShardWriter {
 public:
  /// `tokenizer_hash`: Tokenizer::hash() of the tokenizer, 32 characters.
  static Result<TokenShardWriter> Create(Env& env, const std::string& path, uint64_t vocab_size,
                                         const std::string& tokenizer_hash);

  /// Appends tokens to the current document, each in [0, vocab_size).
  Status Append(std::span<const int32_t> tokens);

  /// Ends the current document; an empty one is not recorded.
  void EndDocument();

  /// Writes index and trailer and syncs.
  Status Finish();

 private:
  TokenShardWriter() = default;
  Status Write(std::span<const std::byte> bytes);

  std::unique_ptr<WritableFile> file_;
  std::unique_ptr<ContentHash> hash_;
  uint64_t vocab_size_ = 0;
  std::string tokenizer_hash_;
  uint64_t written_ = 0;
  uint64_t token_count_ = 0;
  std::vector<uint64_t> document_starts_ = {0};
  std::vector<uint16_t> words_;
  std::vector<uint8_t> bytes_;
};

}  // namespace weft::engine
