// Tokenizer::Load: which of the known files a path holds.
#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "common/formats/git_lfs.h"
#include "common/formats/sentencepiece_file.h"
#include "common/formats/tiktoken.h"
#include "common/formats/tokenizer.h"
#include "common/formats/vocab_and_merges.h"
#include "common/formats/wordpiece.h"

namespace weft {
namespace {

constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;
constexpr const char* kShiftedModel = "sentencepiece.bpe.model";
constexpr std::array<const char*, 3> kModels = {"tokenizer.model", "spiece.model", kShiftedModel};

constexpr const char* kHint =
    ". hint: give a tokenizer.json, a SentencePiece .model, ranks of tiktoken or a vocab.txt, or a "
    "folder with one or with vocab.json and merges.txt";

Result<std::string> ReadTokenizerFile(Env& env, const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string content, ReadFile(env, path, kMaxFileBytes));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(content, path));
  return content;
}

Result<Tokenizer> FromVocabAndMerges(Env& env, const std::string& folder, TokenizerConfig config) {
  WEFT_ASSIGN_OR_RETURN(std::string vocab, ReadTokenizerFile(env, JoinPath(folder, "vocab.json")));
  WEFT_ASSIGN_OR_RETURN(std::string merges, ReadTokenizerFile(env, JoinPath(folder, "merges.txt")));
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseVocabAndMerges(vocab, merges, config));
  return Tokenizer::Create(std::move(definition), std::move(config));
}

Result<Tokenizer> FromRanks(Env& env, const std::string& path, const std::string& content,
                            TokenizerConfig config) {
  std::optional<std::string> pattern;
  const std::string pattern_path = JoinPath(DirName(path), "pattern.txt");
  if (env.FileExists(pattern_path)) {
    WEFT_ASSIGN_OR_RETURN(pattern, ReadTokenizerFile(env, pattern_path));
    while (pattern->ends_with('\n') || pattern->ends_with('\r')) pattern->pop_back();
  }
  WEFT_ASSIGN_OR_RETURN(TokenizerDefinition definition, ParseTiktoken(content, pattern));
  return Tokenizer::Create(std::move(definition), std::move(config));
}

/// The model types whose class in transformers 4.57, where no file names one, moves ids or changes
/// the text before.
constexpr std::array<std::string_view, 21> kMovedTypes = {
    "albert",        "bigbird_pegasus", "camembert", "fnet",
    "kosmos-2",      "m2m_100",         "mbart",     "nllb-moe",
    "nystromformer", "pegasus",         "pegasus_x", "plbart",
    "seamless_m4t",  "seamless_m4t_v2", "siglip",    "xglm",
    "xlm-roberta",   "xlm-roberta-xl",  "xlnet",     "xmod",
    "yoso"};

/// A SentencePiece model gives the ids of its pieces here. kInvalid: by its class, the type of the
/// network or the name of its file it may be of those of transformers that move ids or change the
/// text before.
Status CheckReadAsItIs(const TokenizerConfig& config, const std::string& path) {
  constexpr std::array<std::string_view, 7> kClasses = {"Llama", "CodeLlama", "Gemma",         "T5",
                                                        "MT5",   "Reformer",  "BertGeneration"};
  const std::string hint =
      ". hint: save its tokenizer.json with "
      "`AutoTokenizer.from_pretrained(...).save_pretrained(...)`";
  const std::string base = BaseClass(config);
  const bool known = std::find(kClasses.begin(), kClasses.end(), base) != kClasses.end();
  // The last two do what a tokenizer.json says.
  const bool none = base.empty() || base == "PreTrained" || base == "TokenizersBackend";
  if (!known && !none) {
    return ClassError(config, "which may give other ids than those of " + BaseName(path) + hint);
  }
  if (none &&
      std::find(kMovedTypes.begin(), kMovedTypes.end(), config.model_type) != kMovedTypes.end()) {
    return InvalidError("config.json has the model_type " + Quoted(config.model_type) +
                        ", whose ids may be others than those of " + BaseName(path) + hint);
  }
  if (none && BaseName(path) == kShiftedModel) {
    return InvalidError(std::string("models with a ") + kShiftedModel +
                        " (XLM-RoBERTa, mBART, NLLB, CamemBERT) have other ids than it" + hint);
  }
  if (config.do_lower_case.value_or(false)) {
    return InvalidError("tokenizer_config.json has do_lower_case true, which is not done for " +
                        BaseName(path) + hint);
  }
  return OkStatus();
}

