#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/failpoint.h"
#include "common/model/optimizer_bytes.h"
#include "common/model/technique_cost.h"
#include "worker/engine/techniques/pruning/pruning_cost.h"
#include "worker/engine/techniques/pruning/testing.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

/// A training on one rank.
struct PrunedTraining {
  RandomTokens tokens{TinyModel().vocab_size, TinyModel().context};
  TinyTraining run;

  explicit PrunedTraining(const JobSpec& job, const std::string& precision = "fp32")
      : run(job, TinyPlan(precision, 4, 2), tokens) {}

  /// The training state by name: parameters, optimizer, masks.
  std::map<std::string, std::vector<float>> State() {
    std::map<std::string, std::vector<float>> state;
    for (const NamedTensor& tensor : run.trainer->StateTensors()) {
      state[tensor.name] = ValuesOf(tensor);
    }
    return state;
  }
  std::map<std::string, std::vector<float>> Masks() {
    std::map<std::string, std::vector<float>> masks;
    for (auto& [name, values] : State()) {
      constexpr std::string_view kPrefix = "pruning/", kSuffix = "/mask";
      if (!name.starts_with(kPrefix) || !name.ends_with(kSuffix)) continue;
      masks[name.substr(kPrefix.size(), name.size() - kPrefix.size() - kSuffix.size())] =
          std::move(values);
    }
    return masks;
  }
};

int64_t Count(const std::vector<float>& mask) {
  return static_cast<int64_t>(std::accumulate(mask.begin(), mask.end(), 0.0));
}

TEST(PruningTest, EachMethodKeepsWhatIsAskedForAndAllElseIsZeroInAllTrainingState) {
  struct Rule {
    std::string optimizer;
    std::string precision;
  };
  const std::vector<Rule> rules = {{"adamw", "fp32"},      {"adamw", "bf16"},
                                   {"adamw", "bf16_pure"}, {"muon", "fp32"},
                                   {"adafactor", "fp32"},  {"lion", "fp32"},
                                   {"sgd", "fp32"},        {"schedule_free_adamw", "fp32"}};
  for (const char* method : {"random", "magnitude", "snip", "grasp", "synflow", "set", "rigl"}) {
    for (const Rule& rule : rules) {
      if (rule.precision == "bf16_pure" && method == std::string("grasp")) continue;
      SCOPED_TRACE(std::string(method) + ", " + rule.optimizer + ", " + rule.precision);
      JobSpec job = PrunedJob(PruningBy(method, 0.3, "erk"));
      job.optimizer.name = rule.optimizer;
      if (rule.optimizer == "sgd") job.optimizer.momentum = 0.9;
      if (rule.optimizer == "schedule_free_adamw") job.schedule.kind = "constant";
      PrunedTraining training(job, rule.precision);
      std::map<std::string, int64_t> kept;
      for (const PrunedMatrix& matrix : PrunedMatricesOf(job.train.pruning, job.model)) {
        kept[matrix.name] = matrix.kept;
      }
      ASSERT_EQ(kept.size(), 8u);
      std::map<std::string, std::vector<float>> before;
      for (int64_t step = 0; step < 5; ++step) {
        SCOPED_TRACE(step);
        const StepReport report = training.run.Step();
        EXPECT_NEAR(report.technique_metrics.at(std::string(kDensityMetric)), 0.3, 1e-3);
        const auto masks = training.Masks();
        ASSERT_EQ(masks.size(), kept.size());
        const bool exchanges = IsExchangeStep(job.train.pruning, step, job.train.steps);
        EXPECT_EQ(report.technique_metrics.contains(std::string(kGrownMetric)), exchanges);
        EXPECT_EQ(masks == before, !exchanges && step > 0);
        before = masks;
        const auto state = training.State();
        for (const auto& [name, mask] : masks) {
          EXPECT_EQ(Count(mask), kept.at(name)) << name;
          for (const auto& [tensor, values] : state) {
            const bool of_it = tensor == name || tensor.find("/" + name + "/") != std::string::npos;
            if (!of_it || values.size() != mask.size()) continue;
            int64_t others = 0;
            for (size_t i = 0; i < mask.size(); ++i) {
              others += mask[i] == 0 && values[i] != 0 ? 1 : 0;
            }
            EXPECT_EQ(others, 0) << tensor;
          }
        }
      }
    }
  }
}

