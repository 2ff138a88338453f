// Expert-parallel ranks against ranks that have all experts.
#include "worker/engine/nn/expert_parallel.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/expert_run.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

// Each row says whence it comes, for which expert, and which of these it is.
TEST(ExpertParallel, RowsGoToTheirExpertsAndComeBack) {
  constexpr int64_t kWidth = 5;
  for (const int64_t degree : {2, 4}) {
    for (const int64_t here : {1, 3}) {
      SCOPED_TRACE(std::to_string(degree) + " ranks with " + std::to_string(here));
      const int64_t experts = degree * here;
      // Some experts get nothing, of some ranks or of all.
      const auto count = [&](int64_t rank, int64_t e) {
        return e == 1 ? 0 : (7 * rank + 3 * e) % 5;
      };
      const auto mark = [](int64_t rank, int64_t e, int64_t row) {
        return static_cast<float>(10000 * rank + 100 * e + row);
      };
      RunRanks(static_cast<int>(degree), std::chrono::seconds(20), [&](Collective& world) {
        Allocator allocator(0);
        Context context;
        context.allocator = &allocator;
        const ExpertParallel ranks(&world);
        std::vector<int64_t> sent;
        std::vector<float> marks;
        for (int64_t e = 0; e < experts; ++e) {
          sent.push_back(count(world.rank(), e));
          for (int64_t row = 0; row < sent.back(); ++row) {
            marks.push_back(mark(world.rank(), e, row));
          }
        }
        const auto rows = ranks.Agree(context, sent);
        ASSERT_TRUE(rows.ok()) << rows.status().message();
        ASSERT_EQ(rows->SentRows(), std::ssize(marks));
        const auto make = [&](int64_t number) {
          return Tensor::New(context, Component::kWorkspace, DType::kF32, {number, kWidth}).value();
        };
        const Tensor from = make(rows->SentRows()), back = make(rows->SentRows());
        const Tensor there = make(rows->ReceivedRows());
        for (size_t i = 0; i < marks.size(); ++i) {
          std::fill_n(from.As<float>() + i * kWidth, kWidth, marks[i]);
        }
        ASSERT_TRUE(ranks.ToExperts(context, *rows, from, there).ok());
        std::vector<float> expected;
        for (int64_t e = world.rank() * here; e < (world.rank() + 1) * here; ++e) {
          for (int64_t r = 0; r < degree; ++r) {
            for (int64_t row = 0; row < count(r, e); ++row) {
              expected.insert(expected.end(), kWidth, mark(r, e, row));
            }
          }
        }
        EXPECT_EQ(ValuesOf(there.view()), expected);
        ASSERT_TRUE(ranks.FromExperts(context, *rows, there, back).ok());
        EXPECT_EQ(ValuesOf(back.view()), ValuesOf(from.view()));
      });
    }
  }
}

TEST(ExpertParallel, TrainingFollowsThatOfRanksThatHaveAllExperts) {
  std::map<std::string, MeshOutcome> wholes;  // by the training
  for (const ExpertRunConfig& config :
       std::vector<ExpertRunConfig>{{2, 2},
                                    {2, 2, 1.0},
                                    {4, 2, 0, "recompute"},
                                    {4, 4, 1.25},
                                    {4, 4, 0, "attention"},
                                    {8, 2},
                                    {8, 4},
                                    {4, 2, 0, "keep", "bf16"},
                                    {2, 2, 0, "keep", "fp16"},
                                    {4, 2, 0, "keep", "fp16", 2},
                                    {2, 2, 0, "keep", "fp32", 1},
                                    {4, 2, 1.0, "keep", "fp32", 1},
                                    {4, 4, 0, "keep", "fp32", 2},
                                    {8, 2, 0, "recompute", "fp32", 2},
                                    {2, 2, 0, "recompute", "fp32", 3},
                                    {8, 4, 0, "keep", "fp32", 3},
                                    {4, 2, 0, "keep", "bf16", 1},
                                    {4, 2, 0, "keep", "bf16", 3},
                                    {2, 2, 0, "keep", "bf16", 3},
                                    {4, 2, 0, "keep", "bf16_pure", 1},
                                    {2, 2, 0, "keep", "bf16_pure", 3}}) {
    SCOPED_TRACE(NameOf(config));
    ExpertRunConfig plain = config;
    plain.expert = 1;
    plain.zero_stage = 0;
    plain.policy = "keep";
    const auto [whole, fresh] = wholes.try_emplace(NameOf(plain));
    if (fresh) whole->second = TrainOnMesh(CaseOf(plain)).front();
    const double tolerance = config.precision == "fp32" ? 1e-5 : 5e-3;
    ExpectFollows(TrainOnMesh(CaseOf(config)), whole->second, tolerance, 10 * tolerance);
  }
}

