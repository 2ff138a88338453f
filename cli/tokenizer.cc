#include <iostream>
#include <memory>
#include <optional>
#include <span>

#include "cli/command.h"
#include "common/formats/tokenizer.h"
#include "common/formats/tokenizer_training.h"

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

ExitCode Info(const Session& session, const std::string& path) {
  auto tokenizer = Tokenizer::Load(Env::Posix(), path);
  if (!tokenizer.ok()) return Fail(session, tokenizer.status());
  auto spelling = [&](std::optional<int32_t> id) {
    return id ? tokenizer->Decode(std::span(&*id, 1)).value() : std::string();
  };
  const Json json = {{"kind", tokenizer->kind()},
                     {"vocab_size", tokenizer->vocab_size()},
                     {"special_tokens", tokenizer->special_tokens().size()},
                     {"end_of_text", spelling(tokenizer->end_of_text())},
                     {"mask", spelling(tokenizer->mask())},
                     {"padding", spelling(tokenizer->padding())},
                     {"hash", tokenizer->hash()}};
  if (session.output == OutputFormat::kJson) {
    std::cout << json.dump(2) << '\n';
    return ExitCode::kOk;
  }
  for (const auto& [key, value] : json.items()) {
    std::cout << key << ": " << (value.is_string() ? value.get<std::string>() : value.dump())
              << '\n';
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
  auto path = std::make_shared<std::string>();
  CLI::App* info = AddCommand(*tokenizer, session, "info", "Say what a tokenizer is",
                              [&session, path] { return Info(session, *path); });
  info->add_option("path", *path,
                   "tokenizer.json, SentencePiece .model, tiktoken file, vocab.txt, or a folder")
      ->required();
}

}  // namespace weft::cli