TEST(PruningTest, TrainingGoesOnWithWhatIsKept) {
  for (const char* method : {"random", "magnitude", "snip", "synflow", "set", "rigl"}) {
    SCOPED_TRACE(method);
    JobSpec job = PrunedJob(PruningBy(method));
    job.optimizer.learning_rate = 1e-2;
    job.train.steps = 60;
    job.train.pruning.interval = 10;
    CountingTokens tokens(7, job.model.context);
    TinyTraining run(job, TinyPlan("fp32", 4, 2), tokens);
    const double first = run.Step().loss;
    double last = 0;
    while (!run.trainer->finished()) last = run.Step().loss;
    EXPECT_LT(last, first - 1);
  }
}

TEST(PruningTest, AGlobalRankingKeepsAShareOfAllMatricesTogether) {
  for (const char* method : {"magnitude", "snip", "grasp", "synflow"}) {
    SCOPED_TRACE(method);
    const JobSpec job = PrunedJob(PruningBy(method, 0.1, "global"));
    PrunedTraining training(job);
    training.run.Step();
    int64_t kept = 0, weights = 0;
    bool alike = true;
    const auto masks = training.Masks();
    for (const auto& [name, mask] : masks) {
      kept += Count(mask);
      weights += std::ssize(mask);
      alike = alike && std::abs(10 * Count(mask) - std::ssize(mask)) < 10;
      if (method == std::string("synflow")) {
        EXPECT_GT(Count(mask), 0) << "no layer collapses";
      }
    }
    EXPECT_EQ(kept, std::llround(0.1 * static_cast<double>(weights)));
    EXPECT_FALSE(alike);
  }
}

TEST(PruningTest, MagnitudesAreThoseOfTheStart) {
  const JobSpec job = PrunedJob(PruningBy("magnitude"));
  PrunedTraining training(job);
  const auto start = training.State();
  training.run.Step();
  for (const auto& [name, mask] : training.Masks()) {
    float least_kept = INFINITY, most_dropped = 0;
    const std::vector<float>& values = start.at(name);
    for (size_t i = 0; i < mask.size(); ++i) {
      float& bound = mask[i] != 0 ? least_kept : most_dropped;
      bound = mask[i] != 0 ? std::min(bound, std::fabs(values[i]))
                           : std::max(bound, std::fabs(values[i]));
    }
    EXPECT_GE(least_kept, most_dropped) << name;
  }
}

