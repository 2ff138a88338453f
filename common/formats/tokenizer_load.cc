// Tokenizer::Load: which of the known files a path holds.
#include <array>
#include <utility>

#include "common/formats/tiktoken.h"
#include "common/formats/tokenizer.h"
#include "common/formats/wordpiece.h"

namespace weft {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

Result<Tokenizer> FromVocabAndMerges(Env& env, const std::string& folder) {
  WEFT_ASSIGN_OR_RETURN(std::string vocab,
                        ReadFile(env, JoinPath(folder, "vocab.json"), kMaxFileBytes));
  WEFT_ASSIGN_OR_RETURN(std::string merges,
                        ReadFile(env, JoinPath(folder, "merges.txt"), kMaxFileBytes));
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseVocabAndMerges(vocab, merges));
  return Tokenizer::Create(definition);
}

/// The tokenizer in one file, whose kind shows in its first bytes and its name.
Result<Tokenizer> FromFile(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string content, ReadFile(env, path, kMaxFileBytes));
  if (LooksLikeTiktoken(content)) {
    WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTiktoken(content));
    return Tokenizer::Create(definition);
  }
  if (path.ends_with(".txt")) {
    WEFT_ASSIGN_OR_RETURN(std::string json, WordPieceJson(content));
    return Tokenizer::FromJson(std::move(json));
  }
  if (path.ends_with(".model")) return Tokenizer::FromSentencePiece(std::move(content));
  return Tokenizer::FromJson(std::move(content));
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(Env& env, const std::string& path) {
  auto with_context = [](Result<Tokenizer> tokenizer, const std::string& what) {
    if (tokenizer.ok()) return tokenizer;
    return Result<Tokenizer>(tokenizer.status().WithContext("reading the tokenizer " + what));
  };
  constexpr std::array<const char*, 6> kNames = {"tokenizer.json",          "vocab.json",
                                                 "tokenizer.model",         "spiece.model",
                                                 "sentencepiece.bpe.model", "vocab.txt"};
  for (const char* name : kNames) {
    const std::string file = JoinPath(path, name);
    if (!env.FileExists(file)) continue;
    if (std::string_view(name) == "vocab.json") {
      return with_context(FromVocabAndMerges(env, path), path);
    }
    return with_context(FromFile(env, file), file);
  }
  if (const bool folder = env.ListDir(path).ok(); folder || !env.FileExists(path)) {
    return Status(folder ? StatusCode::kInvalid : StatusCode::kNotFound,
                  "reading the tokenizer " + path +
                      ": there is none. hint: give a tokenizer.json, a SentencePiece .model, a "
                      "tiktoken file or a vocab.txt, or a folder with one or with vocab.json "
                      "and merges.txt");
  }
  return with_context(FromFile(env, path), path);
}

}  // namespace weft
