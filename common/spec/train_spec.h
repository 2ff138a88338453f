#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/model_spec.h"
#include "common/spec/precision_names.h"
#include "common/spec/spec_json_fwd.h"

namespace weft {

/// Keeps fp16 gradients in range: the loss is multiplied by a scale that follows overflows.
struct LossScalingSpec {
  double initial = 65536.0;
  double growth = 2.0;
  double backoff = 0.5;
  int64_t growth_interval = 2000;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("initial", "First scale.").Range(1, 1e38), self.initial);
    visit(Field("growth", "Factor after growth_interval steps without overflow.").Range(1, 1024),
          self.growth);
    visit(Field("backoff", "Factor after an overflow.").Range(1e-6, 1), self.backoff);
    visit(Field("growth_interval", "Steps without overflow before the scale grows.")
              .Unit("steps")
              .Range(1, 1e12),
          self.growth_interval);
  }
};

/// How numbers are scaled to the range of FP8.
struct Fp8Spec {
  std::string scaling = "delayed";
  std::string formats = "hybrid";
  int64_t history = 1024;
  int64_t margin = 0;
  int64_t bf16_first_blocks = 0;
  int64_t bf16_last_blocks = 0;

  bool operator==(const Fp8Spec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("scaling",
                "Of activations and their gradients. delayed: by the largest magnitude of the last "
                "history steps, over all ranks; current: by that of each tensor, in one pass more.")
              .OneOf({"delayed", "current"}),
          self.scaling);
    visit(Field("formats",
                "hybrid: gradients of activations are E5M2, all else E4M3; e4m3: all is E4M3.")
              .OneOf({"hybrid", "e4m3"}),
          self.formats);
    visit(Field("history", "Steps whose largest magnitudes count (delayed).")
              .Unit("steps")
              .Range(1, 1 << 20),
          self.history);
    visit(Field("margin", "Powers of two left free above the largest magnitude.").Range(0, 32),
          self.margin);
    visit(Field("bf16_first_blocks", "Blocks at the beginning whose products stay bf16.")
              .Range(0, 1 << 20),
          self.bf16_first_blocks);
    visit(
        Field("bf16_last_blocks", "Blocks at the end whose products stay bf16.").Range(0, 1 << 20),
        self.bf16_last_blocks);
  }
};

/// Averaged weights, which are then the ones evaluated and exported.
struct AveragingSpec {
  std::string kind = "none";
  double decay = 0.999;
  int64_t every_steps = 1;
  int64_t window = 10;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind", "ema: exponential moving average; lawa: mean of the last window snapshots.")
              .OneOf({"none", "ema", "lawa"}),
          self.kind);
    visit(Field("decay", "Weight of the old average in each update (ema).").Range(0, 1),
          self.decay);
    visit(Field("every_steps", "Steps between updates or snapshots.").Unit("steps").Range(1, 1e12),
          self.every_steps);
    visit(Field("window", "Snapshots kept (lawa).").Range(1, 1000), self.window);
  }
};

/// Training of a part of the weights of each matrix; the others are zero (unstructured sparsity).
struct PruningSpec {
  std::string method = "none";
  double density = 0.2;
  std::string distribution = "uniform";
  std::vector<std::string> layers;
  int64_t interval = 100;
  double drop_rate = 0.3;
  double stop_ratio = 0.75;
  int64_t rounds = 0;
  int64_t rewind_step = 0;
  std::string products = "auto";
  std::string restart = "rewind";

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("method",
                "How weights are chosen. Before the first step: random, magnitude, snip, grasp, "
                "synflow; again and again while training: set, rigl; after each of several "
                "trainings that begin anew: lottery_ticket.")
              .OneOf({"none", "random", "magnitude", "snip", "grasp", "synflow", "set", "rigl",
                      "lottery_ticket"}),
          self.method);
    visit(Field("density", "Share of the weights that is kept.").Range(1e-4, 1), self.density);
    visit(
        Field("distribution",
              "Of the kept weights over the matrices. uniform: the same share of each; erk: more "
              "of small ones (Erdos-Renyi); global: the best of all matrices together (magnitude, "
              "snip, grasp, synflow, lottery_ticket).")
            .OneOf({"uniform", "erk", "global"}),
        self.distribution);
    visit(Field("layers",
                "Name patterns (with *) of the matrices; empty: every trained one of the blocks."),
          self.layers);
    visit(Field("interval", "Steps between two exchanges of weights (set, rigl).")
              .Unit("steps")
              .Range(1, 1e12),
          self.interval);
    visit(
        Field("drop_rate",
              "Share of the kept weights that the first exchange drops and grows elsewhere; falls "
              "to 0 as a cosine (set, rigl).")
            .Range(0, 1),
        self.drop_rate);
    visit(Field("stop_ratio", "Share of the steps after which nothing is exchanged (set, rigl).")
              .Range(0, 1),
          self.stop_ratio);
    visit(Field("rounds",
                "Rounds in which the density falls to its end (synflow, lottery_ticket). 0: 100 of "
                "synflow; of lottery_ticket as many as prune 20 % each.")
              .Range(0, 1e4),
          self.rounds);
    visit(Field("rewind_step",
                "Step to which each round goes back, with the weights that its first training had "
                "there (lottery_ticket).")
              .Unit("steps")
              .Range(0, 1e12),
          self.rewind_step);
    visit(Field("products",
                "dense: matrix products multiply by zeros too; sparse: by the kept weights alone, "
                "on a GPU by cuSPARSE; auto: sparse on a CPU without AMX in fp32 where at most 0.3 "
                "of a matrix is kept.")
              .OneOf({"auto", "dense", "sparse"}),
          self.products);
    visit(Field("restart",
                "What the last round begins with under its mask (lottery_ticket). rewind: the "
                "weights that all rounds go back to; reinitialize: new random ones, the control "
                "that a ticket is compared with.")
              .OneOf({"rewind", "reinitialize"}),
          self.restart);
  }
};

