#include "common/model/name_patterns.h"

#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/testing.h"

namespace weft {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

using Change = std::function<void(JobSpec&)>;

/// A field whose patterns name matrices of blocks, and a job with one of them there.
struct MatrixField {
  std::string name;
  std::function<void(JobSpec&, const std::string&)> set;
};

const std::vector<MatrixField> kMatrixFields = {
    {"model.over_parameterization.layers",
     [](JobSpec& job, const std::string& pattern) {
       job.model.over_parameterization.kind = "linear_expansion";
       job.model.over_parameterization.layers = {pattern};
     }},
    {"model.low_rank_core.layers",
     [](JobSpec& job, const std::string& pattern) {
       job.model.low_rank_core.rank = 8;
       job.model.low_rank_core.layers = {pattern};
     }},
    {"train.pruning.layers",
     [](JobSpec& job, const std::string& pattern) {
       job.train.pruning.method = "magnitude";
       job.train.pruning.layers = {pattern};
     }},
    {"model.structured_matrices.layers",
     [](JobSpec& job, const std::string& pattern) {
       job.model.structured_matrices.kind = "monarch";
       job.model.structured_matrices.layers = {pattern};
     }},
};

void Group(JobSpec& job, const std::string& pattern) {
  job.optimizer.groups.push_back(
      {.parameters = {pattern}, .learning_rate_scale = 0.5, .weight_decay = {}});
}

std::string MessageOf(const Change& change) {
  JobSpec job = GoodJob();
  change(job);
  return ValidateJob(job).message();
}

TEST(NamePatterns, ThatMatchNothingAreRefusedWithTheNearestName) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.model.freeze = {"*.ln_1.*", "transformer.wtf.weight"};
              }),
              HasSubstr("model.freeze 'transformer.wtf.weight' matches no parameter; hint: did you "
                        "mean 'transformer.wte.weight'?"));
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                Group(job, "*.ln_1.*");
                Group(job, "transformer.wtf.weight");
              }),
              HasSubstr("optimizer.groups 'transformer.wtf.weight' matches no parameter; hint: did "
                        "you mean 'transformer.wte.weight'?"));
  for (const MatrixField& field : kMatrixFields) {
    const auto error = [&](const std::string& pattern) {
      return ErrorAfter([&](JobSpec& job) { field.set(job, pattern); });
    };
    EXPECT_THAT(error("transformer.h.1.mlp.c_fc.wieght"),
                AllOf(HasSubstr(field.name + " 'transformer.h.1.mlp.c_fc.wieght' matches no "),
                      HasSubstr("matrix of a block; hint: did you mean "
                                "'transformer.h.1.mlp.c_fc.weight'?")));
    EXPECT_THAT(error("transformer.wte.weight"), HasSubstr("matches no ")) << "of no block";
    EXPECT_THAT(error("*.mlp.c_fc.bias"), HasSubstr("matches no ")) << "no matrix";
    EXPECT_EQ(MessageOf([&](JobSpec& job) { field.set(job, "*.5.mlp.c_fc.weight"); }), "");
    EXPECT_THAT(error("*.6.mlp.c_fc.weight"), HasSubstr("matches no ")) << "of six blocks";
  }
}

TEST(NamePatterns, ThatAreNearNothingAreRefusedWithNamesThatThereAre) {
  EXPECT_THAT(ErrorAfter([](JobSpec& job) { job.model.freeze = {"model.layers.*"}; }),
              HasSubstr("hint: names are like 'transformer.wte.weight' and 'transformer.h."));
  EXPECT_THAT(CheckPatterns("a.field", {"*c"}, {"first"}).message(),
              "a.field '*c' matches no parameter; hint: names are like 'first'");
  EXPECT_THAT(CheckPatterns("a.field", {"a*"}, {}, "matrix").message(),
              "a.field 'a*' matches no matrix; hint: model.layers and model.freeze leave none");
}

TEST(NamePatterns, NameMatricesThatAreTrained) {
  for (const MatrixField& field : kMatrixFields) {
    const auto message = [&](const std::string& pattern) {
      return MessageOf([&](JobSpec& job) {
        job.model.freeze = {"*.h.0.*"};
        field.set(job, pattern);
      });
    };
    EXPECT_EQ(message("*.mlp.c_fc.weight"), "") << field.name;
    if (field.name == "model.structured_matrices.layers") {
      EXPECT_EQ(message("*.h.0.mlp.c_fc.weight"), "") << "a frozen weight has factors, too";
    } else {
      EXPECT_THAT(message("*.h.0.mlp.c_fc.weight"),
                  HasSubstr(field.name + " '*.h.0.mlp.c_fc.weight' matches no trained matrix"));
    }
  }
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.train.pruning.method = "magnitude";
                job.model.freeze = {"transformer.h.*"};
              }),
              HasSubstr("train.pruning has nothing to prune"));
}