TEST(PruningTest, AnExchangeChangesNothingButWhereWeightsAre) {
  for (const char* method : {"set", "rigl"}) {
    SCOPED_TRACE(method);
    PruningSpec spec = PruningBy(method);
    spec.products = "dense";  // the model it is compared with has the same sums
    const JobSpec job = PrunedJob(spec);
    PrunedTraining training(job);
    for (int64_t step = 0; step < 3 * kPruningInterval; ++step) training.run.Step();
    const auto before = training.State();
    const auto masks = training.Masks();
    const int64_t updates = training.run.trainer->counters().updates;
    // The dense gradients of the step, at the weights before it.
    TinyRun dense(job.model, ModelOptionsOf(TinyPlan("fp32")));
    ParameterSet& parameters = dense.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const std::vector<float>& values = before.at(parameters[i].name);
      std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
    }
    WEFT_CHECK(dense.model->Pack(dense.context).ok(), "pack");
    const Batch batch = *training.tokens.Get(3 * kPruningInterval, 0, kPrunedBatch);
    dense.Differentiate(batch);

    const StepReport report = training.run.Step();
    EXPECT_EQ(training.run.trainer->counters().updates, updates) << "the update is left out";
    EXPECT_EQ(training.run.trainer->counters().skipped_steps, 0);
    EXPECT_FALSE(report.skipped);
    const double rate = DropRate(job.train.pruning, 3 * kPruningInterval, job.train.steps);
    const auto after = training.State();
    int64_t all_grown = 0, all_kept = 0;
    for (const auto& [name, mask] : training.Masks()) {
      SCOPED_TRACE(name);
      const std::vector<float>& old = masks.at(name);
      const std::vector<float> gradient =
          ValuesOf(parameters.gradient(parameters.Find(name).value()));
      const int64_t kept = Count(old);
      const auto dropped = static_cast<int64_t>(rate * static_cast<double>(kept));
      int64_t grown = 0;
      float least_grown = INFINITY, most_left = 0;
      for (size_t i = 0; i < mask.size(); ++i) {
        const float value = after.at(name)[i];
        if (mask[i] != 0 && old[i] != 0) {
          EXPECT_EQ(value, before.at(name)[i]);
        }
        if (mask[i] != 0 && old[i] == 0) {
          EXPECT_EQ(value, 0);
          ++grown;
          least_grown = std::min(least_grown, std::fabs(gradient[i]));
        }
        if (mask[i] == 0) most_left = std::max(most_left, std::fabs(gradient[i]));
      }
      EXPECT_EQ(Count(mask), kept);
      EXPECT_GT(grown, 0);
      EXPECT_LE(grown, dropped) << "what is dropped may grow again at once";
      if (method == std::string("rigl")) {
        EXPECT_GE(least_grown, most_left * (1 - 1e-5)) << "the largest gradients";
      } else {
        EXPECT_LT(least_grown, most_left);
      }
      all_grown += grown;
      all_kept += kept;
    }
    EXPECT_NEAR(report.technique_metrics.at(std::string(kGrownMetric)),
                static_cast<double>(all_grown) / static_cast<double>(all_kept), 1e-12);
    // All else, the state of the optimizer among it, is as it was, or zero where weights came and
    // went.
    for (const auto& [name, values] : after) {
      if (name.starts_with("pruning/")) continue;
      for (size_t i = 0; i < values.size(); ++i) {
        if (values[i] == 0) continue;
        ASSERT_EQ(values[i], before.at(name)[i]) << name;
      }
    }
    // Growing alone changes no output: the old weights without the dropped ones give the same loss.
    for (const auto& [name, mask] : training.Masks()) {
      float* value = parameters.value(parameters.Find(name).value()).As<float>();
      for (size_t i = 0; i < mask.size(); ++i) value[i] *= mask[i];
    }
    WEFT_CHECK(dense.model->Pack(dense.context).ok(), "pack");
    WEFT_CHECK(training.run.model->Pack(training.run.context).ok(), "pack");
    EXPECT_EQ(dense.Loss(batch), training.run.Loss(batch));
  }
}

TEST(PruningTest, AStepThatIsNotFiniteExchangesNothing) {
  PrunedTraining training(PrunedJob(PruningBy("rigl")));
  for (int64_t step = 0; step < kPruningInterval; ++step) training.run.Step();
  const auto masks = training.Masks();
  ASSERT_TRUE(SetFailpoints("trainer.loss=error").ok());
  EXPECT_TRUE(training.run.Step().skipped);
  ASSERT_TRUE(SetFailpoints("").ok());
  EXPECT_EQ(training.Masks(), masks);
  EXPECT_EQ(training.run.trainer->counters().skipped_steps, 1);
}

TEST(PruningTest, ChosenLayersAlone) {
  PruningSpec spec = PruningBy("magnitude");
  spec.layers = {"*.h.1.attn.*", "*.mlp.c_fc.weight"};
  JobSpec job = PrunedJob(spec);
  job.model.freeze = {"*.h.0.mlp.*"};
  PrunedTraining training(job);
  training.run.Step();
  std::vector<std::string> names;
  for (const auto& [name, mask] : training.Masks()) names.push_back(name);
  EXPECT_EQ(names, (std::vector<std::string>{"transformer.h.1.attn.c_attn.weight",
                                             "transformer.h.1.attn.c_proj.weight",
                                             "transformer.h.1.mlp.c_fc.weight"}));
  job.train.pruning.layers = {"*.h.0.mlp.*"};
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto refused =
      NewModel(context, job.model, ModelOptionsOf(TinyPlan("fp32", 4, 2), job.train));
  EXPECT_EQ(refused.status().code(), StatusCode::kInvalid);
  EXPECT_NE(refused.status().message().find("matches no trained matrix"), std::string::npos)
      << refused.status().message();
}

