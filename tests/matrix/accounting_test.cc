// What ranks say they have sent, axis by axis, against what formulas say.
#include <cmath>
#include <cstdlib>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/check.h"
#include "common/env.h"
#include "common/formats/added_network.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/pipeline_shape.h"
#include "common/model/rank_traffic.h"
#include "common/model/tensor_traffic.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/techniques.h"
#include "tests/matrix/training.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::testing {
namespace {

constexpr int64_t kSteps = 4;
constexpr double kShare = 0.01;

/// A way to train, with its mesh.
struct RunConfig {
  std::string name;
  int64_t data = 1, tensor = 1, pipeline = 1;
  bool sequence = false;
  int64_t zero_stage = 0;
  int64_t shard_ranks = 0;  ///< Of a group that shares; 0: all.
  std::string schedule = "1f1b";
  int64_t chunks = 1;
  std::string family = "gpt2";
  int64_t expert = 1;  ///< Of a model whose tokens go to all experts.
  bool mixture = expert > 1;
  int64_t rows = 1;
  int64_t context = 1;
  std::string method = "ring";
  std::vector<std::string> freeze = {};
  std::string structured = "none";  ///< Kind of the matrices of blocks, all of them.
  /// Method on all linear layers, dora, pissa, a prefix with a projection, two adapters, or lora
  /// with that of the token embedding or with trained tokens.
  std::string peft = {};
  std::string quantized = "none";  ///< Type of the frozen weights of blocks.
  bool added = false;              ///< Its logits are added to those of a frozen network.
  int64_t lazy_rank = 0;           ///< Of lazy adapters of sparse MLPs; 0: MLPs are dense.

