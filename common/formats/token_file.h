#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/status.h"

namespace weft {

/// Forms of files of ready-made tokens.
enum class TokenFileFormat : uint8_t {
  kLlmc,      ///< llm.c: 256 i32 of header (magic, version, count), then u16 or u32 tokens.
  kNanoGpt,   ///< nanoGPT: u16 tokens and nothing else; wider ones are noticed and refused.
  kMegatron,  ///< Megatron-LM: an .idx with the sizes of sequences and documents, and its .bin.
};

/// A file of tokens, mapped. Immutable, so thread-safe. Its tokens are not looked at on opening.
class TokenFile {
 public:
  /// `path` is the .idx (or the .bin next to it) for kMegatron. kInvalid: sizes that do not agree,
  /// another magic number, version or type than those known.
  static Result<TokenFile> Open(Env& env, const std::string& path, TokenFileFormat format);

  uint64_t size() const { return count_; }

  /// How many different tokens its elements can tell apart.
  uint64_t most_tokens() const { return uint64_t{1} << std::min(8 * token_bytes_, 62); }
  const std::string& path() const { return path_; }

  /// Copies tokens [first, first + out.size()). kInvalid names the first that is negative or not
  /// below `vocab_size`.
  Status Read(uint64_t first, uint64_t vocab_size, std::span<int32_t> out) const;

  /// Index of the first token of each document, then size(); empty where the file does not say.
  const std::vector<uint64_t>& document_starts() const { return document_starts_; }

  /// The vocabulary that the format implies (GPT-2's, Llama 3's), and the token that begins each
  /// document; 0 and -1 when it implies none.
  int64_t implied_vocab_size() const { return implied_vocab_size_; }
  int32_t document_begin() const { return document_begin_; }

  /// All bytes of its files, for telling whether they have changed.
  std::vector<std::span<const std::byte>> Bytes() const;

 private:
  Status OpenLlmc();
  Status OpenNanoGpt();
  Status OpenMegatron(Env& env);
  Status ReadIndex(std::span<const std::byte> index);
  int64_t At(uint64_t i) const;

  std::string path_;
  std::unique_ptr<MappedFile> file_;
  std::unique_ptr<MappedFile> index_;
  const std::byte* tokens_ = nullptr;
  uint64_t count_ = 0;
  int token_bytes_ = 2;
  bool is_signed_ = false;
  std::vector<uint64_t> document_starts_;
  int64_t implied_vocab_size_ = 0;
  int32_t document_begin_ = -1;
};

/// Whether a file begins as llm.c's do.
bool LooksLikeLlmc(std::span<const std::byte> bytes);

}  // namespace weft