TEST(PruningTest, AnEvaluationChangesNothing) {
  for (const char* optimizer : {"adamw", "muon", "schedule_free_adamw"}) {
    SCOPED_TRACE(optimizer);
    JobSpec job = PrunedJob(PruningBy("rigl"));
    job.optimizer.name = optimizer;
    if (optimizer == std::string("schedule_free_adamw")) job.schedule.kind = "constant";
    PrunedTraining plain(job), evaluated(job);
    ASSERT_TRUE(evaluated.run.trainer->Evaluate().ok()) << "before weights are chosen";
    for (int64_t step = 0; step < 5; ++step) {
      EXPECT_EQ(plain.run.Step().loss, evaluated.run.Step().loss);
      ASSERT_TRUE(evaluated.run.trainer->Evaluate().ok());
    }
    EXPECT_EQ(plain.State(), evaluated.State());
  }
}

/// Trainings of ten steps.
JobSpec TicketJob(double density, int64_t rounds, int64_t rewind_step) {
  PruningSpec spec = PruningBy("lottery_ticket", density, "global");
  spec.rounds = rounds;
  spec.rewind_step = rewind_step;
  JobSpec job = PrunedJob(spec);
  job.schedule.kind = "cosine";
  job.schedule.warmup_steps = 3;
  job.train.steps = 10 + rounds * (10 - rewind_step);
  return job;
}

TEST(PruningTest, ARoundOfALotteryTicketIsTheTrainingFromTheStepItGoesBackTo) {
  for (const char* optimizer : {"adamw", "muon", "adafactor", "sgd"}) {
    for (const int64_t rewind : {0, 4}) {
      SCOPED_TRACE(std::string(optimizer) + " " + std::to_string(rewind));
      // Nothing is pruned.
      JobSpec job = TicketJob(1, 2, rewind);
      job.optimizer.name = optimizer;
      PrunedTraining training(job);
      std::vector<StepReport> first;
      for (int64_t step = 0; step < 10; ++step) first.push_back(training.run.Step());
      for (int64_t round = 0; round < 2; ++round) {
        for (int64_t step = rewind; step < 10; ++step) {
          const StepReport report = training.run.Step();
          EXPECT_EQ(report.learning_rate, first[step].learning_rate);
          // The optimizer has forgotten what was before.
          if (rewind > 0 && step > rewind) continue;
          EXPECT_EQ(report.loss, first[step].loss) << step;
        }
      }
      EXPECT_TRUE(training.run.trainer->finished());
    }
  }
}

TEST(PruningTest, RoundsOfALotteryTicketPruneTheSmallestOfWhatIsLeft) {
  const JobSpec job = TicketJob(0.512, 0, 4);  // three rounds
  ASSERT_EQ(PruningRounds(job.train.pruning), 3);
  JobSpec all_steps = job;
  all_steps.train.steps = 10 + 3 * 6;
  PrunedTraining training(all_steps);
  std::map<std::string, std::vector<float>> rewind;
  double weights = 0;
  for (int64_t step = 0; step < 10; ++step) {
    if (step == 4) rewind = training.State();
    const StepReport report = training.run.Step();
    EXPECT_EQ(report.technique_metrics.at(std::string(kDensityMetric)), 1);
  }
  for (const auto& [name, mask] : training.Masks()) weights += static_cast<double>(mask.size());
  for (int64_t round = 1; round <= 3; ++round) {
    SCOPED_TRACE(round);
    const auto before = training.State();
    const auto masks = training.Masks();
    training.run.Step();
    int64_t kept = 0;
    float least_kept = INFINITY, most_pruned = 0;
    const auto state = training.State();
    for (const auto& [name, mask] : training.Masks()) {
      kept += Count(mask);
      for (size_t i = 0; i < mask.size(); ++i) {
        EXPECT_LE(mask[i], masks.at(name)[i]) << "none comes back";
        if (masks.at(name)[i] == 0) continue;
        const float trained = std::fabs(before.at(name)[i]);
        (mask[i] != 0 ? least_kept : most_pruned) =
            mask[i] != 0 ? std::min(least_kept, trained) : std::max(most_pruned, trained);
      }
      EXPECT_EQ(state.at("pruning/" + name + "/rewind"), rewind.at(name));
    }
    EXPECT_EQ(kept, std::llround(weights * std::pow(0.8, static_cast<double>(round))));
    EXPECT_GE(least_kept, most_pruned);
    // One update of AdamW from the weights to go back to, with a state that was zero.
    EXPECT_EQ(training.run.trainer->counters().updates, 1);
    for (const auto& [name, values] : rewind) {
      if (!state.contains("adamw/" + name + "/first_moment")) continue;
      const auto found = training.Masks();
      const auto mask = found.find(name);
      for (size_t i = 0; i < values.size(); ++i) {
        const float start = mask != found.end() && mask->second[i] == 0 ? 0 : values[i];
        ASSERT_NEAR(state.at(name)[i], start, 1.2 * 3e-4) << name;
      }
    }
    for (int64_t step = 5; step < 10; ++step) training.run.Step();
  }
  EXPECT_TRUE(training.run.trainer->finished());
}