/// What happens when the loss is not finite or jumps. Decided by all ranks together.
struct GuardSpec {
  double spike_deviations = 0.0;
  int64_t window = 100;
  int64_t skips_before_rollback = 3;
  int64_t max_rollbacks = 3;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("spike_deviations",
                "A loss this many standard deviations above the mean of the window is a spike, and "
                "its update is skipped; 0: only a loss that is not finite is.")
              .Range(0, 1e9),
          self.spike_deviations);
    visit(Field("window", "Steps over which mean and deviation are taken.")
              .Unit("steps")
              .Range(2, 1e6),
          self.window);
    visit(Field("skips_before_rollback",
                "Skipped steps in a row after which training goes back to the last checkpoint and "
                "leaves out the data in between.")
              .Range(1, 1e6),
          self.skips_before_rollback);
    visit(Field("max_rollbacks", "Of a job, before it fails.").Range(0, 1e6), self.max_rollbacks);
  }
};

/// The weights of MLPs are 2:4 sparse (two of four neighbours count) in training (Hu et al. 2024,
/// arXiv 2404.01847).
struct SparsitySpec {
  std::string method = "none";
  double decay = 6e-5;
  int64_t mask_interval = 40;
  double dense_share = 0.1667;
  std::string gradient_estimate = "minimum_variance";
  bool require = false;
  int64_t decay_search_steps = 0;
  double switch_share = 0.0;
  int64_t adapter_rank = 0;
  double adapter_share = 0.01;

  bool operator==(const SparsitySpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field("method",
              "none; masked_decay: transposable masks, and a decay in the gradients of the weights "
              "that they leave out; sr_ste: masks of rows, and a decay of these weights besides "
              "the optimizer; s_ste: the two largest of four weights in a row less the third, "
              "times a scale, never dense; step: dense at first, then as sr_ste with the second "
              "moments of Adam as they are; static: transposable masks of the first weights; "
              "slope: masks of their rows, pruned again for the gradient of the input, never "
              "dense; activations: two of four activations instead, for squared ReLUs; measure: "
              "dense, with the flip rate that masks would have.")
            .OneOf({"none", "masked_decay", "sr_ste", "s_ste", "step", "static", "slope",
                    "activations", "measure"}),
        self.method);
    visit(Field("decay",
                "Decay of the weights that are left out (masked_decay, sr_ste, step). In a job "
                "file also auto: short runs find it, as long as the warm-up or as "
                "decay_search_steps says.")
              .Range(0, 1),
          self.decay);
    visit(
        Field("mask_interval", "Steps between two searches for masks.").Unit("steps").Range(1, 1e6),
        self.mask_interval);
    visit(Field("dense_share",
                "Share of the steps, the last ones, that train dense; of s_ste, slope and "
                "activations none do.")
              .Range(0, 1),
          self.dense_share);
    visit(Field("gradient_estimate",
                "2:4 estimate that the gradients of weights are computed from, without bias: "
                "minimum_variance, sequential (drawn one after the other); exact: the dense "
                "gradient.")
              .OneOf({"minimum_variance", "sequential", "exact"}),
          self.gradient_estimate);
    visit(Field("require", "Train sparse also where the planner expects dense to be faster."),
          self.require);
    visit(Field("decay_search_steps",
                "Steps of each of the four short runs at the beginning of the training that find "
                "the decay; a multiple of mask_interval. 0: decay is used.")
              .Unit("steps")
              .Range(0, 1e6),
          self.decay_search_steps);
    visit(Field("switch_share",
                "Share of the steps after which step and activations begin to mask; of step 0 is "
                "once the second moments have settled, after 0.1 to 0.5 of the steps.")
              .Range(0, 1),
          self.switch_share);
    visit(
        Field("adapter_rank",
              "Rank of the adapters that are added to the sparse weights near the end (slope); 0: "
              "none are.")
            .Range(0, 1 << 16),
        self.adapter_rank);
    visit(Field("adapter_share", "Share of the steps, the last ones, that train them, too.")
              .Range(0, 1),
          self.adapter_share);
  }
};

