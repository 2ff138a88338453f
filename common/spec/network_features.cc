// Features of the network and of the data.
#include "common/spec/features.h"

#include <string>
#include <string_view>

#include "common/glob.h"
#include "common/model/model_sizes.h"
#include "common/model/parameter_list.h"
#include "common/model/technique_cost.h"
#include "common/spec/feature_text.h"
#include "common/spec/mixture_of_experts.h"
#include "common/spec/model_family.h"

namespace weft::features {
namespace {

// The planner asks often: views of literals compare by length first.
using std::string_view_literals::operator""sv;

std::string ShownFamily(const JobSpec& job) {
  return Shown("model.family", job.model.family);
}

std::string ShownHead(const JobSpec& job) {
  return Shown("model.head", job.model.head);
}

std::string ShownMethod(const JobSpec& job) {
  return Shown("model.initialization.method", job.model.initialization.method);
}

std::string ShownNorms(const JobSpec& job) {
  return Shown("model.norm_position", job.model.norm_position);
}

bool IsEncoder(const ModelSpec& model) {
  return model.family == "bert"sv || model.family == "vit"sv;
}

/// The first weight of this role, which ends sub-layers, that model.freeze names; "": none.
std::string FrozenOutput(const ModelSpec& model, ParameterRole role) {
  if (model.freeze.empty()) return "";
  for (int64_t block = 0; block < DistinctBlocks(model); ++block) {
    for (const ParameterInfo& weight : PlainBlockParameters(model, block)) {
      const bool ends = weight.output_weight() && weight.role == role;
      if (ends && MatchesAny(model.freeze, weight.name)) return weight.name;
    }
  }
  return "";
}

}  // namespace

const Feature kImport = {.name = "weights of a Hugging Face folder",
                         .setting = "model.import_path",
                         .asked = [](const JobSpec& job) { return !job.model.import_path.empty(); },
                         .shown = [](const JobSpec&) { return std::string("model.import_path"); }};

const Feature kNetworkInitialization = {
    .name = "initializations that change the network",
    .setting = "model.initialization.method fixup, t_fixup, rezero, skipinit, layer_scale or mup",
    .asked =
        [](const JobSpec& job) {
          return job.model.initialization.method != "auto"sv &&
                 InitializationChangesNetwork(job.model);
        },
    .shown = ShownMethod};

const Feature kNormFreeInitialization = {.name = "initializations of networks without norms",
                                         .setting = "model.initialization.method fixup or t_fixup",
                                         .asked =
                                             [](const JobSpec& job) {
                                               const std::string& method =
                                                   job.model.initialization.method;
                                               return method == "fixup"sv || method == "t_fixup"sv;
                                             },
                                         .shown = ShownMethod};

const Feature kBranchScaling = {
    .name = "initializations that scale residual branches",
    .setting = "model.initialization.method fixup, rezero, skipinit or layer_scale",
    .asked = [](const JobSpec& job) { return BranchScalingOf(job.model) != BranchScaling::kNone; },
    .shown = ShownMethod};

const Feature kFixup = {
    .name = "Fixup",
    .setting = "model.initialization.method fixup",
    .asked = [](const JobSpec& job) { return job.model.initialization.method == "fixup"sv; },
    .shown = ShownMethod};

const Feature kMup = {
    .name = "muP",
    .setting = "model.initialization.method mup",
    .asked = [](const JobSpec& job) { return job.model.initialization.method == "mup"sv; },
    .shown = ShownMethod};

const Feature kLlama = {.name = "Llama",
                        .setting = "model.family llama",
                        .asked = [](const JobSpec& job) { return job.model.family == "llama"sv; },
                        .shown = ShownFamily,
                        .of_folder = true};

const Feature kOtherThanLlama = {
    .name = "families other than Llama",
    .setting = "model.family gpt2, bert or vit",
    .asked = [](const JobSpec& job) { return job.model.family != "llama"sv; },
    .shown = ShownFamily,
    .of_folder = true};

const Feature kEncoder = {.name = "encoders",
                          .setting = "model.family bert or vit",
                          .asked = [](const JobSpec& job) { return IsEncoder(job.model); },
                          .shown = ShownFamily,
                          .of_folder = true};

const Feature kDecoder = {.name = "decoders",
                          .setting = "model.family gpt2 or llama",
                          .asked = [](const JobSpec& job) { return !IsEncoder(job.model); },
                          .shown = ShownFamily,
                          .of_folder = true};

const Feature kBert = {.name = "BERT",
                       .setting = "model.family bert",
                       .asked = [](const JobSpec& job) { return job.model.family == "bert"sv; },
                       .shown = ShownFamily,
                       .of_folder = true};

const Feature kVit = {.name = "ViT",
                      .setting = "model.family vit",
                      .asked = [](const JobSpec& job) { return job.model.family == "vit"sv; },
                      .shown = ShownFamily,
                      .of_folder = true};

const Feature kCausalHead = {
    .name = "causal language modelling",
    .setting = "model.head causal_lm",
    .asked = [](const JobSpec& job) { return job.model.head == "causal_lm"sv; },
    .shown = ShownHead,
    .of_folder = true};

const Feature kEncoderHead = {.name = "masked language modelling and classification",
                              .setting = "model.head masked_lm or classification",
                              .asked =
                                  [](const JobSpec& job) {
                                    return job.model.head == "masked_lm"sv ||
                                           job.model.head == "classification"sv;
                                  },
                              .shown = ShownHead,
                              .of_folder = true};

const Feature kTokenHead = {.name = "prediction of tokens",
                            .setting = "model.head causal_lm or masked_lm",
                            .asked =
                                [](const JobSpec& job) {
                                  return job.model.head == "causal_lm"sv ||
                                         job.model.head == "masked_lm"sv;
                                },
                            .shown = ShownHead,
                            .of_folder = true};

const Feature kMaskedHead = {
    .name = "masked language modelling",
    .setting = "model.head masked_lm",
    .asked = [](const JobSpec& job) { return HeadOf(job.model) == "masked_lm"sv; },
    .shown = [](const JobSpec& job) { return Shown("model.head", HeadOf(job.model)); },
    .of_folder = true};

const Feature kNorms = {.name = "norms",
                        .setting = "model.norm_position pre or post",
                        .asked =
                            [](const JobSpec& job) {
                              return job.model.norm_position == "pre"sv ||
                                     job.model.norm_position == "post"sv;
                            },
                        .shown = ShownNorms};

const Feature kNotPostNorm = {.name = "norms elsewhere than after the residual sum",
                              .setting = "model.norm_position pre or none",
                              .asked =
                                  [](const JobSpec& job) {
                                    return job.model.norm_position == "pre"sv ||
                                           job.model.norm_position == "none"sv;
                                  },
                              .shown = ShownNorms,
                              .of_folder = true};

const Feature kNotPreNorm = {.name = "norms elsewhere than before the sub-layer",
                             .setting = "model.norm_position post or none",
                             .asked =
                                 [](const JobSpec& job) {
                                   return job.model.norm_position == "post"sv ||
                                          job.model.norm_position == "none"sv;
                                 },
                             .shown = ShownNorms,
                             .of_folder = true};

const Feature kPostNorm = {
    .name = "norms after the residual sum",
    .setting = "model.norm_position post, which bert has",
    .asked = [](const JobSpec& job) { return NormPositionOf(job.model) == "post"sv; },
    .shown = [](const JobSpec&) { return std::string("model.norm_position post"); },
    .of_folder = true};

const Feature kTiedWithoutNorm = {
    .name = "a classifier that is the token table, without a norm before it",
    .setting = "model.norm_position post or none without model.untied_classifier",
    .asked =
        [](const JobSpec& job) {
          const ModelSpec& model = job.model;
          // The head of BERT has a norm of its own.
          return !model.untied_classifier && !FactorisedEmbedding(model) &&
                 HeadOf(model) != "classification"sv && model.family != "bert"sv &&
                 NormPositionOf(model) != "pre"sv;
        },
    .shown =
        [](const JobSpec& job) {
          return "model.norm_position " + NormPositionOf(job.model) +
                 " without model.untied_classifier";
        },
    .of_folder = true};

const Feature kDropout = {.name = "dropout",
                          .setting = "model.dropout above 0",
                          .asked = [](const JobSpec& job) { return DropoutOf(job.model) > 0; },
                          .shown = [](const JobSpec&) { return std::string("model.dropout"); }};

const Feature kAttentionDropout = {
    .name = "dropout of attention",
    .setting = "model.attention_dropout above 0",
    .asked = [](const JobSpec& job) { return AttentionDropoutOf(job.model) > 0; },
    .shown = [](const JobSpec&) { return std::string("model.attention_dropout"); }};

const Feature kKvHeads = {
    .name = "grouped-query attention",
    .setting = "model.kv_heads other than model.heads",
    .asked =
        [](const JobSpec& job) {
          return job.model.kv_heads != 0 && job.model.kv_heads != job.model.heads;
        },
    .shown = [](const JobSpec& job) { return Shown("model.kv_heads", job.model.kv_heads); },
    .of_folder = true};

const Feature kHeadWidth = {
    .name = "heads of another width",
    .setting = "model.head_width other than model.width / model.heads",
    .asked =
        [](const JobSpec& job) {
          return job.model.head_width > 0 &&
                 job.model.head_width * job.model.heads != job.model.width;
        },
    .shown = [](const JobSpec& job) { return Shown("model.head_width", job.model.head_width); },
    .of_folder = true};

const Feature kRopeScaling = {
    .name = "scaled rotary embeddings",
    .setting = "model.rope_scaling",
    .asked = [](const JobSpec& job) { return job.model.rope_scaling.kind != "none"sv; },
    .shown =
        [](const JobSpec& job) { return Shown("model.rope_scaling", job.model.rope_scaling.kind); },
    .of_folder = true};

const Feature kSlidingWindow = {
    .name = "sliding-window attention",
    .setting = "model.sliding_window above 0",
    .asked = [](const JobSpec& job) { return job.model.sliding_window > 0; },
    .shown =
        [](const JobSpec& job) { return Shown("model.sliding_window", job.model.sliding_window); },
    .of_folder = true};

const Feature kSquaredRelu = {
    .name = "squared ReLU",
    .setting = "model.activation squared_relu",
    .asked = [](const JobSpec& job) { return job.model.activation == "squared_relu"sv; },
    .shown = [](const JobSpec&) { return std::string("model.activation squared_relu"); },
    .of_folder = true};

const Feature kOtherThanSquaredRelu = {
    .name = "activations other than squared ReLU",
    .setting = "model.activation other than squared_relu",
    .asked = [](const JobSpec& job) { return job.model.activation != "squared_relu"sv; },
    .shown = [](const JobSpec& job) { return Shown("model.activation", job.model.activation); },
    .of_folder = true};

const Feature kQkvBias = {.name = "biases of queries, keys and values",
                          .setting = "model.qkv_bias",
                          .asked = [](const JobSpec& job) { return job.model.qkv_bias; },
                          .shown = [](const JobSpec&) { return std::string("model.qkv_bias"); },
                          .of_folder = true};

const Feature kEmbeddingWidth = {
    .name = "factorised embedding",
    .setting = "model.embedding_width above 0",
    .asked = [](const JobSpec& job) { return job.model.embedding_width > 0; },
    .shown =
        [](const JobSpec& job) {
          return Shown("model.embedding_width", job.model.embedding_width);
        },
    .of_folder = true};

const Feature kNoBlocks = {
    .name = "no blocks",
    .setting = "model.layers 0",
    .asked = [](const JobSpec& job) { return job.model.layers == 0; },
    .shown = [](const JobSpec& job) { return Shown("model.layers", job.model.layers); },
    .of_folder = true};

const Feature kDistinctBlocks = {
    .name = "blocks shared between layers",
    .setting = "model.distinct_blocks below model.layers",
    // The layers of a folder are not known before it is read.
    .asked =
        [](const JobSpec& job) {
          const ModelSpec& model = job.model;
          return model.distinct_blocks > 0 &&
                 (!model.import_path.empty() || model.distinct_blocks != model.layers);
        },
    .shown =
        [](const JobSpec& job) {
          return Shown("model.distinct_blocks", job.model.distinct_blocks);
        }};

const Feature kExperts = {
    .name = "mixtures of experts",
    .setting = "model.experts above 0",
    .asked = [](const JobSpec& job) { return job.model.experts > 0; },
    .shown = [](const JobSpec& job) { return Shown("model.experts", job.model.experts); },
    .of_folder = true};

const Feature kFreeze = {.name = "frozen parameters",
                         .setting = "model.freeze",
                         .asked = [](const JobSpec& job) { return !job.model.freeze.empty(); },
                         .shown = [](const JobSpec&) { return std::string("model.freeze"); }};

const Feature kUnevenFreeze = {
    .name = "some experts of a layer frozen",
    .setting = "model.freeze with some of the experts of a layer",
    .asked = [](const JobSpec& job) { return !UnevenFreeze(job.model).empty(); },
    .shown =
        [](const JobSpec& job) { return "model.freeze, which names " + UnevenFreeze(job.model); },
    .of_folder = true};

const Feature kFrozenAttentionOutputs = {
    .name = "frozen products behind attention",
    .setting = "model.freeze with a weight that ends an attention",
    .asked =
        [](const JobSpec& job) {
          return !FrozenOutput(job.model, ParameterRole::kAttentionOutput).empty();
        },
    .shown =
        [](const JobSpec& job) {
          return "model.freeze, which names " +
                 FrozenOutput(job.model, ParameterRole::kAttentionOutput);
        },
    .of_folder = true};

const Feature kFrozenMlpOutputs = {
    .name = "frozen second products of MLPs",
    .setting = "model.freeze with a weight that ends an MLP",
    .asked =
        [](const JobSpec& job) {
          return !FrozenOutput(job.model, ParameterRole::kMlpDown).empty();
        },
    .shown =
        [](const JobSpec& job) {
          return "model.freeze, which names " + FrozenOutput(job.model, ParameterRole::kMlpDown);
        },
    .of_folder = true};

const Feature kReadFrozenWeights = {
    .name = "techniques that read the values of frozen weights",
    .setting = "model, with adapters that are merged into weights, or taken off them at the start",
    .asked = [](const JobSpec& job) { return ReaderOfFrozenWeights(job.model) != nullptr; },
    .shown =
        [](const JobSpec& job) { return ReaderOfFrozenWeights(job.model)->feature().shown(job); }};

const Feature kNoConcatenation = {
    .name = "sequences of whole documents",
    .setting = "data.batching other than concatenate",
    .asked = [](const JobSpec& job) { return job.data.batching != "concatenate"sv; },
    .shown = [](const JobSpec& job) { return Shown("data.batching", job.data.batching); }};

const Feature kMaskDocuments = {
    .name = "document masks",
    .setting = "data.mask_documents",
    .asked = [](const JobSpec& job) { return job.data.mask_documents; },
    .shown = [](const JobSpec&) { return std::string("data.mask_documents"); }};

const Feature kPlainText = {
    .name = "plain text",
    .setting = "data.format text",
    .asked = [](const JobSpec& job) { return job.data.format == "text"sv; },
    .shown = [](const JobSpec&) { return std::string("data.format text"); }};

const Feature kTextClasses = {.name = "classification of texts",
                              .setting = "model.head classification of model.family bert",
                              .asked =
                                  [](const JobSpec& job) {
                                    return job.model.family != "vit"sv &&
                                           job.model.head == "classification"sv;
                                  },
                              .shown = ShownHead,
                              .of_folder = true};

const Feature kParsedTokens = {
    .name = "special tokens in texts",
    .setting = "data.special_tokens parse",
    .asked = [](const JobSpec& job) { return job.data.special_tokens == "parse"sv; },
    .shown = [](const JobSpec&) { return std::string("data.special_tokens parse"); }};

const Feature kSecondText = {
    .name = "pairs of texts",
    .setting = "data.second_text_field",
    .asked = [](const JobSpec& job) { return !job.data.second_text_field.empty(); },
    .shown = [](const JobSpec&) { return std::string("data.second_text_field"); }};

}  // namespace weft::features