// Patterns are of all experts, which no rank has.
TEST(ExpertParallel, WhatIsFrozenAndHowFastTheRestLearnsIsAsOnOneRank) {
  ModelSpec model = MixtralModel();
  model.freeze = {"*.layers.0.*.experts.*", "*.layers.1.*.w1.weight", "*.k_proj.*", "*.1.*.gate.*"};
  OptimizerSpec optimizer;
  optimizer.layer_decay = 0.8;
  optimizer.groups.emplace_back().parameters = {"*.experts.0.*", "*.experts.3.w2.*"};
  optimizer.groups.back().learning_rate_scale = 0.3;
  const auto case_of = [&](const ExpertRunConfig& config) {
    MeshCase c = CaseOf(config, model);
    optimizer.learning_rate = c.job.optimizer.learning_rate;
    c.job.optimizer = optimizer;
    return c;
  };
  const MeshOutcome whole = TrainOnMesh(case_of({})).front();
  for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{{2, 2},
                                                                    {4, 4, 0, "recompute"},
                                                                    {4, 2, 0, "keep", "fp32", 2},
                                                                    {4, 2, 0, "keep", "fp32", 3}}) {
    SCOPED_TRACE(NameOf(config));
    ExpectFollows(TrainOnMesh(case_of(config)), whole, 1e-5, 5e-4);
  }
}

// Experts are sharded within groups, too, or are whole in each.
TEST(ExpertParallel, GroupsThatShareFollowRanksThatHaveAllExperts) {
  const MeshOutcome whole = TrainOnMesh(CaseOf({4, 1})).front();
  const MeshOutcome wide = TrainOnMesh(CaseOf({8, 1})).front();
  for (const ExpertRunConfig& config : std::vector<ExpertRunConfig>{
           {.ranks = 4, .expert = 2, .zero_stage = 1, .shard_ranks = 2},
           {.ranks = 4, .expert = 2, .zero_stage = 2, .shard_ranks = 2},
           {.ranks = 4, .expert = 2, .policy = "recompute", .zero_stage = 3, .shard_ranks = 2},
           {.ranks = 8, .expert = 2, .zero_stage = 1, .shard_ranks = 4},
           {.ranks = 8, .expert = 2, .zero_stage = 3, .shard_ranks = 4}}) {
    SCOPED_TRACE(NameOf(config));
    ExpectFollows(TrainOnMesh(CaseOf(config)), config.ranks == 4 ? whole : wide, 1e-5, 5e-4);
  }
}

/// What all ranks save.
SavedState StateOf(const std::vector<MeshOutcome>& ranks) {
  SavedState all;
  for (const MeshOutcome& rank : ranks) all.Add(rank.state);
  return all;
}

// What is added up is the same in the same order, whoever updates it.
TEST(ExpertParallel, SharingUpdatesLeavesTheSameBits) {
  for (const int64_t expert : {2, 4}) {
    SCOPED_TRACE(expert);
    const auto trained = [&](int64_t stage) {
      return StateOf(TrainOnMesh(CaseOf({4, expert, 0, "keep", "fp32", stage})));
    };
    const SavedState shared = trained(1);
    EXPECT_EQ(shared.tensors, trained(0).tensors);
    int64_t most = 0;
    for (const auto& [name, parts] : shared.parts) {
      if (name.find(".experts.") == std::string::npos) {
        most = std::max(most, parts);
      } else {
        EXPECT_LE(parts, 4 / expert) << name << " is on this many ranks";
      }
    }
    EXPECT_GT(most, 2) << "all share the others";
    // These add up the sums of ranks, where values are does not matter.
    EXPECT_EQ(trained(2).tensors, trained(3).tensors);
  }
}

