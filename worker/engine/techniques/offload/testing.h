#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/technique_cost.h"
#include "common/spec/shard_ranks.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/techniques/parallel/new_reducer.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

inline constexpr int64_t kBucketBytes = 16384;  // several buckets, also of tiny models

/// A schedule without transfers to the host.
inline std::vector<std::string> WithoutTransfers(std::vector<std::string> operations) {
  std::erase_if(operations, [](const std::string& operation) {
    return operation.starts_with("sent") || operation.starts_with("fetch");
  });
  for (std::string& operation : operations) {
    if (const size_t at = operation.find("_host"); at != std::string::npos) operation.erase(at, 5);
  }
  return operations;
}

/// Random tokens; where the job trains several together, of each of these its own.
inline std::unique_ptr<BatchSource> TokensFor(const JobSpec& job) {
  std::vector<std::unique_ptr<BatchSource>> sources;
  for (int64_t part = 0; part < JointParts(job); ++part) {
    sources.push_back(std::make_unique<RandomTokens>(job.model.vocab_size, SequenceLength(job),
                                                     static_cast<uint64_t>(7 + part)));
  }
  if (sources.size() == 1) return std::move(sources.front());
  return std::make_unique<JointBatches>(std::move(sources), JointBatches::AtEnd::kNone);
}

struct Training {
  Plan plan;  ///< As it is trained.
  std::unique_ptr<ComputeDevice> device;
  Context context;
  std::unique_ptr<Model> model;
  std::unique_ptr<BucketReducer> reducer;  ///< Of one rank none.
  PlannedOffload offload;
  std::unique_ptr<BatchSource> tokens;
  std::unique_ptr<Trainer> trainer;

  Training() = default;
  Training(const JobSpec& job, const Plan& plan, bool offloads,
           std::vector<std::string>* operations = nullptr) {
    const Status made = Make(job, plan, offloads, operations);
    WEFT_CHECK(made.ok(), made.message());
  }

  /// `operations` get those on blocks as they are done, or none. `ranks`: the data-parallel ones.
  Status Make(const JobSpec& job, const Plan& wanted, bool offloads,
              std::vector<std::string>* operations = nullptr, Collective* ranks = nullptr) {
    plan = wanted;
    kernels::cpu::SetThreads(1);
    tokens = TokensFor(job);
    if (plan.bucket_bytes == Plan().bucket_bytes) plan.bucket_bytes = kBucketBytes;
    if (!offloads) {
      plan.offload_optimizer = plan.offload_activations = plan.offload_parameters = "none";
      plan.device_updated_units.clear();
      plan.resident_units.clear();
      // In bits it matters what is kept, wherever it waits.
      plan.recompute_schedule = plan.activation_bits > 0 ? WithoutTransfers(plan.recompute_schedule)
                                                         : std::vector<std::string>();
    } else if (plan.offload_optimizer == "none" && plan.offload_activations == "none") {
      plan.offload_optimizer = "host";
    }
    const bool in_file = plan.offload_optimizer == "nvme" || plan.offload_parameters == "nvme";
    if (in_file && plan.offload_directory.empty()) plan.offload_directory = ::testing::TempDir();
    ComputeDevice::Options options;
    options.limit_bytes = plan.device_memory_bytes;
    options.host = HostMemoryPoolOf(plan);
    WEFT_ASSIGN_OR_RETURN(device, ComputeDevice::Open(options));
    context = device->NewContext();
    ModelOptions model_options = ModelOptionsOf(plan, job.train);
    model_options.block_operations = operations;
    if (ranks != nullptr) model_options.update_rank = ranks->rank() % ShardRanks(plan);
    WEFT_ASSIGN_OR_RETURN(model, NewModel(context, job.model, model_options));
    WEFT_RETURN_IF_ERROR(model->parameters().Initialize(1));
    WEFT_ASSIGN_OR_RETURN(reducer, NewReducer(context, plan, ranks, &model->parameters(),
                                              model->precision().products));
    offload = PlannedOffload::Of(plan, context, &model->parameters(), reducer.get());
    GradientReducer* leave = reducer.get();
    if (offload.gradients != nullptr) leave = offload.gradients.get();
    WEFT_ASSIGN_OR_RETURN(trainer, Trainer::New(job, plan,
                                                {.context = &context,
                                                 .model = model.get(),
                                                 .train = tokens.get(),
                                                 .validation = tokens.get(),
                                                 .reducer = leave,
                                                 .rank = ranks == nullptr ? 0 : ranks->rank()}));
    return OkStatus();
  }

  std::map<std::string, std::vector<float>> State() {
    std::map<std::string, std::vector<float>> state;
    const Status gathered = trainer->FinishUpdates();
    WEFT_CHECK(gathered.ok(), gathered.message());
    for (const NamedTensor& tensor : trainer->StateTensors()) {
      state[tensor.name] = ValuesOf(tensor);
    }
    return state;
  }
};

