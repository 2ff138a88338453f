#include <iostream>
#include <memory>

#include "cli/command.h"
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

}  // namespace

void AddTokenizerCommands(CLI::App& app, Session& session) {
  CLI::App* tokenizer = app.add_subcommand("tokenizer", "Make tokenizers");
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
}

}  // namespace weft::cli
