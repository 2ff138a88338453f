#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/spec/field.h"
#include "common/spec/peft_spec.h"
#include "common/spec/spec_json_fwd.h"

namespace weft {

/// Stretching of rotary position embeddings beyond the context they were trained for.
struct RopeScalingSpec {
  std::string kind = "none";
  double factor = 1.0;
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  int64_t original_context = 8192;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind",
                "none; linear: every frequency divided by factor; llama3: the low frequencies "
                "divided by factor, with a ramp up to the high ones.")
              .OneOf({"none", "linear", "llama3"}),
          self.kind);
    visit(Field("factor", "How many times longer the context becomes.").Range(1, 1e6), self.factor);
    visit(Field("low_frequency_factor",
                "Wavelengths above original_context / this are divided by factor.")
              .Range(1e-3, 1e6),
          self.low_frequency_factor);
    visit(
        Field("high_frequency_factor", "Wavelengths below original_context / this are left alone.")
            .Range(1e-3, 1e6),
        self.high_frequency_factor);
    visit(Field("original_context", "Context before stretching.").Unit("tokens").Range(1, 1 << 24),
          self.original_context);
  }
};

/// How the parameters start.
struct InitializationSpec {
  std::string method = "auto";
  double layer_scale = 0.1;
  int64_t base_width = 256;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("method",
                "auto: what the family's paper does; gpt2: normal with initializer_range, residual "
                "projections divided by the square root of 2 x layers; normal and "
                "truncated_normal: initializer_range everywhere (cut at two deviations); xavier_*, "
                "kaiming_*: by the sides of each matrix; fixup and t_fixup: scaled so that no "
                "norms are needed; rezero and skipinit: residual branches times a scalar that "
                "starts at 0; layer_scale: residual branches times a vector; mup: widths share one "
                "learning rate.")
              .OneOf({"auto", "gpt2", "normal", "truncated_normal", "xavier_uniform",
                      "xavier_normal", "kaiming_uniform", "kaiming_normal", "fixup", "t_fixup",
                      "rezero", "skipinit", "layer_scale", "mup"}),
          self.method);
    visit(Field("layer_scale", "First value of the vectors of layer_scale.").Range(0, 10),
          self.layer_scale);
    visit(Field("base_width", "Width at which mup equals the plain parametrisation.")
              .Range(1, 1 << 17),
          self.base_width);
  }
};

/// More parameters in training than in the exported model.
struct OverParameterizationSpec {
  std::string kind = "none";
  std::vector<std::string> layers;
  double inner_ratio = 1.0;
  int64_t copies = 3;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field(
            "kind",
            "linear_expansion: each chosen weight is the product of two matrices; "
            "majority_kernels: a random convex combination of copies in each step, their mean "
            "in evaluation and export; branches: the sum of copies, each with a trained scale for "
            "each row, one of them of low rank (OREPA, Hu et al. 2022, arXiv 2204.00826).")
            .OneOf({"none", "linear_expansion", "majority_kernels", "branches"}),
        self.kind);
    visit(Field("layers",
                "Name patterns (with *) of the weights; empty: every matrix of the blocks."),
          self.layers);
    visit(Field("inner_ratio",
                "Inner size of the product, as a multiple of the smaller side of the weight.")
              .Range(1, 64),
          self.inner_ratio);
    visit(Field("copies", "Copies of majority_kernels; branches of branches.").Range(2, 64),
          self.copies);
  }
};

/// Residual branches are skipped at random in training (stochastic depth, Huang et al. 2016, arXiv
/// 1603.09382).
struct StochasticDepthSpec {
  double rate = 0;
  std::string decay = "linear";
  std::string mode = "batch";
  std::string unit = "branch";
  double gamma = 0;

  bool operator==(const StochasticDepthSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("rate",
                "Probability that a residual branch of the last layer is skipped in training; 0: "
                "none is.")
              .Range(0, 0.95),
          self.rate);
    visit(Field("decay",
                "Probability in layer l of L, from 1: rate l / L (linear) or rate (uniform).")
              .OneOf({"linear", "uniform"}),
          self.decay);
    visit(Field("mode",
                "What is drawn for: the whole batch of a step (batch), or each sequence (sample).")
              .OneOf({"batch", "sample"}),
          self.mode);
    visit(
        Field("unit",
              "What a draw decides on: a residual branch, or both of a layer (layer; LayerDrop and "
              "progressive layer dropping).")
            .OneOf({"branch", "layer"}),
        self.unit);
    visit(
        Field(
            "gamma",
            "How fast the rate grows: at step t of T it is rate (1 - exp(-gamma t / T)); 0: rate "
            "from the first step on. Progressive layer dropping has 100 (Zhang and He 2020, arXiv "
            "2010.13369).")
            .Range(0, 1e6),
        self.gamma);
  }
};

