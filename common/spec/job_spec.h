#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/status.h"

namespace weft {

/// Architecture of the network. Sizes of 0 mean "derive", see each field.
struct ModelSpec {
  std::string family = "gpt2";
  std::string import_path;
  int64_t layers = 6;
  int64_t width = 384;
  int64_t heads = 6;
  int64_t mlp_width = 0;
  int64_t vocab_size = 0;
  int64_t context = 256;
  double dropout = 0.0;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("family", "Architecture.").OneOf({"gpt2"}), self.family);
    visit(Field("import_path",
                "Hugging Face folder (config.json and *.safetensors) to start from; its sizes "
                "replace the ones given here. Empty: start from random weights."),
          self.import_path);
    visit(Field("layers", "Transformer blocks.").Range(1, 1024), self.layers);
    visit(Field("width", "Hidden size; a multiple of heads.").Range(1, 1 << 17), self.width);
    visit(Field("heads", "Attention heads.").Range(1, 1024), self.heads);
    visit(Field("mlp_width", "Inner size of the MLP; 0 means 4 x width.").Range(0, 1 << 20),
          self.mlp_width);
    visit(Field("vocab_size",
                "Rows of the token embedding; 0 means the tokenizer's size rounded up to a "
                "multiple of 64.")
              .Range(0, 1 << 24),
          self.vocab_size);
    visit(Field("context", "Positions the model can attend over.").Unit("tokens").Range(1, 1 << 20),
          self.context);
    visit(Field("dropout", "Probability of dropping residual and embedding activations.")
              .Range(0, 0.9),
          self.dropout);
    visit(Field("norm_epsilon", "Added to the variance in layer norms.").Range(0, 1),
          self.norm_epsilon);
    visit(Field("initializer_range",
                "Standard deviation of initial weights; residual projections get it divided by "
                "the square root of 2 x layers.")
              .Range(0, 10),
          self.initializer_range);
  }
};

struct TokenizerSpec {
  std::string path;
  int64_t vocab_size = 8192;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("path",
                "tokenizer.json, or a folder that holds it or vocab.json and merges.txt. Empty: "
                "train a byte-level BPE on the training text."),
          self.path);
    visit(Field("vocab_size", "Entries of a tokenizer that is trained here.").Range(257, 1 << 20),
          self.vocab_size);
  }
};

/// Where the text comes from and how it becomes training sequences.
struct DataSpec {
  std::vector<std::string> train;
  std::vector<std::string> validation;
  double validation_fraction = 0.05;
  std::string format = "auto";
  std::string text_field = "text";
  std::string document_separator;
  std::string packing = "concatenate";
  bool mask_documents = false;
  TokenizerSpec tokenizer;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("train", "Files with the training text, read in this order.")
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
    visit(Field("format", "Form of the files; auto goes by their names (.jsonl is jsonl).")
              .OneOf({"auto", "text", "jsonl"}),
          self.format);
    visit(Field("text_field", "Key of the text in each JSONL object."), self.text_field);
    visit(Field("document_separator",
                "String between two documents of a text file. Empty: a file is one document."),
          self.document_separator);
    visit(Field("packing",
                "concatenate: cut one endless stream of tokens; best_fit: whole documents packed "
                "into sequences by best-fit decreasing.")
              .OneOf({"concatenate", "best_fit"}),
          self.packing);
    visit(Field("mask_documents", "Attention does not cross the border between two documents."),
          self.mask_documents);
    visit(Field("tokenizer", "How text becomes tokens."), self.tokenizer);
  }
};

struct OptimizerSpec {
  std::string name = "adamw";
  double learning_rate = 3e-4;
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Update rule.").OneOf({"adamw"}), self.name);
    visit(Field("learning_rate", "Peak learning rate.").Range(0, 100), self.learning_rate);
    visit(Field("beta1", "Decay of the first moment.").Range(0, 0.99999), self.beta1);
    visit(Field("beta2", "Decay of the second moment.").Range(0, 0.9999999), self.beta2);
    visit(Field("epsilon", "Added to the root of the second moment.").Range(0, 1), self.epsilon);
    visit(Field("weight_decay", "Decoupled decay of matrices; norms and biases are not decayed.")
              .Range(0, 10),
          self.weight_decay);
  }
};

struct ScheduleSpec {
  std::string kind = "cosine";
  int64_t warmup_steps = 100;
  double final_ratio = 0.1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind", "Shape of the learning rate after warm-up.")
              .OneOf({"constant", "linear", "cosine"}),
          self.kind);
    visit(Field("warmup_steps", "Linear rise from 0 to the peak.").Unit("steps").Range(0, 1e12),
          self.warmup_steps);
    visit(
        Field("final_ratio", "Learning rate at the last step, as a share of the peak.").Range(0, 1),
        self.final_ratio);
  }
};

