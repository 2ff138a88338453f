#include "tests/matrix/training.h"

#include <limits>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "common/env.h"
#include "common/model/technique_cost.h"
#include "common/spec/instruction_data.h"
#include "common/spec/model_family.h"
#include "coordinator/planner/planner.h"
#include "kernels/cpu/isa.h"
#include "worker/engine/comm/hash_store.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/trainer/run_attempt.h"

namespace weft::testing {
namespace {

/// A machine whose memory never decides anything.
ClusterProfile OneMachine() {
  WorkerProfile worker;
  worker.worker_id = "here";
  worker.isa = kernels::cpu::IsaName(kernels::cpu::ActiveIsa());
  worker.cores = 8;
  worker.memory_bytes = worker.memory_limit_bytes = int64_t{64} << 30;
  worker.copy_bytes_per_second = 1e10;
  worker.loopback_bytes_per_second = 1e9;
  worker.gemm = {{"fp32", 64, 64, 64, 1, 1e10}, {"bf16", 64, 64, 64, 1, 1e10}};
  return {{worker}};
}

/// Keeps what a rank says, and stops it after a step.
class Listener : public trainer::Reporter {
 public:
  explicit Listener(int64_t last_step) : last_step_(last_step) {}

  void Report(const trainer::RankMessage& message) override {
    const auto* progress = std::get_if<trainer::ProgressMessage>(&message);
    if (progress == nullptr) return;
    const std::lock_guard lock(mutex_);
    // One that is not finite is like no other, so that it shows.
    losses_.push_back(progress->loss.value_or(std::numeric_limits<double>::quiet_NaN()));
    last_ = *progress;
  }
  bool StopRequested() override {
    const std::lock_guard lock(mutex_);
    return last_.step >= last_step_;
  }

  const std::vector<double>& losses() const { return losses_; }
  const trainer::ProgressMessage& last() const { return last_; }

 private:
  const int64_t last_step_;
  std::mutex mutex_;
  std::vector<double> losses_;
  trainer::ProgressMessage last_;
};

/// Batches that are made up, of the kind that the network of `job` reads.
std::unique_ptr<engine::BatchSource> MadeUpSource(const JobSpec& job) {
  constexpr int64_t kPairs = 10;
  constexpr double kMaskedShare = 0.25;  // as many tokens of each sequence
  if (job.model.family == "vit") return std::make_unique<engine::NoiseImages>(job.model);
  if (HeadOf(job.model) == "masked_lm") {
    return std::make_unique<engine::RandomMasked>(job.model.vocab_size, SequenceLength(job),
                                                  kMaskedShare);
  }
  if (job.data.format == kPreferenceFormat) {
    return std::make_unique<engine::RandomPairs>(job.model.vocab_size, SequenceLength(job), kPairs,
                                                 job.train.global_batch);
  }
  const std::vector<JobSpec> joint = JointJobs(job);
  if (joint.empty()) {
    return std::make_unique<engine::RandomTokens>(job.model.vocab_size, SequenceLength(job));
  }
  std::vector<std::unique_ptr<engine::BatchSource>> sources;
  for (size_t part = 0; part < joint.size(); ++part) {
    sources.push_back(std::make_unique<engine::RandomTokens>(job.model.vocab_size,
                                                             SequenceLength(job), 7 + part));
  }
  return std::make_unique<engine::JointBatches>(std::move(sources),
                                                engine::JointBatches::AtEnd::kNone);
}

trainer::TrainingData MadeUpData(const AttemptSpec& spec) {
  const JobSpec& job = spec.job;
  trainer::TrainingData data;
  data.train = trainer::OwnChunks(MadeUpSource(job), spec);
  data.vocab_size = job.model.vocab_size;
  data.fingerprint = "made up";
  return data;
}

}  // namespace

Result<Plan> PlanOf(const JobSpec& job) {
  WEFT_ASSIGN_OR_RETURN(const PlanReport report, planner::PlanJob(job, OneMachine()));
  return report.candidates.front().plan;
}

Result<Training> Train(const JobSpec& job, const std::string& run_dir, int64_t last_step) {
  AttemptSpec spec;
  spec.job_id = "matrix";
  spec.host = "127.0.0.1";
  spec.run_dir = run_dir;
  spec.job = job;
  WEFT_ASSIGN_OR_RETURN(spec.plan, PlanOf(job));
  spec.world_size = RankCount(spec.plan.mesh);
  engine::HashStore store;
  const auto ranks = static_cast<size_t>(spec.world_size);
  std::vector<std::unique_ptr<Listener>> listeners;
  std::vector<Status> ends(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    listeners.push_back(std::make_unique<Listener>(last_step));
  }
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank, own = spec]() mutable {
      own.rank = static_cast<int64_t>(rank);
      ends[rank] =
          trainer::RunAttemptOn(Env::Posix(), own, MadeUpData(own), *listeners[rank], store)
              .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  Training training;
  for (size_t rank = 0; rank < ranks; ++rank) {
    WEFT_RETURN_IF_ERROR(ends[rank].WithContext("rank " + std::to_string(rank)));
    training.ranks.push_back(listeners[rank]->last());
  }
  training.losses = listeners[0]->losses();
  return training;
}

}  // namespace weft::testing