/// Training on pairs of answers: a preferred one and another.
struct PreferenceSpec {
  std::string method = "none";
  double beta = 0.1;
  double label_smoothing = 0;

  bool operator==(const PreferenceSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("method",
                "dpo: the loss is -log sigmoid(beta (r(chosen) - r(rejected))), where r is the log "
                "of the answer's probability over that of the network at the start (direct "
                "preference optimisation, Rafailov et al. 2023, arXiv 2305.18290). Wants data of "
                "format preference.")
              .OneOf({"none", "dpo"}),
          self.method);
    visit(Field("beta", "How strongly the network is held to its start.").Range(1e-6, 1e3),
          self.beta);
    visit(Field("label_smoothing", "Share of the pairs that are assumed to be the wrong way round.")
              .Range(0, 0.49),
          self.label_smoothing);
  }
};

/// A smaller network within the network, trained with it (one-stop training of models of several
/// capacities, arXiv 2305.14066).
struct NestedModelSpec {
  int64_t layers = 0;
  int64_t mlp_width = 0;
  double weight = 1.0;
  double joint_share = 0.5;

  bool operator==(const NestedModelSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("layers", "Its blocks, the first ones of the network; 0: no network within it.")
              .Range(0, 1024),
          self.layers);
    visit(Field("mlp_width", "Neurons of its MLPs, the first ones; 0: all.").Range(0, 1 << 20),
          self.mlp_width);
    visit(
        Field("weight", "Factor of its loss, which is added to the whole network's.").Range(0, 1e3),
        self.weight);
    visit(Field("joint_share", "Share of the steps, the first ones, that train both.").Range(0, 1),
          self.joint_share);
  }
};