  int64_t replicas() const { return data * expert; }
  /// Where gradients are summed, without experts.
  std::string gradient_axis() const {
    return context == 1 ? "data" : data == 1 ? "context" : "context and data";
  }
};

void PrintTo(const RunConfig& way, std::ostream* out) {
  *out << way.name;
}

std::vector<RunConfig> RunConfigs() {
  return {
      {.name = "data", .data = 2},
      {.name = "data4", .data = 4},
      {.name = "zero1", .data = 2, .zero_stage = 1},
      {.name = "zero2", .data = 2, .zero_stage = 2},
      {.name = "zero3", .data = 2, .zero_stage = 3},
      {.name = "tensor", .tensor = 2},
      {.name = "tensorOfLlama", .tensor = 2, .family = "llama"},
      {.name = "sequence", .tensor = 2, .sequence = true},
      {.name = "pipeline", .pipeline = 2},
      {.name = "gpipe4", .pipeline = 4, .schedule = "gpipe"},
      {.name = "interleaved", .pipeline = 2, .schedule = "interleaved", .chunks = 2},
      {.name = "grid", .tensor = 4, .rows = 2},
      {.name = "gridOfLlama", .tensor = 2, .family = "llama", .rows = 2},
      {.name = "gridAndZero3", .data = 2, .tensor = 4, .zero_stage = 3, .rows = 2},
      {.name = "dataAndTensor", .data = 2, .tensor = 2},
      {.name = "all", .data = 2, .tensor = 2, .pipeline = 2},
      {.name = "expert", .family = "llama", .expert = 2},
      {.name = "dataAndExpert", .data = 2, .family = "llama", .expert = 2},
      {.name = "expertAndZero1", .zero_stage = 1, .family = "llama", .expert = 2},
      {.name = "dataAndExpertAndZero2", .data = 2, .zero_stage = 2, .family = "llama", .expert = 2},
      {.name = "dataAndExpertAndZero3", .data = 2, .zero_stage = 3, .family = "llama", .expert = 2},
      {.name = "pipelineAndExpert", .pipeline = 2, .family = "llama", .expert = 2},
      {.name = "expertAndZero1InGroups",
       .data = 2,
       .zero_stage = 1,
       .shard_ranks = 2,
       .family = "llama",
       .expert = 2},
      {.name = "expertAndZero3InGroups",
       .data = 4,
       .zero_stage = 3,
       .shard_ranks = 4,
       .family = "llama",
       .expert = 2},
      {.name = "tensorOfMixture", .tensor = 2, .family = "llama", .mixture = true},
      {.name = "sequenceOfMixture",
       .tensor = 2,
       .sequence = true,
       .family = "llama",
       .mixture = true},
      {.name = "tensorAndExpert", .tensor = 2, .family = "llama", .expert = 2},
      {.name = "dataTensorAndExpertAndZero3",
       .data = 2,
       .tensor = 2,
       .zero_stage = 3,
       .family = "llama",
       .expert = 2},
      {.name = "context", .data = 2, .context = 2},
      {.name = "contextAndZero1", .zero_stage = 1, .context = 2},
      {.name = "contextAndZero3", .zero_stage = 3, .context = 2},
      {.name = "dataAndContextAndZero3",
       .data = 2,
       .zero_stage = 3,
       .family = "llama",
       .context = 2,
       .method = "ulysses"},
      {.name = "contextAndTensor", .tensor = 2, .family = "llama", .context = 2},
      {.name = "contextAndSequence",
       .tensor = 2,
       .sequence = true,
       .context = 2,
       .method = "ulysses"},
      {.name = "contextAndPipeline", .pipeline = 2, .context = 2},
      {.name = "monarch", .data = 2, .structured = "monarch"},
      {.name = "monarchAndZero3", .data = 2, .zero_stage = 3, .structured = "monarch"},
      {.name = "pixelfly", .data = 2, .structured = "pixelfly"},
      {.name = "pixelflyAndZero3", .data = 2, .zero_stage = 3, .structured = "pixelfly"},
      {.name = "frozenStages",
       .pipeline = 4,
       .freeze = {"transformer.w*", "*.h.0.*", "*.h.1.*", "*.ln_f.*"}},
      {.name = "frozenStagesAndContext",
       .pipeline = 2,
       .schedule = "interleaved",
       .chunks = 2,
       .context = 2,
       .freeze = {"transformer.w*", "*.h.0.*", "*.h.2.attn.*"}},
      {.name = "loraAndZero1", .data = 2, .zero_stage = 1, .peft = "lora"},
      {.name = "loraOfTensorAndPipeline", .tensor = 2, .pipeline = 2, .peft = "lora"},
      {.name = "loraOfSequence", .tensor = 2, .sequence = true, .family = "llama", .peft = "lora"},
      {.name = "doraAndBiases", .data = 2, .peft = "dora"},
      {.name = "adalora", .data = 2, .peft = "adalora"},
      {.name = "twoAdaptersAndZero1", .data = 2, .zero_stage = 1, .peft = "adapters"},
      {.name = "twoAdaptersOfLlama", .data = 2, .family = "llama", .peft = "adapters"},
      {.name = "ia3", .data = 2, .family = "llama", .peft = "ia3"},
      {.name = "miss", .pipeline = 2, .peft = "miss"},
      {.name = "qloraOfPipeline", .pipeline = 2, .peft = "lora", .quantized = "fp4"},
      {.name = "qlora", .data = 2, .family = "llama", .peft = "lora", .quantized = "nf4"},
      {.name = "qloraAndZero3",
       .data = 2,
       .zero_stage = 3,
       .family = "llama",
       .peft = "lora",
       .quantized = "nf4"},
      {.name = "qloraOfTensor", .tensor = 2, .family = "llama", .peft = "lora", .quantized = "nf4"},
      {.name = "qloraOfSequence",
       .tensor = 2,
       .sequence = true,
       .family = "llama",
       .peft = "lora",
       .quantized = "fp4"},
      {.name = "qloraOfGpt2AndZero3",
       .data = 2,
       .zero_stage = 3,
       .peft = "lora",
       .quantized = "fp4"},
      {.name = "qloraOfExperts",
       .data = 2,
       .family = "llama",
       .expert = 2,
       .peft = "lora",
       .quantized = "nf4"},
      {.name = "qloraOfExpertsAndZero3",
       .data = 2,
       .zero_stage = 3,
       .family = "llama",
       .expert = 2,
       .peft = "lora",
       .quantized = "fp4"},
      {.name = "pissaOfQuantized",
       .data = 2,
       .family = "llama",
       .peft = "pissa",
       .quantized = "nf4"},
      {.name = "lokrOfPipeline", .pipeline = 2, .family = "llama", .peft = "lokr"},
      {.name = "vera", .data = 2, .peft = "vera"},
      {.name = "veraOfPipeline", .pipeline = 2, .peft = "vera"},
      {.name = "veraAndZero3", .data = 2, .zero_stage = 3, .peft = "vera"},
      {.name = "ia3AndZero3", .data = 2, .zero_stage = 3, .family = "llama", .peft = "ia3"},
      {.name = "doraAndZero3", .data = 2, .zero_stage = 3, .peft = "dora"},
      {.name = "lohaAndZero3", .data = 2, .zero_stage = 3, .peft = "loha"},
      {.name = "adaloraAndZero2", .data = 2, .zero_stage = 2, .peft = "adalora"},
      {.name = "adaloraAndZero3", .data = 2, .zero_stage = 3, .peft = "adalora"},
      {.name = "ia3OfTensor", .tensor = 2, .family = "llama", .peft = "ia3"},
      {.name = "doraOfTensor", .tensor = 2, .peft = "dora"},
      {.name = "lohaOfTensor", .tensor = 2, .peft = "loha"},
      {.name = "lokrOfTensor", .tensor = 2, .family = "llama", .peft = "lokr"},
      {.name = "oftOfTensor", .tensor = 2, .peft = "oft"},
      {.name = "veraOfTensor", .tensor = 2, .family = "llama", .peft = "vera"},
      {.name = "adaloraOfTensor", .tensor = 2, .peft = "adalora"},
      {.name = "twoAdaptersOfTensor", .tensor = 2, .peft = "adapters"},
      {.name = "twoAdaptersAndZero3", .data = 2, .zero_stage = 3, .peft = "adapters"},
      {.name = "twoAdaptersOfPipeline", .pipeline = 2, .peft = "adapters"},
      {.name = "twoAdaptersOfPipelineAndZero1",
       .data = 2,
       .pipeline = 2,
       .zero_stage = 1,
       .schedule = "interleaved",
       .chunks = 2,
       .peft = "adapters"},
      {.name = "twoAdaptersOfContext", .data = 2, .context = 2, .peft = "adapters"},
      {.name = "twoAdaptersOfContextAndZero3",
       .zero_stage = 3,
       .context = 2,
       .method = "ulysses",
       .peft = "adapters"},
      {.name = "loraOfTableAndPipeline", .pipeline = 2, .peft = "table"},
      {.name = "loraOfTableAndZero3", .data = 2, .zero_stage = 3, .peft = "table"},
      {.name = "projectedPrefixAndZero3", .data = 2, .zero_stage = 3, .peft = "prefix"},
      {.name = "projectedPrefixOfPipeline", .pipeline = 2, .peft = "prefix"},
      {.name = "trainedTokensAndZero3", .data = 2, .zero_stage = 3, .peft = "tokens"},
      {.name = "trainedTokensOfPipeline", .pipeline = 2, .peft = "tokens"},
      {.name = "houlsbyOfTensor", .tensor = 2, .peft = "houlsby"},
      {.name = "pfeifferOfTensor", .tensor = 2, .peft = "pfeiffer"},
      {.name = "parallelOfTensor", .tensor = 2, .family = "llama", .peft = "parallel"},
      {.name = "adaloraOfPipeline", .pipeline = 2, .peft = "adalora"},
      {.name = "houlsbyAndZero3", .data = 2, .zero_stage = 3, .peft = "houlsby"},
      {.name = "lazyAdapters", .data = 2, .lazy_rank = 4},
      {.name = "lazyAdaptersAndZero1", .data = 2, .zero_stage = 1, .lazy_rank = 4},
      {.name = "lazyAdaptersAndZero2", .data = 2, .zero_stage = 2, .lazy_rank = 4},
      {.name = "lazyAdaptersAndZero3", .data = 2, .zero_stage = 3, .lazy_rank = 4},
      {.name = "lazyAdaptersOfTensor", .tensor = 2, .lazy_rank = 4},
      {.name = "addedNetwork", .data = 2, .added = true},
      {.name = "addedNetworkAndZero2", .data = 2, .zero_stage = 2, .added = true},
      {.name = "addedNetworkAndZero3", .data = 2, .zero_stage = 3, .added = true},
      {.name = "addedNetworkOfTensor", .tensor = 2, .added = true},
      {.name = "contextAndTensorAndPipeline",
       .tensor = 2,
       .pipeline = 2,
       .schedule = "interleaved",
       .chunks = 2,
       .context = 2},
  };
}

JobSpec JobOfConfig(const RunConfig& way) {
  JobSpec job = JobOf(Combination(Axes().size(), 0));
  ResourceSpec& resources = job.resources;
  resources.ranks = way.replicas() * way.tensor * way.pipeline * way.context;
  resources.context_parallel = way.context;
  resources.context_method = way.method;
  resources.tensor_parallel = way.tensor;
  resources.tensor_rows = way.rows;
  resources.sequence_parallel = way.sequence;
  resources.pipeline_parallel = way.pipeline;
  resources.pipeline_schedule = way.schedule;
  resources.pipeline_chunks = way.chunks;
  resources.zero_stage = way.zero_stage;
  resources.zero_shard_ranks = way.shard_ranks;
  resources.micro_batch = 1;
  job.model.family = way.family;
  job.model.freeze = way.freeze;
  if (way.structured != "none") {
    StructuredMatricesSpec& matrices = job.model.structured_matrices;
    matrices.kind = way.structured;
    matrices.layers = {"*"};
    matrices.blocks = 2;
    matrices.block_size = 16;
    matrices.density = 0.8;
    matrices.low_rank_share = 0.5;
    job.model.width = 96;
  }
  if (!way.peft.empty()) {
    PeftSpec& peft = job.model.peft;
    const bool joint = way.peft == "adapters", tokens = way.peft == "tokens";
    const bool table = way.peft == "table", decomposes = way.peft == "pissa";
    const bool lora = way.peft == "dora" || decomposes || joint || tokens || table;
    peft.method = lora ? "lora" : way.peft;
    peft.use_dora = way.peft == "dora";
    if (decomposes) peft.init = way.peft;
    if (joint) {
      peft.adapters.resize(2);
      peft.adapters[0].name = "one";
      peft.adapters[1].name = "two";
      resources.micro_batch = 2;
    }
    if (way.peft == "prefix") {
      peft.prefix_projection = true;
      peft.num_virtual_tokens = 4;
      job.train.sequence_length = job.model.context - peft.num_virtual_tokens;
    }
    const bool targets = way.peft != "ia3" && way.peft != "houlsby" && way.peft != "pfeiffer" &&
                         way.peft != "parallel" && way.peft != "prefix";
    if (targets) peft.target_modules = {"all-linear"};
    if (table) peft.target_modules = {"wte", "c_attn", "c_fc"};
    // As many that the gradient of their rows is more than a hundredth of all.
    for (int64_t token = 1; tokens && token <= 40; ++token) {
      peft.trainable_token_indices.push_back(token);
    }
    if (way.peft == "vera") peft.rank = 16;  // vectors of whole lines
    if (way.peft == "adalora") peft.adalora.init_r = 32;
    if (way.peft == "oft") peft.oft_block_size = 16;  // of a rank's inputs
    peft.modules_to_save =
        way.peft == "dora" ? std::vector<std::string>{"*.bias"} : std::vector<std::string>();
  }
  job.model.weight_quantization.type = way.quantized;
  if (way.quantized != "none" && way.tensor > 1) {
    job.model.weight_quantization.block_size = 32;  // as many inputs of a rank
    job.model.width = 64;
  }
  resources.expert_parallel = way.expert;
  if (way.added) {
    ModelSpec& base = job.train.value_learning.base;
    base.import_path = WEFT_SOURCE_DIR "/tests/parity/testdata/llama/start";
    job.model.vocab_size = 0;  // that of the base
    const Status resolved = ResolveAddedNetwork(Env::Posix(), job);
    WEFT_CHECK(resolved.ok(), resolved.message());
    job.model.untied_classifier = true;
    job.train.value_learning.logit_penalty = 0.1;
  }
  if (way.lazy_rank > 0) {
    job.train.sparsity = {.method = "slope",
                          .gradient_estimate = "exact",
                          .require = true,
                          .adapter_rank = way.lazy_rank,
                          .adapter_share = 0.5};
  }
  if (way.mixture) {
    job.model.experts = job.model.experts_per_token = 4;
    job.model.width = 64;  // four ranks have whole lines of vectors
  }
  job.train.steps = kSteps;
  return job;
}

class Accounting : public ::testing::TestWithParam<RunConfig> {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "weft_books_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    root_ = pattern;
    job_ = JobOfConfig(GetParam());
    const auto plan = PlanOf(job_);
    ASSERT_TRUE(plan.ok()) << plan.status().message();
    plan_ = *plan;
    auto training = Train(job_, root_, kSteps);
    ASSERT_TRUE(training.ok()) << training.status().message();
    training_ = *training;
    // As many tokens in a pass of one replica, and as many passes.
    const int64_t micro_batch = job_.resources.micro_batch;
    const int64_t passes = job_.train.global_batch / GetParam().replicas() / micro_batch;
    passes_ = static_cast<double>(passes);
    tokens_ = micro_batch * SequenceLength(job_) / GetParam().context;
    stream_ = static_cast<double>(tokens_ * job_.model.width) * sizeof(float);
  }
  void TearDown() override { EXPECT_TRUE(Env::Posix().RemoveTree(root_).ok()); }

