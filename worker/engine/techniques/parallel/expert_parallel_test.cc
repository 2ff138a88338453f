// Ranks that share experts against ranks that have them all.
#include "worker/engine/nn/expert_parallel.h"

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/model/memory_model.h"
#include "common/model/rank_traffic.h"
#include "worker/engine/checkpoint/tensor_files.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kSteps = 10;
constexpr int64_t kLength = 24;

ModelSpec MixtralModel() {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.context = kLength;
  spec.kv_heads = 1;
  spec.mlp_width = 48;
  spec.untied_classifier = true;
  spec.experts = 4;
  spec.experts_per_token = 2;
  spec.router_aux_loss = 0.05;
  return spec;
}

/// Of `ranks` ranks, groups of `expert` share the experts.
struct Ways {
  int64_t ranks = 2;
  int64_t expert = 2;
  double capacity = 0;
  std::string policy = "keep";
  std::string precision = "fp32";
};

MeshCase CaseOf(const Ways& ways, const ModelSpec& model = MixtralModel()) {
  constexpr int64_t kBatch = 8;
  MeshCase c{TinyJob(kBatch), TinyPlan(ways.precision, 1, kBatch / ways.ranks)};
  c.job.model = model;
  c.job.model.expert_capacity = ways.capacity;
  c.job.train.steps = kSteps;
  c.job.train.precision = ways.precision;
  c.job.train.eval_sequences = 11;
  c.job.train.log_every_steps = 3;
  c.job.train.gradient_clip_norm = 0.5;
  c.job.optimizer.learning_rate = 1e-2;
  c.plan.mesh.data = ways.ranks / ways.expert;
  c.plan.mesh.expert = ways.expert;
  c.plan.bucket_bytes = 4000;
  c.plan.block_memory_policy.assign(static_cast<size_t>(model.layers), ways.policy);
  return c;
}

std::string NameOf(const Ways& ways) {
  return std::to_string(ways.ranks) + " ranks, experts shared by " + std::to_string(ways.expert) +
         ", capacity " + std::to_string(ways.capacity) + ", " + ways.policy + ", " + ways.precision;
}

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

void ExpectFollows(const std::vector<MeshOutcome>& ranks, const std::vector<MeshOutcome>& plain,
                   double tolerance) {
  std::map<std::string, std::vector<float>> state;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    SCOPED_TRACE(rank);
    const MeshOutcome& own = ranks[rank];
    for (size_t step = 0; step < kSteps; ++step) {
      const StepReport &report = own.reports[step], &truth = plain[0].reports[step];
      EXPECT_NEAR(report.loss, truth.loss, tolerance) << step;
      EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, 10 * tolerance * truth.gradient_norm);
      EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
      EXPECT_EQ(report.gradient_norm, ranks[0].reports[step].gradient_norm);
      EXPECT_EQ(report.targets, truth.targets);
      EXPECT_EQ(report.skipped, truth.skipped);
      ASSERT_EQ(report.norms.size(), truth.norms.size());
      for (size_t g = 0; g < truth.norms.size(); ++g) {
        EXPECT_EQ(report.norms[g].group, truth.norms[g].group);
        EXPECT_NEAR(report.norms[g].parameter, truth.norms[g].parameter,
                    10 * tolerance * truth.norms[g].parameter);
      }
    }
    EXPECT_NEAR(own.evaluation, plain[0].evaluation, tolerance);
    for (const auto& [name, values] : own.values) {
      for (const MeshOutcome& other : ranks) {
        const auto same = other.values.find(name);
        if (same == other.values.end()) continue;
        EXPECT_EQ(values, same->second) << name << " bit for bit wherever it is";
      }
    }
    for (const auto& [name, values] : own.state.tensors) {
      EXPECT_TRUE(state.emplace(name, values).second) << name << " is saved twice";
    }
  }
  const auto& truth = plain[0].state.tensors;
  EXPECT_EQ(state.size(), truth.size()) << "every tensor is saved";
  for (const auto& [name, values] : state) {
    ASSERT_TRUE(truth.contains(name)) << name;
    EXPECT_LT(Distance(values, truth.at(name)), 1e3 * tolerance) << name;
  }
}

