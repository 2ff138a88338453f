#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/field.h"

namespace weft {

/// The choices of model.peft.method.
std::span<const std::string_view> PeftMethods();

/// The choices of model.peft.module_names.
inline constexpr char kTransformers4Names[] = "transformers_4";
inline constexpr char kTransformers5Names[] = "transformers_5";

/// How AdaLoRA spreads its ranks over the layers.
struct AdaLoraSpec {
  int64_t init_r = 12;
  int64_t target_r = 8;
  int64_t tinit = 0;
  int64_t tfinal = 0;
  int64_t delta_t = 1;
  double beta1 = 0.85;
  double beta2 = 0.85;
  double orth_reg_weight = 0.5;

  bool operator==(const AdaLoraSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("init_r", "Rank of each layer at the start.").Range(1, 4096), self.init_r);
    visit(Field("target_r", "Mean rank of the layers at the end.").Range(1, 4096), self.target_r);
    visit(Field("tinit", "First steps, with all ranks.").Unit("steps").Range(0, 1e12), self.tinit);
    visit(Field("tfinal", "Last steps, in which the ranks do not change.")
              .Unit("steps")
              .Range(0, 1e12),
          self.tfinal);
    visit(Field("delta_t", "Steps between two choices of ranks.").Unit("steps").Range(1, 1e12),
          self.delta_t);
    visit(Field("beta1", "Decay of the mean sensitivity of a number.").Range(0, 0.9999),
          self.beta1);
    visit(Field("beta2", "Decay of the mean of its deviation from that mean.").Range(0, 0.9999),
          self.beta2);
    visit(Field("orth_reg_weight", "Weight of the loss that keeps the factors orthogonal.")
              .Range(0, 1e3),
          self.orth_reg_weight);
  }
};

/// One of several adapters of the same frozen network that a job trains.
struct AdapterSpec {
  std::string name;
  std::vector<std::string> train;
  std::vector<std::string> validation;
  double learning_rate = 0;

  bool operator==(const AdapterSpec&) const = default;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(Field("name", "Name of its folders: lower-case letters, digits and dashes.")
              .Required()
              .Range(1, 63),
          self.name);
    visit(Field("train", "Files that it is trained on; empty: data.train.").Range(0, 100000),
          self.train);
    visit(Field("validation",
                "Files that it is validated on. Empty: data.validation, or, with train, "
                "data.validation_fraction of its own documents."),
          self.validation);
    visit(Field("learning_rate", "Its peak; 0: optimizer.learning_rate.").Range(0, 100),
          self.learning_rate);
  }
};

/// A pre-trained network that is adapted with few parameters: it stays as it is, and tensors that
/// its layers get besides, or some of its own, are trained. Fields as in Hugging Face's peft
/// library.
struct PeftSpec {
  std::string method = "none";
  std::string import_path;
  int64_t rank = 8;
  double alpha = 8;
  bool use_rslora = false;
  bool use_dora = false;
  double dropout = 0;
  std::string init = "default";
  double loraplus_lr_ratio = 1;
  std::vector<std::string> target_modules;
  std::string target_regex;
  std::vector<int64_t> layers_to_transform;
  std::map<std::string, int64_t> rank_pattern;
  std::map<std::string, double> alpha_pattern;
  std::vector<std::string> feedforward_modules;
  std::vector<std::string> modules_to_save;
  bool decompose_both = false;
  int64_t decompose_factor = -1;
  int64_t oft_block_size = 32;
  double d_initial = 0.1;
  int64_t num_virtual_tokens = 20;
  bool prefix_projection = false;
  int64_t encoder_hidden_size = 0;
  double reduction_factor = 16;
  std::string non_linearity = "relu";
  double scaling = 1;
  AdaLoraSpec adalora;
  std::vector<int64_t> trainable_token_indices;
  std::vector<AdapterSpec> adapters;
  std::string module_names = kTransformers4Names;

