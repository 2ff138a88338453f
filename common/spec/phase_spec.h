#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/spec_json_fwd.h"

namespace weft {

/// The choices of phases[].growth.method.
std::span<const std::string_view> GrowthMethods();

/// How the model of a phase is made from that of the phase before it.
struct GrowthSpec {
  std::string method = "none";
  double alpha = 0.5;
  std::string depth_order = "adjacent";
  std::string new_blocks = "copy";
  std::string optimizer_state = "auto";
  bool freeze_old = false;
  int64_t ramp_steps = 0;
  int64_t rewarm_steps = 0;
  double rewarm_peak = 1.3;
  int64_t fit_steps = 100;
  double fit_learning_rate = 1e-3;

  bool operator==(const GrowthSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("method",
                "none: the model stays as it is. coalesce: a smaller one whose neurons and blocks "
                "are means of several; decoalesce: back to the larger one, whose weights of before "
                "are mixed with copies of the small one's (multi-level training, Zou et al. 2024, "
                "arXiv 2404.07999). stack: more blocks, copies of those there are (Gong et al. "
                "2019; Du et al. 2024, arXiv 2405.15319) or new ones. fpi: more columns, copies "
                "that share their inputs, so that the function stays; aki: the same with rows of "
                "the next block (bert2BERT, Chen et al. 2022, arXiv 2110.07143). msg: larger, with "
                "masks that hide at first what is new (masked structural growth, Yao et al. 2024, "
                "arXiv 2305.02869). ligo: larger, by an operator that is learned (LiGO, Wang et "
                "al. 2023, arXiv 2303.00980). sparkling: wider, by copies whose sums keep their "
                "root mean square (Yu et al. 2026, arXiv 2602.02472).")
              .OneOf(GrowthMethods()),
          self.method);
    visit(Field("alpha", "Share of the small model in the mixture (decoalesce).").Range(0, 1),
          self.alpha);
    visit(Field("depth_order",
                "Which blocks belong together. adjacent: neighbours, so that copies are next to "
                "each other; stacked: a copy of all blocks after the last one.")
              .OneOf({"adjacent", "stacked"}),
          self.depth_order);
    visit(Field("new_blocks",
                "What blocks that are added start as: copies of others, random, copies that end in "
                "zeros and so change nothing (identity; LLaMA-Pro, Wu et al. 2024, arXiv "
                "2401.02415), or copies of the averaged weights of train.averaging (MoGrow, Li et "
                "al. 2022).")
              .OneOf({"copy", "random", "identity", "averaged"}),
          self.new_blocks);
    visit(Field("optimizer_state",
                "kept: grows with the parameters; new: zero; asymmetric: kept where a weight was "
                "there before, zero where it was added; auto: kept by fpi and msg, asymmetric by "
                "sparkling.")
              .OneOf({"auto", "kept", "new", "asymmetric"}),
          self.optimizer_state);
    visit(Field("freeze_old",
                "Trains the blocks that are added alone: all that was there stays as it is (stack; "
                "LLaMA-Pro, Wu et al. 2024, arXiv 2401.02415)."),
          self.freeze_old);
    visit(Field("ramp_steps",
                "Steps over which what was added rises from no effect to all of it (msg).")
              .Unit("steps")
              .Range(0, 1e12),
          self.ramp_steps);
    visit(Field("rewarm_steps",
                "Steps over which the updates of what was added rise to rewarm_peak times those of "
                "what was there, and then as many back to once; 0: all have the same (sparkling).")
              .Unit("steps")
              .Range(0, 1e12),
          self.rewarm_steps);
    visit(Field("rewarm_peak", "That factor after rewarm_steps.").Range(1, 100), self.rewarm_peak);
    visit(Field("fit_steps", "Steps that learn the operator before the phase begins (ligo).")
              .Unit("steps")
              .Range(1, 1e6),
          self.fit_steps);
    visit(Field("fit_learning_rate", "Learning rate of these steps.").Range(0, 100),
          self.fit_learning_rate);
  }
};