  /// Bytes of a step of `rank`, by its account; sent ones or payload.
  double Counted(size_t rank, const std::string& axis, const std::string& collective,
                 double CollectiveUse::*bytes = &CollectiveUse::bytes) const {
    double sum = 0;
    for (const CollectiveUse& use : training_.ranks[rank].collectives) {
      if (use.axis == axis && use.collective == collective) sum += use.*bytes;
    }
    return sum;
  }
  static void ExpectNear(const char* what, double measured, double counted) {
    EXPECT_NEAR(measured, counted, kShare * counted) << what;
  }
  /// Of each axis, as each rank has counted them.
  void ExpectBytesOfTheFormulas() const;
  /// Where a technique has some, as each rank has measured it.
  void ExpectMemoryOfTheFormulas() const;
  void ExpectTimeIsHiddenOrExposed() const;

  std::string root_;
  JobSpec job_;
  Plan plan_;
  Training training_;
  double passes_ = 0;
  int64_t tokens_ = 0;  ///< Of a pass of a rank.
  double stream_ = 0;   ///< Bytes of the residual stream of a pass.
};

void Accounting::ExpectBytesOfTheFormulas() const {
  const RunConfig& way = GetParam();
  for (size_t rank = 0; rank < training_.ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const int64_t gradient_ranks = way.data * way.context;
    if (gradient_ranks > 1 && way.pipeline == 1 && way.expert == 1) {
      const RankTraffic traffic = TrafficOfStep(MemoryInputsOf(job_, plan_, {}));
      ExpectNear("all-reduce", Counted(rank, way.gradient_axis(), "all-reduce"),
                 static_cast<double>(traffic.all_reduced));
      ExpectNear("reduce-scatter", Counted(rank, way.gradient_axis(), "reduce-scatter"),
                 static_cast<double>(traffic.reduce_scattered));
      ExpectNear("all-gather", Counted(rank, way.gradient_axis(), "all-gather"),
                 static_cast<double>(traffic.gathered));
      const double others =
          static_cast<double>(gradient_ranks - 1) / static_cast<double>(gradient_ranks);
      ExpectNear("sent",
                 Counted(rank, way.gradient_axis(), "reduce-scatter", &CollectiveUse::sent_bytes),
                 others * static_cast<double>(traffic.reduce_scattered));
    }
    if (way.context > 1) {
      MemoryInputs inputs = MemoryInputsOf(job_, plan_, {});
      if (way.pipeline > 1) {
        const auto cut = CutModel(job_);
        ASSERT_TRUE(cut.ok()) << cut.status().message();
        inputs.shape = ShapeOfStages(inputs.shape, *cut, way.pipeline,
                                     static_cast<int64_t>(rank) / (gradient_ranks * way.tensor));
      }
      const RankTraffic traffic = TrafficOfStep(inputs);
      const char* exchange = inputs.context.ulysses ? "all-to-all" : "send and receive";
      ExpectNear("attention", Counted(rank, "context", exchange, &CollectiveUse::sent_bytes),
                 static_cast<double>(traffic.context_sent));
      if (way.pipeline > 1) {
        ExpectNear("all-reduce", Counted(rank, way.gradient_axis(), "all-reduce"),
                   static_cast<double>(traffic.all_reduced));
      }
    }
    if (way.expert > 1) {
      MemoryInputs inputs = MemoryInputsOf(job_, plan_, {});
      if (way.pipeline > 1) {
        const auto cut = CutModel(job_);
        ASSERT_TRUE(cut.ok()) << cut.status().message();
        inputs.shape = ShapeOfStages(inputs.shape, *cut, way.pipeline,
                                     static_cast<int64_t>(rank) / way.replicas());
      }
      const RankTraffic traffic = TrafficOfStep(inputs);
      // None alone has anything to say about its experts.
      const bool alone = inputs.ShardGroupSize() == way.expert || way.data == 1;
      const auto of_experts = [&](int64_t bytes) { return alone ? 0 : static_cast<double>(bytes); };
      const auto expect = [&](const char* collective, int64_t of_all, double experts) {
        const std::string all = way.data > 1 ? "expert and data" : "expert";
        if (way.shard_ranks == 0) {
          ExpectNear(collective, Counted(rank, all, collective), static_cast<double>(of_all));
          ExpectNear(collective, Counted(rank, "data", collective), experts);
        } else {
          ExpectNear(collective, Counted(rank, "data", collective),
                     static_cast<double>(of_all) + experts);
        }
      };
      expect("all-reduce", traffic.all_reduced + traffic.between_groups,
             of_experts(traffic.experts_reduced));
      expect("reduce-scatter", traffic.reduce_scattered, of_experts(traffic.experts_scattered));
      expect("all-gather", traffic.gathered, of_experts(traffic.experts_gathered));
      ExpectNear("rows", Counted(rank, "expert", "send and receive"),
                 static_cast<double>(traffic.exchanged));
      const double others = static_cast<double>(way.expert - 1) / static_cast<double>(way.expert);
      ExpectNear("sent rows",
                 Counted(rank, "expert", "send and receive", &CollectiveUse::sent_bytes),
                 others * static_cast<double>(traffic.exchanged));
    }
    if (way.rows > 1) {
      const ModelShape shape(job_.model, way.tensor, false, way.rows);
      const TensorPass pass{.shape = shape, .tokens = SequenceLength(job_), .element_bytes = 4};
      const TensorTraffic row = TrafficOfRow(pass), column = TrafficOfColumn(pass);
      ExpectNear("all-reduce", Counted(rank, "tensor", "all-reduce"),
                 passes_ * static_cast<double>(row.summed + column.summed));
      ExpectNear("all-gather", Counted(rank, "tensor", "all-gather"),
                 passes_ * static_cast<double>(row.gathered + column.gathered));
    } else if (way.tensor > 1 && way.pipeline == 1) {
      // Shoeybi et al. 2019, and Korthikanti et al. 2022 with sequence: two of the residual stream
      // a layer in each direction, one for the embedding, one for the classifier's gradient.
      const auto layers = static_cast<double>(job_.model.layers);
      // Where all below the adapters is frozen, the lowest queries, keys and values pass no
      // gradient, nor does the lowest MLP to what is before it.
      const bool all_biases = way.peft.empty() || way.peft == "dora";
      const bool behind_mlp = way.peft == "pfeiffer" || way.peft == "parallel";
      const double ends = all_biases ? 2 : behind_mlp ? 0 : 1;
      const double sums = passes_ * (4 * layers + ends) * stream_;
      const ModelShape shape(job_.model, way.tensor, way.sequence);
      const TensorTraffic row =
          TrafficOfRow({.shape = shape, .tokens = tokens_, .element_bytes = sizeof(float)});
      ExpectNear("the planner's", passes_ * static_cast<double>(row.summed), sums);
      const double softmax =
          passes_ * static_cast<double>(way.tensor * 3 * tokens_) * sizeof(float);
      // And once a step the gradients of what all have; each has a term of them.
      const int64_t of_adapters =
          MemoryInputsOf(job_, plan_, {}).optimizer.auxiliary.partial_gradients;
      const double partial_sums =
          4 * static_cast<double>(
                  ModelShape(job_.model, way.tensor, way.sequence).partial_gradients + of_adapters);
      if (way.sequence) {
        ExpectNear("reduce-scatter", Counted(rank, "tensor", "reduce-scatter"), sums);
        ExpectNear("all-reduce", Counted(rank, "tensor", "all-reduce"), partial_sums);
        ExpectNear("all-gather", Counted(rank, "tensor", "all-gather"),
                   passes_ * (6 * layers + ends) * stream_ + softmax);
      } else {
        const double reduced = Counted(rank, "tensor", "all-reduce");
        // Some ranks have more of the sharded gradients, some none.
        if (way.zero_stage == 0) ExpectNear("all-reduce", reduced, sums + partial_sums);
        EXPECT_GE(reduced, sums);
        EXPECT_LE(reduced, sums + partial_sums);
        ExpectNear("all-gather", Counted(rank, "tensor", "all-gather"), softmax);
      }
    }
    if (way.pipeline > 1) {
      // Each border between stages once in each direction, for each micro-batch.
      const auto stages = way.pipeline * way.chunks;
      const auto position =
          static_cast<int64_t>(rank) / (way.replicas() * way.context * way.tensor);
      const auto cut = CutModel(job_);
      ASSERT_TRUE(cut.ok()) << cut.status().message();
      const int64_t first = FirstTrainedStage(job_.model, *cut);  // gradients go back to it
      int64_t sent = 0;
      for (int64_t stage = position; stage < stages; stage += way.pipeline) {
        sent += (stage + 1 < stages ? 1 : 0) + (stage > first ? 1 : 0);
      }
      ExpectNear("messages",
                 Counted(rank, "pipeline", "send and receive", &CollectiveUse::sent_bytes),
                 passes_ * static_cast<double>(sent) * stream_);
    }
  }
}