struct TrainSpec {
  int64_t steps = 1000;
  int64_t global_batch = 32;
  int64_t sequence_length = 0;
  std::string precision = "bf16";
  double gradient_clip_norm = 1.0;
  int64_t seed = 1;
  int64_t eval_every_steps = 100;
  int64_t eval_sequences = 64;
  int64_t log_every_steps = 10;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("steps", "Optimizer steps.").Unit("steps").Range(1, 1e12), self.steps);
    visit(Field("global_batch", "Sequences per optimizer step, over all ranks.")
              .Unit("sequences")
              .Range(1, 1 << 24),
          self.global_batch);
    visit(Field("sequence_length", "Tokens per sequence; 0 means model.context.")
              .Unit("tokens")
              .Range(0, 1 << 20),
          self.sequence_length);
    visit(Field("precision",
                "fp32, or bf16: bf16 activations and matrix products with fp32 master weights.")
              .OneOf({"fp32", "bf16"}),
          self.precision);
    visit(Field("gradient_clip_norm", "Global norm the gradient is clipped to; 0: no clipping.")
              .Range(0, 1e9),
          self.gradient_clip_norm);
    visit(Field("seed", "Seed of initial weights, data order and dropout.").Range(0, 9e15),
          self.seed);
    visit(Field("eval_every_steps", "Validation interval; 0: only at the end.")
              .Unit("steps")
              .Range(0, 1e12),
          self.eval_every_steps);
    visit(Field("eval_sequences", "Sequences per validation; 0: the whole validation set.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.eval_sequences);
    visit(Field("log_every_steps", "Interval of progress lines in the log.")
              .Unit("steps")
              .Range(1, 1e12),
          self.log_every_steps);
  }
};

struct CheckpointSpec {
  int64_t every_steps = 100;
  int64_t keep_last = 3;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("every_steps", "Interval between checkpoints; 0: only at the end.")
              .Unit("steps")
              .Range(0, 1e12),
          self.every_steps);
    visit(Field("keep_last", "Verified checkpoints kept; older ones are deleted.").Range(1, 1e6),
          self.keep_last);
  }
};

/// What the job may use, and what the planner must respect. 0 and "auto" leave the choice to it.
struct ResourceSpec {
  int64_t ranks = 0;
  int64_t threads_per_rank = 0;
  int64_t memory_per_rank_bytes = 0;
  int64_t micro_batch = 0;
  std::string recompute = "auto";

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("ranks", "Rank processes; 0: the planner chooses.").Range(0, 1 << 20), self.ranks);
    visit(Field("threads_per_rank", "Compute threads of a rank; 0: the planner chooses.")
              .Range(0, 4096),
          self.threads_per_rank);
    visit(Field("memory_per_rank_bytes", "Upper bound for a rank; 0: what its worker offers.")
              .Unit("bytes")
              .Range(0, 9e15),
          self.memory_per_rank_bytes);
    visit(Field("micro_batch", "Sequences per forward and backward pass; 0: the planner chooses.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.micro_batch);
    visit(Field("recompute",
                "Activations recomputed in the backward pass: none, block (each block keeps its "
                "input only), or auto.")
              .OneOf({"auto", "none", "block"}),
          self.recompute);
  }
};

struct RetrySpec {
  int64_t max_attempts = 10;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("max_attempts", "Attempts until the job has failed for good.").Range(1, 1000),
          self.max_attempts);
  }
};

/// Everything the user says about a job. Says what to train, never how (that is the Plan).
struct JobSpec {
  std::string name;
  ModelSpec model;
  DataSpec data;
  OptimizerSpec optimizer;
  ScheduleSpec schedule;
  TrainSpec train;
  CheckpointSpec checkpoint;
  ResourceSpec resources;
  RetrySpec retry;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Name for people: lower-case letters, digits and dashes.")
              .Required()
              .Range(1, 63),
          self.name);
    visit(Field("model", "Architecture."), self.model);
    visit(Field("data", "Text and tokens.").Required(), self.data);
    visit(Field("optimizer", "Update rule."), self.optimizer);
    visit(Field("schedule", "Learning rate over time."), self.schedule);
    visit(Field("train", "Length, batch, precision, evaluation."), self.train);
    visit(Field("checkpoint", "When to save and what to keep."), self.checkpoint);
    visit(Field("resources", "Limits and wishes for the plan."), self.resources);
    visit(Field("retry", "What happens after failures."), self.retry);
  }
};

/// What single fields cannot say: width divides by heads, warm-up shorter than training, name's
/// alphabet, sequence length within the context. kInvalid names the fields.
Status ValidateJob(const JobSpec& job);

/// Tokens per sequence, with the default resolved.
inline int64_t SequenceLength(const JobSpec& job) {
  return job.train.sequence_length > 0 ? job.train.sequence_length : job.model.context;
}

/// Inner size of the MLP, with the default resolved.
inline int64_t MlpWidth(const ModelSpec& model) {
  return model.mlp_width > 0 ? model.mlp_width : 4 * model.width;
}

}  // namespace weft