// The order of all sums is fixed.
TEST(ExpertParallel, TrainingIsTheSameEachTime) {
  const MeshCase c = CaseOf({4, 2, 0, "keep", "bf16"});
  const auto once = TrainOnMesh(c), again = TrainOnMesh(c);
  for (size_t rank = 0; rank < once.size(); ++rank) {
    EXPECT_EQ(once[rank].values, again[rank].values);
  }
}

/// A training state as files of the ranks.
struct Folder {
  std::string path;
  CheckpointManifest manifest = {};
};

/// Makes `steps` steps from the state in `from`, where there is one, and saves that in `to`.
/// Returns what the files have.
SavedState Resume(Env& env, const MeshCase& c, const Folder* from, int steps, Folder& to) {
  EXPECT_TRUE(env.CreateDirs(to.path).ok());
  SavedState all;
  std::mutex mutex;
  RunRanks(static_cast<int>(c.ranks()), std::chrono::seconds(60), [&](Collective& world) {
    MeshRank rank(c, world);
    if (from != nullptr) {
      const std::lock_guard lock(mutex);
      const Status loaded = LoadTensors(env, from->path, from->manifest,
                                        rank.trainer->StateTensors(), ExtraTensors::kIgnore);
      WEFT_CHECK(loaded.ok(), loaded.message());
    }
    for (int step = 0; step < steps; ++step) {
      const auto report = rank.trainer->Step();
      WEFT_CHECK(report.ok(), report.status().message());
    }
    std::vector<NamedTensor> tensors = rank.trainer->StateTensors();
    std::erase_if(tensors, [](const NamedTensor& tensor) { return !tensor.saved; });
    const std::lock_guard lock(mutex);
    if (!tensors.empty()) {
      auto file = WriteTensorFile(env, to.path, world.rank(), c.ranks(), tensors);
      WEFT_CHECK(file.ok(), file.status().message());
      to.manifest.files.push_back(*file);
    }
    all.Add(tensors);
  });
  for (const auto& [name, values] : all.tensors) {
    EXPECT_EQ(all.saved.at(name), std::ssize(values)) << name << " is saved once";
  }
  return all;
}

TEST(ExpertParallel, StateIsReadByOtherMeshesBitForBit) {
  FaultEnv env;
  ModelSpec model = MixtralModel();
  model.kv_heads = 2;
  const MeshCase twos = CaseOf({4, 2}, model), fours = CaseOf({4, 4}, model);
  const MeshCase one = CaseOf({2, 1}, model);
  Folder of_twos{"/twos"}, of_fours{"/fours"}, of_one{"/one"}, again{"/again"};
  Folder of_updates{"/updates"}, of_values{"/values"};
  const SavedState state = Resume(env, twos, nullptr, 2, of_twos);
  EXPECT_EQ(of_twos.manifest.files.size(), 2u) << "those of one group write";
  EXPECT_EQ(Resume(env, fours, &of_twos, 0, of_fours).tensors, state.tensors);
  EXPECT_EQ(of_fours.manifest.files.size(), 4u);
  EXPECT_EQ(Resume(env, one, &of_fours, 0, of_one).tensors, state.tensors);
  EXPECT_EQ(of_one.manifest.files.size(), 1u);
  EXPECT_EQ(Resume(env, twos, &of_one, 0, again).tensors, state.tensors);
  // Ranks that shard updates, or values, all have something to write.
  const MeshCase updates = CaseOf({8, 2, 0, "keep", "fp32", 1}, model);
  const MeshCase values = CaseOf({4, 4, 0, "keep", "fp32", 3}, model);
  EXPECT_EQ(Resume(env, updates, &of_one, 0, of_updates).tensors, state.tensors);
  EXPECT_EQ(of_updates.manifest.files.size(), 8u);
  EXPECT_EQ(Resume(env, values, &of_updates, 0, of_values).tensors, state.tensors);
  EXPECT_EQ(of_values.manifest.files.size(), 4u);
  Folder last{"/last"};
  EXPECT_EQ(Resume(env, fours, &of_values, 0, last).tensors, state.tensors);
  // Each tensor-parallel rank has its part of the experts that are there.
  const MeshCase halves = CaseOf({.ranks = 2, .expert = 2, .tensor = 2}, model);
  const MeshCase dealt = CaseOf({.zero_stage = 3, .tensor = 2, .sequence = true}, model);
  Folder of_halves{"/halves"}, of_sequence_parallel{"/dealt"}, back{"/back"};
  EXPECT_EQ(Resume(env, halves, &of_values, 0, of_halves).tensors, state.tensors);
  EXPECT_EQ(of_halves.manifest.files.size(), 4u);
  EXPECT_EQ(Resume(env, dealt, &of_halves, 0, of_sequence_parallel).tensors, state.tensors);
  EXPECT_EQ(Resume(env, fours, &of_sequence_parallel, 0, back).tensors, state.tensors);
}