void Accounting::ExpectMemoryOfTheFormulas() const {
  const bool adapts = !GetParam().peft.empty() && GetParam().pipeline == 1;
  if (GetParam().structured == "none" && !adapts && !GetParam().added) return;
  const MemoryBreakdown predicted = PredictMemory(
      MemoryInputsOf(job_, plan_, {engine::ProductsOf(PrecisionOf(plan_.precision).products)}));
  for (const trainer::ProgressMessage& rank : training_.ranks) {
    const auto near = [&](const char* what, int64_t MemoryBreakdown::*part) {
      ExpectNear(what, static_cast<double>(rank.memory_step.*part),
                 static_cast<double>(predicted.*part));
    };
    const bool sharded = GetParam().tensor > 1 || GetParam().zero_stage > 2;
    if (adapts || (GetParam().added && sharded)) {
      // The rest is small here, and padded to lines, as is what DoRA keeps of rows: hence twice the
      // tolerance. Wider networks are within it (memory_variants_test.cc).
      const auto parameters = static_cast<double>(predicted.parameters_bytes);
      EXPECT_NEAR(static_cast<double>(rank.memory_step.parameters_bytes), parameters,
                  2 * kShare * parameters);
      if (GetParam().peft == "tokens") near("gradients", &MemoryBreakdown::gradients_bytes);
      continue;
    }
    near("parameters", &MemoryBreakdown::parameters_bytes);
    near("gradients", &MemoryBreakdown::gradients_bytes);
    // The shards of so small tensors differ by more, with and without the other network.
    const bool shards = GetParam().added && GetParam().zero_stage > 0;
    if (!shards) near("optimizer", &MemoryBreakdown::optimizer_bytes);
    near("activations", &MemoryBreakdown::activations_bytes);
  }
}