// The mask of the ticket, and the weights that another seed begins with.
TEST(PruningTest, TheControlOfALotteryTicketEndsWithARoundOfNewWeights) {
  JobSpec job = TicketJob(0.5, 2, 0);
  PrunedTraining ticket(job);
  job.train.pruning.restart = "reinitialize";
  ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  PrunedTraining control(job);
  constexpr uint64_t kSeed = 41;  // of what a round draws: the first weights are given
  ticket.run.context.seed = control.run.context.seed = kSeed;
  for (int64_t step = 0; step < 20; ++step) {
    EXPECT_EQ(ticket.run.Step().loss, control.run.Step().loss);
  }
  EXPECT_EQ(ticket.State(), control.State());
  EXPECT_NE(ticket.run.Step().loss, control.run.Step().loss);
  const auto masks = control.Masks();
  EXPECT_EQ(ticket.Masks(), masks);
  EXPECT_EQ(control.run.trainer->counters().updates, 1);
  const auto state = control.State();
  const ParameterSet& parameters = control.run.model->parameters();
  for (int64_t i = 0; i < parameters.size(); ++i) {
    const std::string& name = parameters[i].name;
    const std::vector<float> drawn = parameters.DrawnValue(i, kSeed + 1);
    const auto mask = masks.find(name);
    for (size_t e = 0; e < drawn.size(); ++e) {
      const float start = mask != masks.end() && mask->second[e] == 0 ? 0 : drawn[e];
      // One update of AdamW.
      ASSERT_NEAR(state.at(name)[e], start, 1.2 * 3e-4) << name;
    }
  }
  for (int64_t step = 21; step < 30; ++step) control.run.Step();
  EXPECT_TRUE(control.run.trainer->finished());
}

