#include <unistd.h>

#include <iostream>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/terminal_text.h"
#include "common/formats/tokenizer.h"
#include "common/formats/tokenizer_training.h"
#include "common/json.h"

namespace weft::cli {
namespace {

struct TrainOptions {
  std::vector<std::string> files;
  int64_t vocab_size = 8192;
  std::string output;
  DocumentOptions documents;
};

ExitCode Train(const Session& session, const TrainOptions& options) {
  auto tokenizer = TrainTokenizerToFolder(Env::Posix(), options.files, options.documents,
                                          options.vocab_size, options.output);
  if (!tokenizer.ok()) return Fail(session, tokenizer.status());
  std::string path = JoinPath(options.output, "tokenizer.json");
  if (session.output == OutputFormat::kJson) {
    std::cout << Json{{"path", path}, {"vocab_size", tokenizer->vocab_size()}}.dump(2) << '\n';
  } else {
    std::cout << path << ": " << tokenizer->vocab_size() << " tokens\n";
  }
  return ExitCode::kOk;
}

struct TextOptions {
  std::string path;
  bool jsonl = false;
  bool add_special = false;
  bool parse_special = false;
};

/// Reads standard input line by line; `each` writes what becomes of one. Stops at the first error,
/// which is reported with the number of its line.
template <class Each>
ExitCode ForEachLine(const Session& session, Each&& each) {
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (Status status = each(line); !status.ok()) {
      std::cout << std::flush;
      return Fail(session, status.WithContext("line " + std::to_string(number)));
    }
  }
  std::cout << std::flush;
  return ExitCode::kOk;
}

Status EncodeLine(const Tokenizer& tokenizer, const TextOptions& options, std::string line) {
  if (options.jsonl) {
    WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(line));
    if (!json.is_string()) return InvalidError("it is not a JSON string");
    line = json.get<std::string>();
  }
  const SequenceForm& form = tokenizer.model_form(/*pair=*/false);
  std::vector<int32_t> ids;
  if (options.add_special) ids.assign(form.begin.begin(), form.begin.end());
  WEFT_RETURN_IF_ERROR(tokenizer.Encode(
      line, ids, options.parse_special ? SpecialTokens::kAsTokens : SpecialTokens::kAsText));
  if (options.add_special) ids.insert(ids.end(), form.end.begin(), form.end.end());
  std::cout << Json(ids).dump() << '\n';
  return OkStatus();
}

Status DecodeLine(const Tokenizer& tokenizer, const TextOptions& options, const std::string& line) {
  WEFT_ASSIGN_OR_RETURN(Json json, ParseJson(line));
  if (!json.is_array()) return InvalidError("it is not a JSON list of ids");
  std::vector<int32_t> ids;
  for (const Json& id : json) {
    if (!id.is_number_integer() || id < 0 || id > kMaxTokenId) {
      return InvalidError("the list holds " + id.dump() + ", which is no token id");
    }
    ids.push_back(id.get<int32_t>());
  }
  WEFT_ASSIGN_OR_RETURN(std::string text, tokenizer.Decode(ids));
  if (options.jsonl) text = Quoted(text);
  std::cout << (isatty(STDOUT_FILENO) != 0 ? ForTerminal(text) : text) << '\n';
  return OkStatus();
}

ExitCode EncodeText(const Session& session, const TextOptions& options) {
  auto tokenizer = Tokenizer::Load(Env::Posix(), options.path);
  if (!tokenizer.ok()) return Fail(session, tokenizer.status());
  return ForEachLine(
      session, [&](const std::string& line) { return EncodeLine(*tokenizer, options, line); });
}

ExitCode DecodeIds(const Session& session, const TextOptions& options) {
  auto tokenizer = Tokenizer::Load(Env::Posix(), options.path);
  if (!tokenizer.ok()) return Fail(session, tokenizer.status());
  return ForEachLine(
      session, [&](const std::string& line) { return DecodeLine(*tokenizer, options, line); });
}

ExitCode Info(const Session& session, const std::string& path) {
  auto tokenizer = Tokenizer::Load(Env::Posix(), path);
  if (!tokenizer.ok()) return Fail(session, tokenizer.status());
  auto spelling = [&](std::optional<int32_t> id) {
    return id ? tokenizer->Decode(std::span(&*id, 1)).value() : std::string();
  };
  const Json json = {{"kind", tokenizer->kind()},
                     {"vocab_size", tokenizer->vocab_size()},
                     {"special_tokens", tokenizer->special_tokens().size()},
                     {"begin_of_text", spelling(tokenizer->roles().begin)},
                     {"end_of_text", spelling(tokenizer->end_of_text())},
                     {"mask", spelling(tokenizer->mask())},
                     {"padding", spelling(tokenizer->padding())},
                     {"hash", tokenizer->hash()}};
  if (session.output == OutputFormat::kJson) {
    std::cout << json.dump(2) << '\n';
    return ExitCode::kOk;
  }
  for (const auto& [key, value] : json.items()) {
    std::cout << key << ": "
              << (value.is_string() ? ForOneLine(value.get<std::string>()) : value.dump()) << '\n';
  }
  return ExitCode::kOk;
}

}  // namespace

void AddTokenizerCommands(CLI::App& app, Session& session) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Make and inspect tokenizers");
  tokenizer->require_subcommand(1);
  auto options = std::make_shared<TrainOptions>();
  CLI::App* train = AddCommand(*tokenizer, session, "train", "Train a byte-level BPE on text",
                               [&session, options] { return Train(session, *options); });
  train->add_option("files", options->files, "Text or JSONL files")->required();
  train->add_option("--vocab-size", options->vocab_size, "Tokens, at least 257")
      ->capture_default_str();
  train->add_option("--output", options->output, "Folder for tokenizer.json")->required();
  train->add_option("--format", options->documents.format, "auto, text or jsonl")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  train->add_option("--text-field", options->documents.text_field, "Key of the text in JSONL")
      ->capture_default_str();
  constexpr const char* kPathHelp =
      "tokenizer.json, SentencePiece .model, ranks of tiktoken, vocab.txt, or a folder";
  auto path = std::make_shared<std::string>();
  CLI::App* info = AddCommand(*tokenizer, session, "info", "Say what a tokenizer is",
                              [&session, path] { return Info(session, *path); });
  info->add_option("path", *path, kPathHelp)->required();
  auto text = std::make_shared<TextOptions>();
  CLI::App* encode =
      AddCommand(*tokenizer, session, "encode",
                 "Print the ids of each line of standard input, as a JSON list a line",
                 [&session, text] { return EncodeText(session, *text); });
  encode->add_option("path", text->path, kPathHelp)->required();
  encode->add_flag("--jsonl", text->jsonl, "Each line is a JSON string");
  encode->add_flag("--add-special", text->add_special,
                   "Add the tokens that the tokenizer puts around a text for a model");
  encode->add_flag("--parse-special", text->parse_special,
                   "Read special tokens that are spelled in the text");
  auto ids = std::make_shared<TextOptions>();
  CLI::App* decode = AddCommand(*tokenizer, session, "decode",
                                "Print the text of each JSON list of ids, a line of standard input",
                                [&session, ids] { return DecodeIds(session, *ids); });
  decode->add_option("path", ids->path, kPathHelp)->required();
  decode->add_flag("--jsonl", ids->jsonl, "Print JSON strings");
}

}  // namespace weft::cli