  template <class Self, class Visitor>
  static void Fields(Self& self, Visitor&& visit) {
    visit(
        Field(
            "method",
            "What is trained of a frozen network, besides modules_to_save. Each chosen weight W "
            "gets: lora, two factors of low rank, y = x W^T + scale (x A^T) B^T (Hu et al. "
            "2021, arXiv 2106.09685); adalora, the same with ranks that move to where they matter "
            "(arXiv 2303.10512); loha, the elementwise product of two such pairs "
            "(FedPara, arXiv 2108.06098); lokr, a Kronecker product (LyCORIS, arXiv "
            "2309.14859); oft, a block-diagonal rotation of its inputs (arXiv 2306.07280); "
            "vera, vectors between fixed random factors that all share (arXiv 2310.11454); "
            "miss, one factor, whose rows repeat along the inputs (arXiv 2409.15371); ia3, a "
            "vector that scales its results or inputs (arXiv 2205.05638). Each sub-layer gets: "
            "houlsby, a bottleneck after attention and MLP (arXiv 1902.00751); pfeiffer, one "
            "after the MLP (arXiv 2005.00052); parallel, one next to the MLP (arXiv "
            "2110.04366). The input gets: prompt, trained vectors (arXiv 2104.08691); "
            "p_tuning, those that a small network makes (arXiv 2103.10385); prefix, trained "
            "keys and values in each layer (arXiv 2101.00190). selective: nothing else.")
            .OneOf(PeftMethods()),
        self.method);
    visit(Field("import_path",
                "Folder of Hugging Face's peft library (adapter_config.json and "
                "adapter_model.safetensors) to start from; what it says replaces the fields below. "
                "Empty: start without effect."),
          self.import_path);
    visit(
        Field("rank", "Rows of A and columns of B (lora, loha, lokr, vera, miss).").Range(1, 4096),
        self.rank);
    visit(Field("alpha", "scale is alpha / rank (lora, loha, lokr).").Range(0, 1e6), self.alpha);
    visit(Field("use_rslora",
                "scale is alpha / sqrt(rank), which high ranks want (Kalajdzievski 2023, arXiv "
                "2312.03732)."),
          self.use_rslora);
    visit(Field("use_dora",
                "Rows of W + scale B A are brought to trained lengths (Liu et al. 2024, arXiv "
                "2402.09353)."),
          self.use_dora);
    visit(Field("dropout", "Probability of dropping inputs of A in training (lora).").Range(0, 0.9),
          self.dropout);
    visit(Field("init",
                "How A and B start (lora). default: A uniform, B zero; gaussian: A normal with "
                "deviation 1 / rank, B zero; pissa: both the largest singular values of W, olora: "
                "of its QR factors, each taken off W (Meng et al. 2024, arXiv 2404.02948; "
                "Buyukakyuz 2024, arXiv 2406.01775).")
              .OneOf({"default", "gaussian", "pissa", "olora"}),
          self.init);
    visit(Field("loraplus_lr_ratio",
                "Learning rate of B over that of A (LoRA+, Hayou et al. 2024, arXiv 2402.12354).")
              .Range(1e-3, 1e3),
          self.loraplus_lr_ratio);
    visit(Field("target_modules",
                "Linear layers of the blocks by Hugging Face's names: q_proj, c_attn, ..., the "
                "last parts of a name or a pattern (with *) of a whole one; all-linear: every one. "
                "lora also those outside the blocks, such as lm_head, and the token embedding: "
                "wte, embed_tokens, ... Empty, and no target_regex: peft's defaults of the "
                "family."),
          self.target_modules);
    visit(Field("target_regex",
                "Instead of target_modules: a regular expression of whole names, as peft has in "
                "target_modules where that is no list."),
          self.target_regex);
    visit(Field("layers_to_transform", "Blocks, from 0; empty: all."), self.layers_to_transform);
    visit(Field("rank_pattern",
                "Other ranks of some layers, by a regular expression of the last parts of their "
                "names; the first that fits, in alphabetical order."),
          self.rank_pattern);
    visit(Field("alpha_pattern", "Other values of alpha, likewise."), self.alpha_pattern);
    visit(Field("feedforward_modules",
                "Of target_modules those whose inputs are scaled (ia3): layers that end a "
                "sub-layer. Empty: peft's defaults of the family."),
          self.feedforward_modules);
    visit(Field("modules_to_save",
                "What is trained whole besides: modules by the last parts of their names (lm_head, "
                "ln_f), or parameters by a pattern (with *) of the whole name (*.bias)."),
          self.modules_to_save);
    visit(Field("decompose_both",
                "Both factors of the Kronecker product are products of low rank themselves where "
                "they are large (lokr)."),
          self.decompose_both);
    visit(Field("decompose_factor",
                "How sides of weights are split for the Kronecker product: the largest divisor up "
                "to this; -1: as near to the square root as there is (lokr).")
              .Range(-1, 1 << 17),
          self.decompose_factor);
    visit(Field("oft_block_size",
                "Side of the orthogonal blocks, which divides the inputs of a weight (oft).")
              .Range(2, 4096),
          self.oft_block_size);
    visit(Field("d_initial", "First value of the vector over the ranks (vera).").Range(-10, 10),
          self.d_initial);
    visit(Field("num_virtual_tokens",
                "Trained vectors before each sequence, or keys and values in each layer (prompt, "
                "prefix, p_tuning).")
              .Unit("tokens")
              .Range(1, 1 << 16),
          self.num_virtual_tokens);
    visit(Field("prefix_projection",
                "Keys and values are what a trained two-layer network makes of shorter vectors "
                "(prefix)."),
          self.prefix_projection);
    visit(Field("encoder_hidden_size",
                "Inner size of the networks that make the trained vectors (p_tuning, prefix with "
                "prefix_projection); 0: model.width.")
              .Range(0, 1 << 17),
          self.encoder_hidden_size);
    visit(Field("reduction_factor",
                "Width of the network over that of the middle of an adapter (houlsby, pfeiffer, "
                "parallel).")
              .Range(0.1, 1 << 17),
          self.reduction_factor);
    visit(Field("non_linearity",
                "Between the two layers of an adapter (houlsby, pfeiffer, "
                "parallel).")
              .OneOf({"relu", "gelu", "swish"}),
          self.non_linearity);
    visit(Field("scaling",
                "What adapters next to a sub-layer are multiplied by; 4 in He et al. 2022, arXiv "
                "2110.04366 (parallel).")
              .Range(0, 1e6),
          self.scaling);
    visit(Field("adalora", "How ranks are spread over the layers (adalora)."), self.adalora);
    visit(Field("trainable_token_indices",
                "Tokens whose rows of the token embedding are trained besides (lora, selective)."),
          self.trainable_token_indices);
    visit(Field("adapters",
                "Several adapters of these settings, which one job trains on the same frozen "
                "network, each on its own data (lora). A batch has as many sequences of each."),
          self.adapters);
    visit(Field("module_names",
                "Of a vit: the version of transformers that gives its modules their names, in the "
                "fields above and in folders of peft. transformers_4: query, intermediate.dense; "
                "transformers_5: q_proj, mlp.fc1.")
              .OneOf({kTransformers4Names, kTransformers5Names}),
          self.module_names);
  }
};

}  // namespace weft
