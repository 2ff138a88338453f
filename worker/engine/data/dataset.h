#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/env.h"
#include "common/formats/sequence_form.h"
#include "common/spec/field.h"
#include "worker/engine/data/token_shard.h"

namespace weft::engine {

/// What dataset.json in a prepared folder says.
struct DatasetInfo {
  int64_t version = 3;
  std::string tokenizer_file;
  int64_t vocab_size = 0;
  int64_t end_of_text = -1;
  int64_t padding = 0;
  int64_t mask = -1;
  std::vector<int64_t> special_tokens;
  SequenceForm form;
  bool labels = false;
  bool answers = false;
  std::vector<std::string> classes;
  int64_t image_size = 0;
  int64_t image_channels = 0;
  std::string tokenizer_hash;
  int64_t train_tokens = 0;
  int64_t train_documents = 0;
  int64_t validation_tokens = 0;
  int64_t validation_documents = 0;
  bool validation_file = false;
  double unigram_entropy_nats = 0;
  int64_t skipped_lines = 0;
  std::string first_skipped_line;
  int64_t spelled_special_tokens = 0;
  std::string spelled_example;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("version", "Version of this form.").Range(3, 3).Required(), self.version);
    visit(Field("tokenizer_file", "Name of the tokenizer's file; empty: there is none."),
          self.tokenizer_file);
    visit(Field("vocab_size", "Tokens of the tokenizer.").Range(1, 1 << 24).Required(),
          self.vocab_size);
    visit(Field("end_of_text", "Id of the token after each document; -1: there is none.")
              .Range(-1, 1 << 24),
          self.end_of_text);
    visit(Field("padding", "Id of the token that fills up rows.").Range(0, 1 << 24), self.padding);
    visit(
        Field("mask", "Id of the token that hides another; -1: there is none.").Range(-1, 1 << 24),
        self.mask);
    visit(Field("special_tokens", "Ids of the tokens that are no text."), self.special_tokens);
    visit(Field("form", "Special tokens around each document."), self.form);
    visit(Field("labels", "Each document has one, in *.labels."), self.labels);
    visit(Field("answers", "The loss counts the tokens of answers alone, which *.answers marks."),
          self.answers);
    visit(Field("classes", "Names of the labels, by number."), self.classes);
    visit(Field("image_size",
                "Side of the images, which then are the documents, a token a byte; "
                "0: text.")
              .Unit("pixels"),
          self.image_size);
    visit(Field("image_channels", "Colours of the images."), self.image_channels);
    visit(Field("tokenizer_hash", "Content hash of the tokenizer's file.").Range(32, 32).Required(),
          self.tokenizer_hash);
    visit(Field("train_tokens", "Tokens to train on, from the start of train.tokens.")
              .Range(0, 9e15)
              .Required(),
          self.train_tokens);
    visit(Field("train_documents", "Documents they come from."), self.train_documents);
    visit(Field("validation_tokens", "Tokens held out.").Range(0, 9e15).Required(),
          self.validation_tokens);
    visit(Field("validation_documents", "Documents they come from."), self.validation_documents);
    visit(Field("validation_file",
                "They are in validation.tokens; otherwise after the training tokens."),
          self.validation_file);
    visit(Field("unigram_entropy_nats",
                "Cross entropy of the validation tokens under the add-one smoothed frequencies of "
                "the training tokens: the loss of a model that knows no context.")
              .Unit("nats/token"),
          self.unigram_entropy_nats);
    visit(Field("skipped_lines", "Documents left out because they cannot be used."),
          self.skipped_lines);
    visit(Field("first_skipped_line", "Why the first of them was."), self.first_skipped_line);
    visit(Field("spelled_special_tokens", "Special tokens that the texts spell out."),
          self.spelled_special_tokens);
    visit(Field("spelled_example", "The first of them."), self.spelled_example);
  }
};

/// A run of tokens of a shard, with the documents in it.
struct TokenSpan {
  std::shared_ptr<const TokenShard> shard;
  std::shared_ptr<const TokenShard> labels;  ///< A class for each document of `shard`, or null.
  uint64_t first = 0;
  uint64_t count = 0;
  /// 1 for each token of `shard` that is a target, else 0; null: all are.
  std::shared_ptr<const TokenShard> answers = nullptr;

  /// Borders of documents relative to `first`: 0, the starts within the span, and `count`. A
  /// document that the span cuts counts as one of its own.
  std::vector<uint64_t> DocumentStarts() const;
};

/// A prepared dataset. Immutable, so thread-safe.
struct Dataset {
  std::string folder;
  DatasetInfo info;
  TokenSpan train;
  TokenSpan validation;     ///< count 0 when there is none.
  std::string fingerprint;  ///< Equal for equal tokens and split, wherever they were prepared.

  /// Empty when there is none: images, and tokens from elsewhere.
  std::string TokenizerPath() const {
    return info.tokenizer_file.empty() ? "" : JoinPath(folder, info.tokenizer_file);
  }
};

/// Opens a folder that PrepareDataset made and verifies its hashes. kCorrupt when it is damaged.
Result<Dataset> OpenDataset(Env& env, const std::string& folder);

}  // namespace weft::engine