TEST(PruningTest, OnlyALotteryTicketOfRandomWeightsEndsWithNewOnes) {
  const auto refused = [](JobSpec job, const char* why) {
    job.train.pruning.restart = "reinitialize";
    const std::string message = ValidateJob(job).message();
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  refused(TicketJob(0.5, 2, 4), "hint: train.pruning.rewind_step 0");
  refused(PrunedJob(PruningBy("rigl")), "lottery_ticket, not of rigl");
  JobSpec imported = TicketJob(0.5, 2, 0);
  imported.model.import_path = imported.data.tokenizer.path = "/base";
  refused(imported, "hint: train.pruning.restart rewind");
  JobSpec frozen = TicketJob(0.5, 2, 0);
  frozen.model.freeze = {"*.h.0.mlp.*"};
  refused(frozen, "hint: train.pruning.restart rewind");
}

TEST(PruningTest, StepsOfALotteryTicketHaveToBeThoseOfItsTrainings) {
  JobSpec job = TicketJob(0.3, 2, 4);
  EXPECT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
  job.train.steps += 1;
  EXPECT_NE(ValidateJob(job).message().find("hint: train.steps 25; each training then has 11"),
            std::string::npos)
      << ValidateJob(job).message();
  job.train.pruning.rewind_step = 40;
  EXPECT_EQ(ValidateJob(job).code(), StatusCode::kInvalid);
}

// Gives `copy` the state of `original`, as a checkpoint does.
void RestoreFrom(const PrunedTraining& original, PrunedTraining& copy) {
  const auto from = original.run.trainer->StateTensors();
  const auto to = copy.run.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  ASSERT_TRUE(copy.run.trainer->Restored(original.run.trainer->counters()).ok());
}

TEST(PruningTest, ARestoredLotteryTicketGoesOnBitForBit) {
  for (const int64_t stop : {0, 3, 4, 5, 9, 10, 11, 15, 16}) {
    SCOPED_TRACE(stop);
    const JobSpec job = TicketJob(0.3, 2, 4);
    PrunedTraining original(job);
    for (int64_t i = 0; i < stop; ++i) original.run.Step();
    PrunedTraining copy(job);
    for (int64_t i = 0; i < 2; ++i) copy.run.Step();  // forgotten
    RestoreFrom(original, copy);
    while (!original.run.trainer->finished()) {
      EXPECT_EQ(original.run.Step().loss, copy.run.Step().loss);
    }
    EXPECT_EQ(original.State(), copy.State());
  }
}

TEST(PruningTest, ARestoredStateGoesOnBitForBit) {
  for (const char* method : {"random", "snip", "grasp", "synflow", "set", "rigl"}) {
    for (const char* precision : {"fp32", "bf16"}) {
      for (const int64_t stop : {0, 1, 2, 3}) {  // also before weights are chosen
        SCOPED_TRACE(std::string(method) + " " + precision + " " + std::to_string(stop));
        const JobSpec job = PrunedJob(PruningBy(method));
        PrunedTraining original(job, precision);
        for (int64_t i = 0; i < stop; ++i) original.run.Step();
        PrunedTraining copy(job, precision);
        for (int64_t i = 0; i < 2; ++i) copy.run.Step();  // forgotten
        RestoreFrom(original, copy);
        for (int64_t i = 0; i < 4; ++i) {
          const StepReport a = original.run.Step(), b = copy.run.Step();
          EXPECT_EQ(a.loss, b.loss);
          EXPECT_EQ(a.technique_metrics, b.technique_metrics);
        }
        EXPECT_EQ(original.State(), copy.State());
      }
    }
  }
}

// A byte a weight, and of lottery tickets a copy of all that is trained.
TEST(PruningTest, MasksAreInThePredictedMemory) {
  for (const char* method : {"rigl", "rigl of some", "lottery_ticket"}) {
    SCOPED_TRACE(method);
    const bool ticket = method == std::string("lottery_ticket");
    const bool all = method != std::string("rigl of some");
    JobSpec job = ticket ? TicketJob(0.3, 1, 0) : PrunedJob(PruningBy("rigl"));
    if (!all) job.train.pruning.layers = {"*.h.1.mlp.*"};
    job.model.width = 128;
    RandomTokens tokens(job.model.vocab_size, job.model.context);
    TinyTraining run(job, TinyPlan("fp32", 4, 2), tokens);
    run.Step();
    const auto measured = static_cast<double>(run.Step().peak_memory.optimizer_bytes);
    const auto predicted = static_cast<double>(OptimizerBytesOf(job.model, job, DType::kF32).state);
    job.train.pruning = {};
    const auto plain = static_cast<double>(OptimizerBytesOf(job.model, job, DType::kF32).state);
    const auto copies = static_cast<double>(ticket ? 4 * ShapeOf(job).trained : 0);
    EXPECT_EQ(predicted - plain, 128 * 128 * (all ? 24 : 8) + copies);
    EXPECT_GE(measured, predicted);
    EXPECT_LE(measured, 1.01 * predicted + 65536);
  }
}

// The engine counts what it reads and writes.
TEST(PruningTest, ThePlannerCountsTheMaskingOfGradients) {
  JobSpec job = PrunedJob(PruningBy("snip"));
  PrunedTraining training(job);
  training.run.Step();
  Profiler profiler;
  training.run.context.profiler = &profiler;
  training.run.Step();
  training.run.context.profiler = nullptr;
  const StepWork work = StepWorkOf(ShapeOf(job), job.train);
  EXPECT_EQ(profiler.entries().at("mask gradients").bytes, 4 * work.f32_numbers);
  job.train.pruning = {};
  EXPECT_EQ(StepWorkOf(ShapeOf(job), job.train).f32_numbers, 0);
}

}  // namespace
}  // namespace weft::engine