/// The tokenizer in one file, whose kind shows in its first bytes and its name.
Result<Tokenizer> FromFile(Env& env, const std::string& path, TokenizerConfig config) {
  WEFT_ASSIGN_OR_RETURN(std::string content, ReadTokenizerFile(env, path));
  if (LooksLikeTiktoken(content)) return FromRanks(env, path, content, std::move(config));
  if (path.ends_with(".txt")) {
    WEFT_ASSIGN_OR_RETURN(std::string json, WordPieceJson(content, config));
    return Tokenizer::FromJson(std::move(json), std::move(config));
  }
  if (path.ends_with(".model")) {
    WEFT_RETURN_IF_ERROR(CheckReadAsItIs(config, path));
    return Tokenizer::FromSentencePiece(std::move(content), std::move(config));
  }
  return Tokenizer::FromJson(std::move(content), std::move(config));
}

/// A tokenizer.json and a SentencePiece model of one folder must have the same tokens, where the
/// ids of the model are those of its pieces.
Status CheckAgree(Env& env, const Tokenizer& tokenizer, const std::string& model_path) {
  if (!CheckReadAsItIs(tokenizer.config(), model_path).ok()) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(std::string content, ReadTokenizerFile(env, model_path));
  if (LooksLikeTiktoken(content)) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(SentencePieceFile model, ParseSentencePiece(content));
  for (size_t id = 0; id < model.pieces.size(); ++id) {
    const std::string piece = model.pieces[id].text;
    const std::optional<std::string> token = tokenizer.TokenOf(static_cast<int32_t>(id));
    if (token != piece) {
      return InvalidError("tokenizer.json and " + BaseName(model_path) + " disagree: the token " +
                          std::to_string(id) + " is " + (token ? Quoted(*token) : "none") +
                          " in one and " + Quoted(piece) +
                          " in the other. hint: take the wrong one out of the folder");
    }
  }
  return OkStatus();
}

/// tokenizer.json, or the SentencePiece model of the same folder when it is not supported.
Result<Tokenizer> FromJsonOrModel(Env& env, const std::string& folder,
                                  const TokenizerConfig& config) {
  std::string model;
  for (const char* name : kModels) {
    if (model.empty() && env.FileExists(JoinPath(folder, name))) model = JoinPath(folder, name);
  }
  Result<Tokenizer> tokenizer = FromFile(env, JoinPath(folder, "tokenizer.json"), config);
  if (model.empty()) return tokenizer;
  if (tokenizer.ok()) {
    WEFT_RETURN_IF_ERROR(CheckAgree(env, *tokenizer, model));
    return tokenizer;
  }
  if (tokenizer.status().kind() != FailureKind::kUnsupported) return tokenizer;
  Result<Tokenizer> other = FromFile(env, model, config);
  if (!other.ok()) return tokenizer;
  return other;
}

}  // namespace

Result<Tokenizer> Tokenizer::Load(Env& env, const std::string& path) {
  auto with_context = [](Result<Tokenizer> tokenizer, const std::string& what) {
    if (tokenizer.ok()) return tokenizer;
    return Result<Tokenizer>(tokenizer.status().WithContext("reading the tokenizer " + what));
  };
  constexpr std::array<const char*, 6> kNames = {"tokenizer.json", "vocab.json", kModels[0],
                                                 kModels[1],       kModels[2],   "vocab.txt"};
  const bool folder = IsFolder(env, path);
  if (!folder && !env.FileExists(path)) {
    return NotFoundError("reading the tokenizer " + path + ": there is no such file or folder" +
                         kHint);
  }
  Result<TokenizerConfig> config = ReadTokenizerConfig(env, folder ? path : DirName(path));
  if (!config.ok()) return config.status().WithContext("reading the tokenizer " + path);
  if (!folder) return with_context(FromFile(env, path, *std::move(config)), path);
  for (std::string_view name : kNames) {
    const std::string file = JoinPath(path, name);
    if (!env.FileExists(file)) continue;
    if (name == "vocab.json") {
      return with_context(FromVocabAndMerges(env, path, *std::move(config)), path);
    }
    if (name == "tokenizer.json") {
      return with_context(FromJsonOrModel(env, path, *config), file);
    }
    return with_context(FromFile(env, file, *std::move(config)), file);
  }
  return InvalidError("reading the tokenizer " + path + ": there is none" + kHint);
}

}  // namespace weft
