#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"

namespace weft {

struct TokenizerSpec {
  std::string path;
  int64_t vocab_size = 8192;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field(
            "path",
            "tokenizer.json, a SentencePiece .model, a tiktoken file, a WordPiece vocab.txt, or a "
            "folder that holds one of them or vocab.json and merges.txt. Empty: train a "
            "byte-level BPE on the training text."),
        self.path);
    visit(Field("vocab_size", "Entries of a tokenizer that is trained here.").Range(257, 1 << 20),
          self.vocab_size);
  }
};

/// Which tokens a masked language model has to predict, and what it sees in their place.
struct MaskingSpec {
  double probability = 0.15;
  double mask_share = 0.8;
  double random_share = 0.1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("probability", "Share of the tokens to predict, drawn anew in each epoch.")
              .Range(0, 1),
          self.probability);
    visit(Field("mask_share", "Of these, the share replaced by the mask token.").Range(0, 1),
          self.mask_share);
    visit(Field("random_share", "Of these, the share replaced by a random token; the rest stays.")
              .Range(0, 1),
          self.random_share);
  }
};

/// Where the data come from and how they become training sequences.
struct DataSpec {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  double validation_fraction = 0.05;
  std::string format = "auto";
  std::string text_field = "text";
  std::string document_separator;
  std::string batching = "concatenate";
  bool mask_documents = false;
  TokenizerSpec tokenizer;
  std::string second_text_field;
  std::string label_field = "label";
  MaskingSpec masking;
  double pixel_mean = 0.5;
  double pixel_deviation = 0.5;
  std::string bad_lines = "fail";
  std::string special_tokens = "text";
  std::string chat_template;
  std::string loss_on = "all";

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("train",
                "Files with the training text, read in this order; a folder stands for its files, "
                "sorted. The command line expands ~, $NAME and patterns with *, ? and [...].")
              .Required()
              .Range(1, 100000),
          self.train);
    visit(Field("validation",
                "Files with the validation text. Empty: validation_fraction of the training "
                "documents is held out."),
          self.validation);
    visit(Field("validation_fraction", "Share of the training tokens held out, from the end.")
              .Range(0, 0.5),
          self.validation_fraction);
    visit(Field("format",
                "Form of the files; auto goes by their content and names, and refuses what is in "
                "doubt. text; jsonl (a JSON object a line); json (an array of objects); token "
                "files of llm.c (llmc), nanoGPT (nanogpt) and Megatron (megatron, the .idx); "
                "images as IDX pairs (idx, the images file) or folders of a class each "
                "(image_folder). JSON lines or arrays for instruction tuning: conversations under "
                "messages (chat); prompt and completion (prompt_completion); instruction, input "
                "and output (alpaca); prompt, chosen and rejected (preference).")
              .OneOf({"auto", "text", "jsonl", "json", "llmc", "nanogpt", "megatron", "idx",
                      "image_folder", "chat", "prompt_completion", "alpaca", "preference"}),
          self.format);
    visit(Field("text_field", "Key of the text in each JSON object."), self.text_field);
    visit(Field("document_separator",
                "String between two documents of a text file. Empty: a file is one document."),
          self.document_separator);
    visit(Field("batching",
                "concatenate: cut one endless stream of tokens; best_fit: whole documents packed "
                "into sequences by best-fit decreasing; pad_fixed: a document a sequence, padded "
                "to the full length; pad_dynamic: padded to the longest of its micro-batch; "
                "pad_uniform: the same with documents of about equal length put together.")
              .OneOf({"concatenate", "best_fit", "pad_fixed", "pad_dynamic", "pad_uniform"}),
          self.batching);
    visit(Field("mask_documents", "Attention does not cross the border between two documents."),
          self.mask_documents);
    visit(Field("tokenizer", "How text becomes tokens."), self.tokenizer);
    visit(Field("second_text_field", "Key of the second text of a pair; empty: single texts."),
          self.second_text_field);
    visit(Field("label_field",
                "Key of the class (a number, a boolean or a name) of each JSON object."),
          self.label_field);
    visit(Field("masking", "What a masked language model predicts."), self.masking);
    visit(Field("pixel_mean", "Subtracted from pixels, which lie in 0 to 1.").Range(-10, 10),
          self.pixel_mean);
    visit(Field("pixel_deviation", "Divides pixels after that.").Range(1e-6, 1e6),
          self.pixel_deviation);
    visit(Field("bad_lines",
                "What a line that cannot be used (broken JSON, no text, no label) does: fail stops "
                "the job, skip leaves the line out and counts it.")
              .OneOf({"fail", "skip"}),
          self.bad_lines);
    visit(Field("special_tokens",
                "What a special token that is spelled out in a text (<|endoftext|>) becomes: text "
                "as any other, or, with parse, the token; for text that is trusted.")
              .OneOf({"text", "parse"}),
          self.special_tokens);
    visit(Field("chat_template",
                "Jinja template that turns a conversation into text, or the path of a file that "
                "holds it (chat). Empty: that of the tokenizer's folder (chat_template.jinja, or "
                "in tokenizer_config.json), or else ChatML."),
          self.chat_template);
    visit(Field("loss_on",
                "Which tokens the loss counts: all, or completions: what the assistant says in "
                "chats, completions and outputs (chat, prompt_completion, alpaca).")
              .OneOf({"all", "completions"}),
          self.loss_on);
  }
};

}  // namespace weft