/// Weights of blocks that are structured matrices, which have fewer numbers and multiply-adds.
struct StructuredMatricesSpec {
  std::string kind = "none";
  std::vector<std::string> layers;
  int64_t blocks = 4;
  int64_t block_size = 32;
  double density = 0.25;
  double low_rank_share = 0.25;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("kind",
                "monarch: each chosen weight is the product of two block-diagonal matrices with a "
                "permutation between them (Dao et al. 2022, arXiv 2204.00595); pixelfly: the sum "
                "of a block-sparse matrix and one of low rank (Chen et al. 2021, arXiv "
                "2112.00029).")
              .OneOf({"none", "monarch", "pixelfly"}),
          self.kind);
    visit(
        Field("layers", "Name patterns (with *) of the weights; empty: every matrix of the MLPs."),
        self.layers);
    visit(Field("blocks",
                "Diagonal blocks of each of the two matrices of monarch; its square divides the "
                "smaller side of a weight, and it divides the larger one.")
              .Range(2, 256),
          self.blocks);
    visit(Field("block_size",
                "Side of the square blocks of pixelfly: a multiple of 16 that divides both sides "
                "of a weight.")
              .Range(16, 256),
          self.block_size);
    visit(Field("density",
                "The budget of pixelfly: numbers of a weight, at most, as a share of a whole one.")
              .Range(0.001, 1),
          self.density);
    visit(Field("low_rank_share", "Share of that budget, at most, for the matrix of low rank.")
              .Range(0, 0.95),
          self.low_rank_share);
  }
};

/// Heads and neurons that a search finds to be needless, and that the exported model lacks.
struct StructuredPruningSpec {
  std::string method = "none";
  double head_density = 1;
  double neuron_density = 0.6;
  double head_penalty = 1e-4;
  double neuron_penalty = 1e-4;
  int64_t interval = 100;
  double mask_distance = 0.1;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("method",
                "early_bird: the training is a search that learns a coefficient for each head and "
                "each MLP neuron; it ends when their ranking is stable, and its export is the "
                "smaller model with its initial weights (EarlyBERT, Chen et al. 2021, arXiv "
                "2101.00063).")
              .OneOf({"none", "early_bird"}),
          self.method);
    visit(Field("head_density",
                "Share of the heads of each block that is kept; below 1 of llama alone. Heads that "
                "share keys and values stay or go together.")
              .Range(0.01, 1),
          self.head_density);
    visit(Field("neuron_density",
                "Share of the neurons of each MLP that is kept, rounded to a multiple of 8.")
              .Range(0.01, 1),
          self.neuron_density);
    visit(Field("head_penalty", "What the loss adds for the magnitude of each head's coefficient.")
              .Range(0, 1e3),
          self.head_penalty);
    visit(Field("neuron_penalty", "The same for each neuron's.").Range(0, 1e3),
          self.neuron_penalty);
    visit(Field("interval", "Steps between two masks of what would be kept.")
              .Unit("steps")
              .Range(1, 1e12),
          self.interval);
    visit(Field("mask_distance",
                "The search ends when the last five masks each differ from the one before in a "
                "smaller share of the units than this. 0: at train.steps.")
              .Range(0, 1),
          self.mask_distance);
  }
};

/// Frozen weights of blocks that are quantised (QLoRA, Dettmers et al. 2023, arXiv
/// 2305.14314).
struct WeightQuantizationSpec {
  std::string type = "none";
  int64_t block_size = 64;
  bool double_quantization = true;

  bool operator==(const WeightQuantizationSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("type",
                "In what the frozen matrices of the blocks are kept: nf4, 16 quantiles of a normal "
                "distribution; fp4, the 4-bit floating-point numbers of bitsandbytes. Products "
                "read them in the type that train.precision gives to matrices.")
              .OneOf({"none", "nf4", "fp4"}),
          self.type);
    visit(Field("block_size",
                "Successive numbers of a weight that share a scale, its largest magnitude: a power "
                "of 2.")
              .Range(32, 4096),
          self.block_size);
    visit(Field("double_quantization",
                "The scales less their mean are kept in 8 bits, 256 of them with one scale."),
          self.double_quantization);
  }
};

/// Weights that are the sum of a matrix of low rank, which by itself makes a network of its own
/// (the core), and another matrix; steps train the core and the whole in turns (partially masked
/// networks, Mohtashami et al. 2022, arXiv 2106.08895).
struct LowRankCoreSpec {
  int64_t rank = 0;
  std::vector<std::string> layers;
  int64_t core_every = 2;