TEST(ExpertParallel, MixtralFoldersAreWrittenAndRead) {
  FaultEnv env;
  const MeshCase shared = CaseOf({4, 4}), one = CaseOf({1, 1});
  Folder of_fours{"/fours"};
  const SavedState state = Resume(env, shared, nullptr, 2, of_fours);
  RunRanks(1, std::chrono::seconds(20), [&](Collective& world) {
    MeshRank rank(one, world);
    Status status = LoadTensors(env, of_fours.path, of_fours.manifest, rank.trainer->StateTensors(),
                                ExtraTensors::kIgnore);
    ASSERT_TRUE(status.ok()) << status.message();
    status = ExportWeights(env, "/mixtral", *rank.run.model, {});
    ASSERT_TRUE(status.ok()) << status.message();
  });
  std::mutex mutex;
  RunRanks(4, std::chrono::seconds(20), [&](Collective& world) {
    MeshRank rank(shared, world);
    Model& model = *rank.run.model;
    EXPECT_EQ(ExportWeights(env, "/part", model, {}).code(), StatusCode::kInvalid);
    const std::lock_guard lock(mutex);
    const Status status = ImportWeights(env, "/mixtral", model);
    ASSERT_TRUE(status.ok()) << status.message();
    for (int64_t i = 0; i < model.parameters().size(); ++i) {
      const std::string& name = model.parameters()[i].name;
      EXPECT_EQ(ValuesOf(model.parameters().value(i)), state.tensors.at(name)) << name;
    }
  });
}

TEST(ExpertParallel, ARankThatIsLostStopsAllOthers) {
  const MeshCase c = CaseOf({4, 2});
  RunRanks(4, std::chrono::seconds(20), [&](Collective& world) {
    MeshRank rank(c, world);
    ASSERT_TRUE(rank.trainer->Step().ok());
    if (world.rank() == 2) {
      rank.ranks.groups.Abort();  // as when its process ends: all connections go
      return;
    }
    EXPECT_EQ(rank.trainer->Step().status().code(), StatusCode::kUnavailable);
    rank.ranks.groups.Abort();
  });
}

TEST(ExpertParallel, WhatCannotBeSharedIsRefused) {
  RunRanks(2, std::chrono::seconds(20), [](Collective& world) {
    const ExpertParallel ranks(&world);
    ModelOptions options;
    options.experts = &ranks;
    Allocator allocator(0);
    Context context;
    context.allocator = &allocator;
    ModelSpec model = MixtralModel();
    const auto error = [&] { return NewModel(context, model, options).status().message(); };
    model.experts = 3;
    EXPECT_THAT(error(), HasSubstr("model.experts 3 cannot be partitioned over 2 ranks"));
    model.experts = 0;
    EXPECT_THAT(error(), HasSubstr("model.experts 0 cannot be partitioned over 2 ranks"));
    model = MixtralModel();
    model.freeze = {"*.experts.0.*"};
    EXPECT_THAT(error(), HasSubstr("all experts of a layer, or none"));
    model.freeze = {"*.experts.4.*"};
    EXPECT_THAT(error(), HasSubstr("model.freeze '*.experts.4.*' matches no parameter"));
  });
}

}  // namespace
}  // namespace weft::engine