/// The automated choice of a phase's size (AutoProg, Li et al. 2022, arXiv 2203.14509).
struct PhaseSearchSpec {
  int64_t steps = 0;
  std::vector<int64_t> layers;
  std::vector<int64_t> image_sizes;

  bool operator==(const PhaseSearchSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("steps",
                "The phase's first steps, which train an elastic network of all choices, one drawn "
                "for each step; then the best of them for its FLOPs is trained on. 0: no choice.")
              .Unit("steps")
              .Range(0, 1e9),
          self.steps);
    visit(Field("layers",
                "Numbers of blocks to choose from, the largest that of the phase; empty: all have "
                "those of the phase. With image_sizes there are three or more choices: each number "
                "of blocks with each size.")
              .Range(0, 16),
          self.layers);
    visit(Field("image_sizes",
                "Sides of images to choose from (vit), the largest that of the phase; empty: all "
                "have that of the phase.")
              .Unit("pixels")
              .Range(0, 16),
          self.image_sizes);
  }
};

/// Part of a training, with a model and a schedule of its own or its part of one for all phases.
/// What it leaves out is as in the job.
struct PhaseSpec {
  std::string name;
  int64_t steps = 0;
  int64_t layers = -1;
  int64_t width = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t mlp_width = 0;
  int64_t sequence_length = 0;
  int64_t image_size = 0;
  int64_t sampled_layers = 0;
  int64_t global_batch = 0;
  double learning_rate = 0;
  int64_t warmup_steps = -1;
  std::string schedule;
  GrowthSpec growth;
  PhaseSearchSpec search;

  bool operator==(const PhaseSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Name for people; empty: its number, from 1.").Range(0, 63), self.name);
    visit(Field("steps", "Optimizer steps.").Required().Unit("steps").Range(1, 1e12), self.steps);
    visit(Field("layers",
                "Transformer blocks; 0: none, the embedding and the classifier alone; -1: "
                "model.layers.")
              .Range(-1, 1024),
          self.layers);
    visit(Field("width", "Hidden size; 0: model.width.").Range(0, 1 << 17), self.width);
    visit(Field("heads", "Attention heads; 0: as many as leave the columns of a head as they are.")
              .Range(0, 1024),
          self.heads);
    visit(
        Field("kv_heads", "Heads of keys and values; 0: model.kv_heads in the proportion of heads.")
            .Range(0, 1024),
        self.kv_heads);
    visit(
        Field("mlp_width", "Inner size of the MLP; 0: model.mlp_width in the proportion of width.")
            .Range(0, 1 << 20),
        self.mlp_width);
    visit(Field("sequence_length", "Tokens per sequence; 0: train.sequence_length.")
              .Unit("tokens")
              .Range(0, 1 << 20),
          self.sequence_length);
    visit(Field("image_size", "Side of the images (vit); 0: model.image_size.")
              .Unit("pixels")
              .Range(0, 1 << 14),
          self.image_size);
    visit(Field("sampled_layers",
                "Most layers of a step, drawn anew for each, that share the phase's blocks; 0: "
                "train.sampled_layers.")
              .Range(0, 1024),
          self.sampled_layers);
    visit(Field("global_batch", "Sequences per optimizer step; 0: train.global_batch.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.global_batch);
    visit(Field("learning_rate", "Peak; 0: optimizer.learning_rate.").Range(0, 100),
          self.learning_rate);
    visit(Field("warmup_steps", "Rise from 0 to the peak; -1: schedule.warmup_steps.")
              .Unit("steps")
              .Range(-1, 1e12),
          self.warmup_steps);
    visit(Field("schedule",
                "Shape of the learning rate after it; empty: schedule.kind. continued: this part "
                "of one schedule over the steps of all phases, that of the job.")
              .OneOf({"", "constant", "linear", "cosine", "inverse_sqrt", "warmup_stable_decay",
                      "continued"}),
          self.schedule);
    visit(Field("growth", "How its model is made from that of the phase before."), self.growth);
    visit(Field("search", "Choice of its size by training."), self.search);
  }
};
WEFT_SPEC_JSON(extern, PhaseSpec);

}  // namespace weft