using State = std::map<std::string, std::vector<float>>;

/// The names of tensors that are not the same in both.
inline std::string Differing(const State& a, const State& b) {
  std::string names;
  for (const auto& [name, values] : a) {
    if (!b.contains(name) || b.at(name) != values) names += name + " ";
  }
  return names + (a.size() == b.size() ? "" : "and others");
}

/// Expects that `predicted` bytes are those that were taken, up to this share of them.
inline void ExpectPredictedBytes(const char* what, int64_t predicted, int64_t taken,
                                 double tolerance = 0.01) {
  EXPECT_NEAR(static_cast<double>(predicted) / static_cast<double>(taken), 1, tolerance)
      << what << ": predicted " << predicted << ", measured " << taken;
}

/// Expects that the planner predicts the peaks of `training`: of weights on the device up to 3 %,
/// of weights and the optimizer's state on the host up to this share of them.
inline void ExpectPredictedTiers(const MemoryInputs& inputs, const Training& training,
                                 double host_tolerance) {
  const MemoryBreakdown device = training.context.allocator->Peaks();
  const MemoryBreakdown host = training.context.host->allocator().Peaks();
  const MemoryBreakdown on_device = PredictDeviceTier(inputs), all = PredictMemory(inputs);
  ExpectPredictedBytes("parameters on the device", on_device.parameters_bytes,
                       device.parameters_bytes, 0.03);
  ExpectPredictedBytes("parameters on the host", all.parameters_bytes - on_device.parameters_bytes,
                       host.parameters_bytes, host_tolerance);
  ExpectPredictedBytes("optimizer", all.optimizer_bytes, host.optimizer_bytes, host_tolerance);
}

/// Trains both ways and compares all that is left and reported.
inline void ExpectSame(const JobSpec& job, const Plan& plan, int steps = 4) {
  Training plain(job, plan, false), offloaded(job, plan, true);
  for (int i = 0; i < steps; ++i) {
    const auto a = plain.trainer->Step(), b = offloaded.trainer->Step();
    ASSERT_TRUE(a.ok() && b.ok()) << a.status().message() << b.status().message();
    EXPECT_EQ(a->loss, b->loss) << i;
    EXPECT_EQ(a->gradient_norm, b->gradient_norm) << i;
    EXPECT_EQ(a->skipped, b->skipped);
    EXPECT_EQ(a->loss_scale, b->loss_scale);
    ASSERT_EQ(a->norms.size(), b->norms.size());
    for (size_t g = 0; g < a->norms.size(); ++g) {
      EXPECT_EQ(a->norms[g].gradient, b->norms[g].gradient);
      EXPECT_EQ(a->norms[g].parameter, b->norms[g].parameter);
    }
  }
  EXPECT_EQ(Differing(plain.State(), offloaded.State()), "");
  const auto a = plain.trainer->Evaluate(), b = offloaded.trainer->Evaluate();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->loss, b->loss);
}

/// Restores what `steps` steps have left; both then come to the same in the rest.
inline void ExpectSameOnceRestored(const JobSpec& job, const Plan& plan, int64_t steps) {
  Training original(job, plan, true), copy(job, plan, true);
  for (int64_t i = 0; i < steps; ++i) {
    const auto report = original.trainer->Step();
    ASSERT_TRUE(report.ok());
    EXPECT_TRUE(i > 0 || report->skipped == (plan.precision == "fp16"));
  }
  const std::vector<NamedTensor> from = original.trainer->StateTensors();
  const std::vector<NamedTensor> to = copy.trainer->StateTensors();
  ASSERT_EQ(from.size(), to.size());
  for (size_t i = 0; i < from.size(); ++i) {
    std::memcpy(to[i].view.data, from[i].view.data, from[i].view.Bytes());
  }
  ASSERT_TRUE(copy.trainer->Restored(original.trainer->counters()).ok());
  for (int64_t i = steps; i < job.train.steps; ++i) {
    const auto own = copy.trainer->Step(), other = original.trainer->Step();
    ASSERT_TRUE(own.ok() && other.ok());
    EXPECT_EQ(own->loss, other->loss) << i;
    EXPECT_EQ(own->technique_metrics, other->technique_metrics) << i;
  }
  EXPECT_EQ(Differing(copy.State(), original.State()), "");
  EXPECT_GT(original.trainer->counters().updates, 0);
}

/// Without tied parameters, and with fewer keys than queries.
inline JobSpec LlamaJob() {
  JobSpec job = TinyJob(4);
  job.model.family = "llama";
  job.model.kv_heads = 1;
  job.model.untied_classifier = true;
  return job;
}

}  // namespace weft::engine