TEST(ExpertParallel, TrainingFollowsThatOfRanksThatHaveAllExperts) {
  for (const Ways& ways : std::vector<Ways>{{2, 2},
                                            {2, 2, 1.0},
                                            {4, 2, 0, "recompute"},
                                            {4, 4, 1.25},
                                            {4, 4, 0, "attention"},
                                            {8, 2},
                                            {8, 4},
                                            {4, 2, 0, "keep", "bf16"},
                                            {2, 2, 0, "keep", "fp16"}}) {
    SCOPED_TRACE(NameOf(ways));
    Ways plain = ways;
    plain.expert = 1;
    ExpectFollows(TrainOnMesh(CaseOf(ways)), TrainOnMesh(CaseOf(plain)),
                  ways.precision == "fp32" ? 1e-5 : 5e-3);
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
  for (const auto& [name, parts] : all.parts) EXPECT_EQ(parts, 1) << name << " is saved once";
  return all;
}

TEST(ExpertParallel, StateIsReadByOtherMeshesBitForBit) {
  FaultEnv env;
  const MeshCase twos = CaseOf({4, 2}), fours = CaseOf({4, 4}), one = CaseOf({2, 1});
  Folder of_twos{"/twos"}, of_fours{"/fours"}, of_one{"/one"}, again{"/again"};
  const SavedState state = Resume(env, twos, nullptr, 2, of_twos);
  EXPECT_EQ(of_twos.manifest.files.size(), 2u) << "those of one group write";
  EXPECT_EQ(Resume(env, fours, &of_twos, 0, of_fours).tensors, state.tensors);
  EXPECT_EQ(of_fours.manifest.files.size(), 4u);
  EXPECT_EQ(Resume(env, one, &of_fours, 0, of_one).tensors, state.tensors);
  EXPECT_EQ(of_one.manifest.files.size(), 1u);
  EXPECT_EQ(Resume(env, twos, &of_one, 0, again).tensors, state.tensors);
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

MemoryInputs InputsOf(const MeshCase& c) {
  MemoryInputs inputs;
  inputs.shape = ModelShape::OfExpertRank(c.job.model, c.plan.mesh.expert);
  inputs.micro_batch = c.plan.micro_batch;
  inputs.sequence_length = c.length();
  inputs.accumulation_steps = c.plan.accumulation_steps;
  inputs.ranks = c.ranks();
  inputs.precision = &PrecisionOf(c.plan.precision);
  inputs.optimizer =
      OptimizerBytesOf(c.job.model, c.job, inputs.precision->products, c.plan.mesh.expert);
  inputs.products = ProductsOf(inputs.precision->products);
  inputs.remat = RematOf(c.plan, c.job.model.layers).value();
  return inputs;
}

MemoryBreakdown PredictedFor(MemoryInputs inputs) {
  MemoryBreakdown predicted = PredictMemory(inputs);
  // Operands that are widened for one product are the kernels' own, which no allocator counts.
  inputs.products = ProductKind::kNative;
  predicted.workspace_bytes = PredictMemory(inputs).workspace_bytes;
  return predicted;
}

ModelSpec LargerModel() {
  ModelSpec model = MixtralModel();
  model.layers = 3;
  model.width = 128;
  model.mlp_width = 160;
  model.vocab_size = 700;
  model.context = 128;
  return model;
}

// Where each token goes to all experts, what comes to a rank does not depend on the choices.
TEST(ExpertParallel, TakesAndSendsWhatTheModelSays) {
  ModelSpec model = LargerModel();
  model.experts_per_token = model.experts;
  for (const Ways& ways : std::vector<Ways>{
           {2, 2}, {4, 2, 0, "recompute"}, {4, 4, 0, "attention"}, {4, 4, 0, "keep", "bf16"}}) {
    SCOPED_TRACE(NameOf(ways));
    MeshCase c = CaseOf(ways, model);
    c.job.train.steps = 2;
    c.job.train.log_every_steps = 10;
    const MemoryInputs inputs = InputsOf(c);
    const RankTraffic traffic = TrafficOfStep(inputs);
    const MemoryBreakdown predicted = PredictedFor(inputs);
    const auto others = static_cast<double>(ways.expert - 1) / static_cast<double>(ways.expert);
    for (const MeshOutcome& own : TrainOnMesh(c)) {
      EXPECT_EQ(own.exchanged.bytes, 2 * static_cast<double>(traffic.exchanged));
      EXPECT_EQ(own.exchanged.sent_bytes, others * own.exchanged.bytes);
      const MemoryBreakdown& peak = own.reports.back().peak_memory;
      const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
        EXPECT_NEAR(static_cast<double>(peak.*bytes) / static_cast<double>(predicted.*bytes), 1,
                    0.01)
            << what << ": predicted " << predicted.*bytes << ", measured " << peak.*bytes;
      };
      expect_near("parameters", &MemoryBreakdown::parameters_bytes);
      expect_near("gradients", &MemoryBreakdown::gradients_bytes);
      expect_near("optimizer", &MemoryBreakdown::optimizer_bytes);
      expect_near("activations", &MemoryBreakdown::activations_bytes);
      expect_near("workspace", &MemoryBreakdown::workspace_bytes);
    }
  }
}

// Other choices take no more than that, and with a capacity less.
TEST(ExpertParallel, TakesNoMoreThanPredictedWhateverTheChoices) {
  for (const double capacity : {0.0, 1.0}) {
    const MeshCase c = CaseOf({4, 4, capacity}, LargerModel());
    const MemoryBreakdown predicted = PredictedFor(InputsOf(c));
    int64_t exchanged = 0;
    for (const MeshOutcome& own : TrainOnMesh(c)) {
      const MemoryBreakdown& peak = own.reports.back().peak_memory;
      // Tensors stand at whole lines of the cache.
      EXPECT_LE(static_cast<double>(peak.activations_bytes),
                1.001 * static_cast<double>(predicted.activations_bytes));
      EXPECT_LE(static_cast<double>(peak.workspace_bytes),
                1.001 * static_cast<double>(predicted.workspace_bytes));
      EXPECT_EQ(peak.communication_bytes, predicted.communication_bytes);
      exchanged += static_cast<int64_t>(own.exchanged.sent_bytes);
    }
    EXPECT_GT(exchanged, 0);
  }
  const MemoryInputs all = InputsOf(CaseOf({4, 4}, LargerModel()));
  const MemoryInputs full = InputsOf(CaseOf({4, 4, 1.0}, LargerModel()));
  EXPECT_EQ(all.shape.ExpertRows(), 4);
  EXPECT_EQ(full.shape.ExpertRows(), 2);
  EXPECT_LT(PredictMemory(full).activations_bytes, PredictMemory(all).activations_bytes);
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
    EXPECT_THAT(error(), HasSubstr("model.experts 3 cannot be shared by 2 ranks"));
    model.experts = 0;
    EXPECT_THAT(error(), HasSubstr("model.experts 0 cannot be shared by 2 ranks"));
    model = MixtralModel();
    model.freeze = {"model.norm.weight"};
    EXPECT_THAT(error(), HasSubstr("model.freeze does not go with 2 ranks that share the experts"));
  });
}

}  // namespace
}  // namespace weft::engine