void Accounting::ExpectTimeIsHiddenOrExposed() const {
  for (const trainer::ProgressMessage& rank : training_.ranks) {
    ASSERT_FALSE(rank.collectives.empty());
    for (const CollectiveUse& use : rank.collectives) {
      SCOPED_TRACE(use.axis + " " + use.collective);
      EXPECT_GT(use.calls, 0);
      EXPECT_GE(use.seconds, 0);
      EXPECT_GE(use.exposed_seconds, 0);
      EXPECT_LE(use.HiddenSeconds(), use.seconds);
    }
    EXPECT_GT(rank.tiers.device_bytes, 0);
    EXPECT_EQ(rank.tiers.host_bytes, 0) << "nothing is offloaded";
    EXPECT_EQ(rank.tiers.stall_seconds, 0);
  }
}

// All of one training, which takes much longer than to look at what it has counted.
TEST_P(Accounting, BytesAndMemoryAreThoseOfTheFormulasAndTimeIsHiddenOrExposed) {
  ExpectBytesOfTheFormulas();
  ExpectMemoryOfTheFormulas();
  ExpectTimeIsHiddenOrExposed();
}

INSTANTIATE_TEST_SUITE_P(Ways, Accounting, ::testing::ValuesIn(RunConfigs()),
                         [](const auto& test) { return test.param.name; });