TEST(NamePatterns, ThatFreezeAllAreRefused) {
  for (const std::vector<std::string>& all : std::vector<std::vector<std::string>>{
           {"*"}, {"transformer.w*", "*.ln_f.*", "transformer.h.*"}}) {
    EXPECT_THAT(ErrorAfter([&](JobSpec& job) { job.model.freeze = all; }),
                HasSubstr("model.freeze leaves nothing to train"));
  }
  // What is in place of a weight is frozen by the weight's name.
  EXPECT_THAT(ErrorAfter([](JobSpec& job) {
                job.model.structured_matrices.kind = "monarch";
                job.model.freeze = {"*.weight", "*.bias"};
              }),
              HasSubstr("model.freeze leaves nothing to train"));
  // All outside of blocks and of the first block, but not of the others.
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.model.freeze = {"transformer.w*", "*.ln_f.*", "transformer.h.0.*"};
  }));
  EXPECT_TRUE(Accepts([](JobSpec& job) {
    job.model.untied_classifier = true;
    job.model.freeze = {"transformer.*"};
  }));
}

TEST(NamePatterns, NameExpertsFactorsAndAdapters) {
  const auto mixture = [](JobSpec& job) {
    job.model.family = "llama";
    job.model.experts = 4;
    job.model.experts_per_token = 2;
  };
  const auto factors = [](JobSpec& job) { job.model.over_parameterization.kind = "branches"; };
  const auto cores = [](JobSpec& job) { job.model.low_rank_core.rank = 8; };
  const auto monarch = [](JobSpec& job) { job.model.structured_matrices.kind = "monarch"; };
  const auto lora = [](JobSpec& job) { job.model.peft.method = "lora"; };
  struct Case {
    Change network;
    std::string pattern;
    bool frozen;   ///< Whether model.freeze may name it,
    bool grouped;  ///< and optimizer.groups.
  };
  for (const Case& c : std::vector<Case>{
           {mixture, "*.layers.5.*.experts.3.w2.weight", true, true},
           {mixture, "*.block_sparse_moe.gate.weight", true, true},
           {mixture, "*.experts.4.*", false, false},
           {mixture, "*.mlp.*", false, false},
           // Weights are frozen before they have factors.
           {factors, "*.h.5.mlp.c_fc.weight.branch_0_scale", false, true},
           {factors, "*.h.5.mlp.c_fc.weight", true, true},
           {cores, "*.core_out", false, true},
           {cores, "*.rest", false, true},
           {monarch, "*.monarch_second", true, true},
           {monarch, "*.h.5.mlp.c_fc.weight", true, true},
           {monarch, "*.attn.*.monarch_second", false, false},
           {lora, "*.h.5.*.lora_B.weight", true, true},
           {lora, "*.mlp.*.lora_B.weight", false, false},
       }) {
    SCOPED_TRACE(c.pattern);
    JobSpec job = GoodJob();
    c.network(job);
    ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
    JobSpec grouped = job;
    Group(grouped, c.pattern);
    EXPECT_EQ(CheckParameterPatterns(grouped).ok(), c.grouped);
    EXPECT_EQ(ValidateJob(grouped).ok(), c.grouped) << ValidateJob(grouped).message();
    job.model.freeze = {c.pattern};
    EXPECT_EQ(CheckParameterPatterns(job).ok(), c.frozen);
    // Jobs with adapters freeze nothing besides.
    if (!job.model.peft.method.starts_with("lora")) {
      EXPECT_EQ(ValidateJob(job).ok(), c.frozen) << ValidateJob(job).message();
    }
  }
}

TEST(NamePatterns, OfAnImportedNetworkAreRefusedWhenItsSizesAreKnown) {
  const auto check = [](const Change& change, const std::string& message) {
    JobSpec job = GoodJob();
    job.model.import_path = job.data.tokenizer.path = "/a";
    change(job);
    EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
    EXPECT_THAT(ValidateKnownSizes(job).message(), HasSubstr(message));
  };
  check([](JobSpec& job) { job.model.freeze = {"*.h.6.*"}; }, "model.freeze '*.h.6.*' matches no");
  check([](JobSpec& job) { Group(job, "*.h.6.*"); }, "optimizer.groups '*.h.6.*' matches no");
  for (const MatrixField& field : kMatrixFields) {
    check([&](JobSpec& job) { field.set(job, "*.h.6.*"); }, field.name + " '*.h.6.*' matches no ");
  }
}

TEST(NamePatterns, AreOfTheNetworkOfEachPhase) {
  const auto message = [](const std::string& pattern) {
    return MessageOf([&](JobSpec& job) {
      job.schedule.warmup_steps = 10;
      job.phases.resize(2);
      job.phases[0].steps = 100;
      job.phases[0].layers = 2;
      job.phases[1].steps = 200;
      job.phases[1].growth.method = "stack";
      Group(job, pattern);
    });
  };
  EXPECT_EQ(message("*.h.1.*"), "");
  EXPECT_THAT(message("*.h.2.*"), HasSubstr("phases[0]: optimizer.groups '*.h.2.*' matches no"));
}

TEST(NamePatterns, FindWhatIsInThePlaceOfAWeightByBothNames) {
  JobSpec job = GoodJob();
  job.model.vocab_size = 64;
  job.model.structured_matrices.kind = "monarch";
  const std::vector<std::string> names = ParameterNames(job.model);
  EXPECT_THAT(names, Contains("transformer.h.0.mlp.c_fc.weight"));
  EXPECT_THAT(names, Contains("transformer.h.0.mlp.c_fc.weight.monarch_first"));
  EXPECT_THAT(names, Not(Contains("transformer.h.0.attn.c_attn.weight.monarch_first")));
}

}  // namespace
}  // namespace weft