/// A network whose logits are added to those of a frozen one (inverse value learning, Lu et al.
/// 2024, arXiv 2410.21027).
struct ValueLearningSpec {
  ModelSpec base;
  double logit_penalty = 0.0;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("base",
                "The frozen network, of the same vocabulary: its import_path is a Hugging Face "
                "folder, whose sizes Weft fills in."),
          self.base);
    visit(Field("logit_penalty",
                "Factor of the mean square of this network's logits, which is added to the loss.")
              .Range(0, 1e3),
          self.logit_penalty);
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
  double gradient_clip_value = 0.0;
  LossScalingSpec loss_scaling;
  Fp8Spec fp8;
  SparsitySpec sparsity;
  int64_t batch_warmup_steps = 0;
  int64_t batch_warmup_start = 0;
  bool gradient_noise_scale = false;
  AveragingSpec averaging;
  PreferenceSpec preference;
  GuardSpec guard;
  int64_t local_steps = 1;
  double local_round_seconds = 0.0;
  bool local_sub_networks = false;
  double outer_learning_rate = 0.7;
  double outer_momentum = 0.9;
  std::string deterministic = "run";
  int64_t logical_micro_batch = 0;
  int64_t replay_every_steps = 0;
  PruningSpec pruning;
  int64_t sampled_layers = 0;
  int64_t sequence_warmup_steps = 0;
  int64_t sequence_warmup_start = 0;
  NestedModelSpec nested_model;
  ValueLearningSpec value_learning;

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
    visit(
        Field("precision",
              "fp32; bf16 and fp16: activations and matrix products in that type with fp32 "
              "master weights; bf16_pure: bf16 weights too, rounded stochastically; fp8: bf16 with "
              "8-bit operands of the products with the weights of blocks; auto: the fastest of "
              "fp32, bf16, fp16 and, on GPUs that have it, fp8.")
            .OneOf(kPrecisionChoices),
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
    visit(Field("gradient_clip_value",
                "Largest absolute value of a gradient element; 0: no clipping.")
              .Range(0, 1e9),
          self.gradient_clip_value);
    visit(Field("loss_scaling", "Dynamic loss scale of fp16."), self.loss_scaling);
    visit(Field("fp8", "Scaling of precision fp8."), self.fp8);
    visit(Field("sparsity", "2:4 sparse weights of the MLPs."), self.sparsity);
    visit(Field("batch_warmup_steps",
                "Steps over which the batch grows from batch_warmup_start to global_batch.")
              .Unit("steps")
              .Range(0, 1e12),
          self.batch_warmup_steps);
    visit(Field("batch_warmup_start", "First batch; 0: global_batch throughout.")
              .Unit("sequences")
              .Range(0, 1 << 24),
          self.batch_warmup_start);
    visit(Field("gradient_noise_scale",
                "Estimate the batch beyond which larger ones gain little, as a metric."),
          self.gradient_noise_scale);
    visit(Field("preference", "Training on pairs of answers: a preferred one and another."),
          self.preference);
    visit(Field("averaging", "Averaged weights for evaluation and export."), self.averaging);
    visit(Field("guard", "Against diverging."), self.guard);
    visit(Field("local_steps",
                "Steps that each data-parallel rank makes by itself between two outer steps, which "
                "average what the ranks have learned (DiLoCo). 1: ranks sum gradients every step.")
              .Unit("steps")
              .Range(1, 1e6),
          self.local_steps);
    visit(Field("local_round_seconds",
                "Time of a round instead of local_steps: each data-parallel rank makes as many "
                "steps as "
                "it manages, and the outer step weighs ranks by their tokens; 0: rounds of "
                "local_steps.")
              .Unit("seconds")
              .Range(0, 1e6),
          self.local_round_seconds);
    visit(Field("local_sub_networks",
                "In each round a data-parallel rank trains its own part of the heads and of the "
                "MLPs' neurons, drawn anew, besides what all have (HIST, arXiv 2310.17890)."),
          self.local_sub_networks);
    visit(Field("outer_learning_rate", "Learning rate of the outer step, with local_steps.")
              .Range(0, 1e3),
          self.outer_learning_rate);
    visit(Field("outer_momentum", "Nesterov momentum of the outer step, with local_steps.")
              .Range(0, 1),
          self.outer_momentum);
    visit(
        Field("deterministic",
              "What has the same bits. run: the same job on the same mesh. mesh: also on any other "
              "number of ranks, with data parallelism, ZeRO and pipelines.")
            .OneOf({"run", "mesh"}),
        self.deterministic);
    visit(
        Field("logical_micro_batch",
              "With deterministic: mesh, sequences whose gradients are summed together before they "
              "are added to others in a fixed order; 0: 1.")
            .Unit("sequences")
            .Range(0, 1 << 24),
        self.logical_micro_batch);
    visit(Field("replay_every_steps",
                "Interval at which forward and backward pass of a micro-batch are done twice and "
                "compared bit by bit, to find machines that compute wrong; 0: never.")
              .Unit("steps")
              .Range(0, 1e12),
          self.replay_every_steps);
    visit(Field("pruning", "Sparse training: only some weights of each matrix."), self.pruning);
    visit(Field("sampled_layers",
                "Most layers of a step, drawn anew for each step from model.layers up, that share "
                "the blocks of the model (Apollo, Pan et al. 2024, arXiv 2401.09192). 0: "
                "model.layers in every step.")
              .Range(0, 1024),
          self.sampled_layers);
    visit(Field("sequence_warmup_steps",
                "Steps over which the sequences grow from sequence_warmup_start tokens to all of "
                "theirs (Li et al. 2022, arXiv 2108.06084).")
              .Unit("steps")
              .Range(0, 1e12),
          self.sequence_warmup_steps);
    visit(Field("sequence_warmup_start", "First length; 0: whole sequences throughout.")
              .Unit("tokens")
              .Range(0, 1 << 20),
          self.sequence_warmup_start);
    visit(Field("nested_model", "A smaller network within the network, trained with it."),
          self.nested_model);
    visit(Field("value_learning", "A frozen network whose logits are added to this network's."),
          self.value_learning);
  }
};
WEFT_SPEC_JSON(extern, TrainSpec);

}  // namespace weft