TEST(AccountingOfTiers, FilesAndHostMemoryAreDistinguished) {
  std::string root = ::testing::TempDir() + "weft_tiers_XXXXXX";
  ASSERT_NE(mkdtemp(root.data()), nullptr);
  JobSpec job = JobOfConfig(RunConfig{});
  job.resources.offload_optimizer = "nvme";
  job.resources.offload_directory = root;
  job.resources.host_link_bytes_per_second = 5'000'000;  // slow enough to be waited for
  const auto training = Train(job, root + "/run", kSteps);
  ASSERT_TRUE(training.ok()) << training.status().message();
  const TierUse& tiers = training->ranks[0].tiers;
  const auto parameters = static_cast<double>(ShapeOf(job).stored_trained);
  // Both moments in the file; values and gradients on the host.
  EXPECT_NEAR(static_cast<double>(tiers.file_bytes), 8 * parameters, 0.05 * 8 * parameters);
  EXPECT_GE(static_cast<double>(tiers.host_bytes), 8 * parameters);
  EXPECT_GT(tiers.device_bytes, 0);
  // What goes up after an update is waited for, at the rate of the link.
  EXPECT_GT(tiers.stall_seconds, 0.01);
  EXPECT_TRUE(Env::Posix().RemoveTree(root).ok());
}

}  // namespace
}  // namespace weft::testing