  bool operator==(const LowRankCoreSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("rank", "Rank of the core; 0: weights are whole.").Range(0, 1 << 17), self.rank);
    visit(Field("layers",
                "Name patterns (with *) of the weights; empty: every matrix of the blocks."),
          self.layers);
    visit(Field("core_every", "Every core_every-th step trains the core alone; 1: all do.")
              .Unit("steps")
              .Range(1, 1e6),
          self.core_every);
  }
};

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
  std::optional<double> dropout;
  double norm_epsilon = 1e-5;
  double initializer_range = 0.02;
  std::string head = "auto";
  int64_t classes = 0;
  int64_t kv_heads = 0;
  int64_t head_width = 0;
  double rope_theta = 10000.0;
  RopeScalingSpec rope_scaling;
  int64_t sliding_window = 0;
  bool qkv_bias = false;
  bool untied_classifier = false;
  std::string norm_position = "auto";
  int64_t embedding_width = 0;
  int64_t distinct_blocks = 0;
  int64_t token_types = 0;
  int64_t image_size = 224;
  int64_t patch_size = 16;
  int64_t image_channels = 3;
  std::vector<std::string> freeze;
  InitializationSpec initialization;
  OverParameterizationSpec over_parameterization;
  StochasticDepthSpec stochastic_depth;
  StructuredMatricesSpec structured_matrices;
  StructuredPruningSpec structured_pruning;
  PeftSpec peft;
  WeightQuantizationSpec weight_quantization;
  LowRankCoreSpec low_rank_core;
  int64_t experts = 0;
  int64_t experts_per_token = 2;
  double expert_capacity = 0;
  std::optional<double> router_aux_loss;
  bool normalize_expert_weights = true;
  std::optional<double> attention_dropout;
  std::string activation = "auto";

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("family", "Architecture.").OneOf({"gpt2", "llama", "bert", "vit"}), self.family);
    visit(Field("import_path",
                "Hugging Face folder (config.json and *.safetensors) to start from; its sizes "
                "replace the ones given here. Empty: start from random weights."),
          self.import_path);
    visit(Field("layers", "Transformer blocks; 0: the embedding and the classifier alone.")
              .Range(0, 1024),
          self.layers);
    visit(Field("width", "Hidden size; a multiple of heads, without head_width.").Range(1, 1 << 17),
          self.width);
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
    visit(Field("dropout",
                "Probability of dropping residual and embedding activations; none: that of the "
                "folder of import_path, or 0.")
              .Range(0, 0.9),
          self.dropout);
    visit(Field("norm_epsilon", "Added to the variance in layer norms.").Range(0, 1),
          self.norm_epsilon);
    visit(Field("initializer_range",
                "Standard deviation of initial weights, where initialization.method draws by it; "
                "gpt2 and mup divide that of residual projections by the square root of 2 x "
                "layers.")
              .Range(0, 10),
          self.initializer_range);
    visit(Field("head",
                "What the network predicts: causal_lm the next token, masked_lm the masked ones, "
                "classification the class of the whole input; auto: causal_lm for gpt2 and llama, "
                "masked_lm for bert, classification for vit.")
              .OneOf({"auto", "causal_lm", "masked_lm", "classification"}),
          self.head);
    visit(Field("classes", "Classes of a classification head; 0: as many as the data has.")
              .Range(0, 1 << 20),
          self.classes);
    visit(Field("kv_heads", "Heads of keys and values; 0: as many as heads.").Range(0, 1024),
          self.kv_heads);
    visit(Field("head_width",
                "Columns of a head; 0: width / heads. Another number is of llama (head_dim in "
                "config.json).")
              .Range(0, 256),
          self.head_width);
    visit(Field("rope_theta", "Base of the rotary frequencies (llama).").Range(1, 1e12),
          self.rope_theta);
    visit(Field("rope_scaling", "Stretched rotary embeddings (llama)."), self.rope_scaling);
    visit(Field("sliding_window", "Tokens each one attends back to; 0: all (llama).")
              .Unit("tokens")
              .Range(0, 1 << 24),
          self.sliding_window);
    visit(Field("qkv_bias", "Biases on queries, keys and values (llama; Qwen2 has them)."),
          self.qkv_bias);
    visit(Field("untied_classifier",
                "The classifier has a matrix of its own rather than the token embedding."),
          self.untied_classifier);
    visit(Field("norm_position",
                "Norms before each sub-layer (pre), after its residual sum (post), or none; auto: "
                "the family's.")
              .OneOf({"auto", "pre", "post", "none"}),
          self.norm_position);
    visit(Field("embedding_width",
                "Width of the token embedding, projected to model.width; 0: model.width (ALBERT's "
                "factorised embedding).")
              .Range(0, 1 << 17),
          self.embedding_width);
    visit(Field("distinct_blocks",
                "Blocks with parameters of their own, each used by layers / distinct_blocks "
                "successive layers; 0: all are distinct (ALBERT's is 1).")
              .Range(0, 1024),
          self.distinct_blocks);
    visit(Field("token_types", "Kinds of segments (bert); 0: 2.").Range(0, 1024), self.token_types);
    visit(Field("image_size", "Side of the square images (vit).").Unit("pixels").Range(1, 1 << 14),
          self.image_size);
    visit(Field("patch_size", "Side of a patch (vit).").Unit("pixels").Range(1, 1 << 14),
          self.patch_size);
    visit(Field("image_channels", "Colours of an image (vit).").Range(1, 64), self.image_channels);
    visit(Field("freeze",
                "Name patterns (with *) of parameters that are not trained: no gradients, no "
                "optimizer state."),
          self.freeze);
    visit(Field("initialization", "How the parameters start."), self.initialization);
    visit(Field("over_parameterization", "More parameters in training than in the export."),
          self.over_parameterization);
    visit(Field("stochastic_depth", "Residual branches that training skips at random."),
          self.stochastic_depth);
    visit(Field("structured_matrices",
                "Weights of blocks with fewer numbers and multiply-adds than whole matrices."),
          self.structured_matrices);
    visit(Field("structured_pruning", "Heads and neurons that the exported model lacks."),
          self.structured_pruning);
    visit(Field("peft", "A frozen network with few trained parameters besides."), self.peft);
    visit(Field("weight_quantization", "Frozen weights that are quantised."),
          self.weight_quantization);
    visit(Field("low_rank_core", "Weights with a core of low rank that is a network of its own."),
          self.low_rank_core);
    visit(Field("experts",
                "MLPs of each block, among which a router chooses for every token (llama; Mixtral "
                "has 8); 0: one MLP and no router.")
              .Range(0, 1024),
          self.experts);
    visit(Field("experts_per_token", "Experts that each token goes to, with model.experts.")
              .Range(1, 1024),
          self.experts_per_token);
    visit(Field("expert_capacity",
                "Tokens of a micro-batch that an expert takes, as a multiple of the mean; those "
                "that come later pass it by. 0: all.")
              .Range(0, 1024),
          self.expert_capacity);
    visit(Field("router_aux_loss",
                "Weight of the loss that has the router spread tokens over the experts; none: that "
                "of the folder of import_path, or 0.02.")
              .Range(0, 10),
          self.router_aux_loss);
    visit(Field("normalize_expert_weights",
                "A token's experts count by their probabilities over the sum of these (Mixtral), "
                "or, if false, by the probabilities (Switch): what trains a router with "
                "experts_per_token 1."),
          self.normalize_expert_weights);
    visit(Field("attention_dropout",
                "Probability of dropping weights of attention; none: that of the folder of "
                "import_path, or 0.")
              .Range(0, 0.9),
          self.attention_dropout);
    visit(Field("activation",
                "Function between the two layers of MLPs; auto: the family's (gpt2 GELU in its "
                "tanh form, bert and vit GELU, llama SwiGLU); squared_relu: max(x, 0)^2 (gpt2, "
                "vit).")
              .OneOf({"auto", "squared_relu"}),
          self.activation);
  }
};
WEFT_SPEC_JSON(extern, ModelSpec);

/// Patches of an image.
inline int64_t ImagePatches(const ModelSpec& model) {
  const int64_t across = model.image_size / model.patch_size;
  return across * across;
}

/// Whether the modules of the network have the names that transformers 5 gives those of a vit.
inline bool HasTransformers5Names(const ModelSpec& model) {
  return model.family == "vit" && model.peft.module_names == kTransformers5Names;
}

/// Resolves the default, as do the next two.
inline double DropoutOf(const ModelSpec& model) {
  return model.dropout.value_or(0);
}
inline double AttentionDropoutOf(const ModelSpec& model) {
  return model.attention_dropout.value_or(0);
}
inline double RouterAuxLossOf(const ModelSpec& model) {
  return model.router_aux_loss.value_or(0.02);
}

/// Inner size of the MLP, with the default resolved.
inline int64_t MlpWidth(const ModelSpec& model) {
  return model.mlp_width > 0 ? model.mlp_width : 4 * model.width;
}

}  // namespace weft
