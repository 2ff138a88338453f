#include "worker/daemon/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "common/model/technique_cost.h"
#include "common/tls/certificate.h"
#include "common/version.h"

namespace weft::daemon {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using prometheus::Labels;

/// Series of a run stay this long after its last attempt here, so that the last scrape sees them.
constexpr std::chrono::minutes kKeepAfterEnd{10};

const Histogram::BucketBoundaries kStepBuckets{0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                               1,     3,     10,   30,   100, 300};

/// Brings a counter to a value that grows from outside.
void Raise(Counter& counter, double value) {
  if (value > counter.Value()) counter.Increment(value - counter.Value());
}

}  // namespace

struct Metrics::Families {
  prometheus::Registry& registry;

  Family<Gauge>& NewGauge(const std::string& name, const std::string& help) {
    return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
  }
  Family<Counter>& NewCounter(const char* name, const char* help) {
    return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
  }
  Family<Histogram>& NewHistogram(const char* name, const char* help) {
    return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
  }

  /// With the name of their label, where they have one.
  using TechniqueGauges = std::map<std::string, std::pair<Family<Gauge>*, std::string>>;
  TechniqueGauges NewTechniqueGauges() {
    TechniqueGauges gauges;
    for (const TechniqueCost* technique : TechniqueCosts()) {
      for (const TechniqueMetric& metric : technique->Metrics()) {
        const std::string name(metric.name);
        gauges[name] = {&NewGauge("weft_train_" + name, std::string(metric.help)),
                        std::string(metric.label)};
      }
    }
    return gauges;
  }

  explicit Families(prometheus::Registry& r) : registry(r) {}

  Family<Gauge>& info = NewGauge("weft_worker_info", "Always 1; names this worker.");
  Gauge& cores = NewGauge("weft_worker_cores", "Cores offered to ranks.").Add({});
  Gauge& memory_limit =
      NewGauge("weft_worker_memory_limit_bytes", "Memory offered to ranks.").Add({});
  Gauge& attached =
      NewGauge("weft_worker_attached", "1 while the coordinator has registered this worker.")
          .Add({});
  Gauge& waiting_lines = NewGauge("weft_worker_log_lines_waiting",
                                  "Log lines that the coordinator has not acknowledged.")
                             .Add({});
  Family<Gauge>& attempts = NewGauge("weft_worker_attempts", "Attempts on this worker by state.");
  Gauge& running = attempts.Add({{"state", "running"}});
  Family<Counter>& attempt_ends =
      NewCounter("weft_worker_attempt_ends_total", "Attempts that ended here, by how.");
  Counter& dials =
      NewCounter("weft_worker_dials_total", "Connections to the coordinator tried.").Add({});
  Family<Gauge>& certificate_end = NewGauge("weft_tls_certificate_not_after_timestamp_seconds",
                                            "When the certificate of this process ends.");
  Counter& lease_expiries =
      NewCounter("weft_worker_lease_expiries_total",
                 "Times that all ranks were killed because the lease had run out.")
          .Add({});

  Family<Gauge>& plan_info = NewGauge("weft_train_plan_info", "Always 1; how the run is laid out.");
  Family<Gauge>& world_size = NewGauge("weft_train_world_size", "Ranks of the run.");
  Family<Gauge>& epoch = NewGauge("weft_train_epoch", "Attempt epoch of the run.");
  Family<Counter>& steps = NewCounter("weft_train_steps_total", "Optimizer steps done.");
  Family<Counter>& tokens =
      NewCounter("weft_train_tokens_total", "Tokens trained on, without padding.");
  Family<Counter>& flops = NewCounter("weft_train_model_flops_total",
                                      "Model FLOPs of the steps done, without recomputation.");
  Family<Counter>& rollbacks = NewCounter(
      "weft_train_rollbacks_total", "Times the training went back to a checkpoint by itself.");
  Family<Counter>& damaged_checkpoints =
      NewCounter("weft_train_damaged_checkpoints_total",
                 "Checkpoints that did not verify when the training was loaded: it went on from an "
                 "older one.");
  Family<Counter>& rework =
      NewCounter("weft_train_rework_steps_total", "Steps repeated after a failure.");
  Family<Gauge>& loss = NewGauge("weft_train_loss", "Training loss, nats per token.");
  Family<Gauge>& gradient_norm =
      NewGauge("weft_train_gradient_norm", "Global gradient norm before clipping.");
  Family<Gauge>& learning_rate = NewGauge("weft_train_learning_rate", "Learning rate.");
  Family<Gauge>& eval_loss =
      NewGauge("weft_train_eval_loss", "Newest validation loss, nats per token.");
  Family<Gauge>& eta = NewGauge("weft_train_eta_seconds", "Remaining time at the present rate.");
  Family<Gauge>& mfu = NewGauge(
      "weft_train_mfu_ratio", "Share of the measured matrix-product rate that model FLOPs reach.");
  Family<Gauge>& rate =
      NewGauge("weft_train_tokens_per_second", "Tokens per second without padding, all ranks.");
  Family<Histogram>& step_duration =
      NewHistogram("weft_train_step_duration_seconds", "Time of an optimizer step.");
  Family<Counter>& phase =
      NewCounter("weft_train_phase_seconds_total", "Time of a rank by what it did.");
  Family<Gauge>& perplexity = NewGauge("weft_train_perplexity", "exp of the training loss.");
  Family<Gauge>& eval_perplexity =
      NewGauge("weft_train_eval_perplexity", "exp of the newest validation loss.");
  Family<Gauge>& accuracy =
      NewGauge("weft_train_accuracy_ratio", "Share of the last step's examples recognised.");
  Family<Gauge>& eval_accuracy = NewGauge("weft_train_eval_accuracy_ratio",
                                          "Share of the newest validation's examples recognised.");
  Family<Gauge>& group_gradient_norm = NewGauge(
      "weft_train_group_gradient_norm", "Gradient norm by group of parameters, before clipping.");
  Family<Gauge>& group_parameter_norm =
      NewGauge("weft_train_group_parameter_norm", "Norm of the parameters by group.");
  Family<Gauge>& memory = NewGauge("weft_train_memory_bytes",
                                   "Most memory a rank used in its last step, by component.");
  Family<Gauge>& memory_peak =
      NewGauge("weft_train_memory_peak_bytes", "Most memory a rank has used, by component.");
  Family<Counter>& sent = NewCounter("weft_train_communication_sent_bytes_total",
                                     "Bytes that left a rank, by axis of the mesh and operation.");
  Family<Counter>& operations =
      NewCounter("weft_train_communication_operations_total", "Operations of a rank with others.");
  Family<Counter>& communication =
      NewCounter("weft_train_communication_seconds_total",
                 "Time of operations between ranks: waited for, or overlapped with computation.");
  Family<Gauge>& tier = NewGauge("weft_train_memory_tier_bytes",
                                 "Most that a rank held in its last step, by where it resides.");
  Family<Counter>& offload_stall = NewCounter("weft_train_offload_stall_seconds_total",
                                              "Time that a rank waited for other tiers.");
  Family<Gauge>& padding = NewGauge("weft_train_padding_ratio",
                                    "Share of the last step's tokens that only fill up rows.");
  TechniqueGauges techniques = NewTechniqueGauges();
  Family<Gauge>& loss_scale =
      NewGauge("weft_train_loss_scale", "Factor on the loss of an fp16 run; 1 otherwise.");
  Family<Counter>& skipped = NewCounter("weft_train_skipped_steps_total", "Updates dropped.");
  Family<Counter>& non_finite = NewCounter("weft_train_nonfinite_steps_total",
                                           "Steps whose loss or gradient was not finite.");
  Family<Histogram>& checkpoint_duration =
      NewHistogram("weft_train_checkpoint_duration_seconds", "Time of a checkpoint by stage.");
  Family<Counter>& checkpoint_failures =
      NewCounter("weft_train_checkpoint_failures_total", "Checkpoints that could not be written.");
  Family<Gauge>& checkpoint_step = NewGauge("weft_train_checkpoint_last_verified_step",
                                            "Optimizer step of the newest verified checkpoint.");
  Family<Gauge>& checkpoint_time = NewGauge("weft_train_checkpoint_last_verified_timestamp_seconds",
                                            "When the newest verified checkpoint was written.");
  Family<Gauge>& checkpoint_interval = NewGauge("weft_train_checkpoint_interval_seconds",
                                                "Between the two newest verified checkpoints.");
  Family<Gauge>& checkpoint_bytes =
      NewGauge("weft_train_checkpoint_bytes", "Size of the newest verified checkpoint.");
  Family<Counter>& accounted =
      NewCounter("weft_train_accounted_seconds_total",
                 "Wall time of the run's attempts by class; the classes sum to it.");
};

/// Why an update was dropped.
const Labels kNonFinite = {{"reason", "nonfinite"}};
const Labels kOverflow = {{"reason", "overflow"}};
const Labels kSpike = {{"reason", "spike"}};

/// What was not finite.
const Labels kInLoss = {{"where", "loss"}};
const Labels kInGradient = {{"where", "gradient"}};

struct Metrics::Run {
  std::string name;
  bool has_rank_zero = false;
  int64_t last_step = -1;  // of this attempt
  int64_t most_steps = 0;  // of all attempts here
  int64_t last_tokens = 0;
  double flops_per_step = 0;
  Gauge* plan_info = nullptr;
  TimeLedger::Nanoseconds earlier[kTimeClasses] = {};
  TimeLedger::Nanoseconds current[kTimeClasses] = {};
  bool running = false;
  std::chrono::nanoseconds ended_at{0};
  std::map<const void*, std::function<void()>> removals;

  /// The run's series of a family, made at first use.
  template <class T, class... Args>
  T& Get(Family<T>& family, Labels labels, Args&&... args) {
    labels["run"] = name;
    T& series = family.Add(labels, args...);
    removals.try_emplace(&series, [&family, &series] { family.Remove(&series); });
    return series;
  }
  template <class T>
  void Drop(T* series) {
    if (auto it = removals.find(series); it != removals.end()) {
      it->second();
      removals.erase(it);
    }
  }
};

Metrics::Metrics(const Clock& clock)
    : clock_(clock),
      registry_(std::make_shared<prometheus::Registry>()),
      families_(std::make_unique<Families>(*registry_)),
      devices_(std::make_unique<DeviceMetrics>(*registry_)) {}

Metrics::~Metrics() = default;

std::string Metrics::Text() const {
  if (!certificate_path_.empty()) {
    const Result<double> end = tls::CertificateEnd(certificate_path_);
    if (end.ok()) families_->certificate_end.Add({{"role", "worker"}}).Set(*end);
  }
  return prometheus::TextSerializer().Serialize(registry_->Collect());
}

bool Metrics::attached() const {
  return families_->attached.Value() != 0;
}

void Metrics::SetWorker(const std::string& worker_id, int64_t cores, int64_t memory_limit_bytes) {
  families_->info.Add({{"worker", worker_id}, {"version", kVersion}}).Set(1);
  families_->cores.Set(static_cast<double>(cores));
  families_->memory_limit.Set(static_cast<double>(memory_limit_bytes));
}

void Metrics::SetAttached(bool attached) {
  families_->attached.Set(attached ? 1 : 0);
}

void Metrics::SetRunningAttempts(int64_t count) {
  families_->running.Set(static_cast<double>(count));
}

void Metrics::SetWaitingLogLines(int64_t count) {
  families_->waiting_lines.Set(static_cast<double>(count));
}

void Metrics::CountDial() {
  families_->dials.Increment();
}

void Metrics::CountLeaseExpiry() {
  families_->lease_expiries.Increment();
}

void Metrics::CountAttemptEnd(const std::string& state) {
  families_->attempt_ends.Add({{"state", state}}).Increment();
}

Metrics::Run* Metrics::Find(const std::string& run) {
  auto it = runs_.find(run);
  return it == runs_.end() ? nullptr : it->second.get();
}

void Metrics::BeginRun(const std::string& name, int64_t epoch, const v1::Plan& plan,
                       bool has_rank_zero) {
  std::unique_ptr<Run>& slot = runs_[name];
  if (slot == nullptr) slot = std::make_unique<Run>();
  Run& run = *slot;
  run.name = name;
  run.has_rank_zero = false;
  run.running = true;
  run.last_step = -1;
  run.last_tokens = 0;
  run.flops_per_step = plan.prediction().model_flops_per_step();
  for (int c = 0; c < kTimeClasses; ++c) {
    run.earlier[c] += std::exchange(run.current[c], TimeLedger::Nanoseconds{0});
  }
  if (has_rank_zero) GainRankZero(name, epoch, plan);
}

void Metrics::SetWorldSize(const std::string& name, int64_t ranks) {
  Run* run = Find(name);
  if (run == nullptr || !run->has_rank_zero) return;
  run->Get(families_->world_size, {}).Set(static_cast<double>(ranks));
}

void Metrics::GainRankZero(const std::string& name, int64_t epoch, const v1::Plan& plan) {
  Run& run = *runs_.at(name);
  run.has_rank_zero = true;
  run.last_step = -1;
  if (run.plan_info != nullptr) run.Drop(run.plan_info);
  const v1::Mesh& mesh = plan.mesh();
  run.plan_info = &run.Get(families_->plan_info, {{"dp", std::to_string(mesh.data())},
                                                  {"tp", std::to_string(mesh.tensor())},
                                                  {"pp", std::to_string(mesh.pipeline())},
                                                  {"cp", std::to_string(mesh.context())},
                                                  {"ep", std::to_string(mesh.expert())},
                                                  {"zero", std::to_string(plan.zero_stage())},
                                                  {"precision", plan.precision()}});
  run.plan_info->Set(1);
  run.Get(families_->world_size, {}).Set(static_cast<double>(plan.rank_workers_size()));
  run.Get(families_->epoch, {}).Set(static_cast<double>(epoch));
  // A counter that is absent until its first event has no rate then.
  run.Get(families_->skipped, kNonFinite);
  run.Get(families_->skipped, kOverflow);
  run.Get(families_->skipped, kSpike);
  run.Get(families_->non_finite, kInLoss);
  run.Get(families_->non_finite, kInGradient);
  run.Get(families_->rework, {});
  run.Get(families_->rollbacks, {});
  run.Get(families_->damaged_checkpoints, {});
}

void Metrics::SetProgress(const std::string& name, const v1::Progress& progress) {
  Run* run = Find(name);
  if (run == nullptr || !run->has_rank_zero) return;
  Families& f = *families_;
  // The first report of a resumed attempt, or after a rollback, says where it goes on, not that it
  // did all of that.
  if (progress.step() < run->last_step) run->last_step = -1;
  int64_t before = run->last_step < 0 ? progress.step() - 1 : run->last_step;
  if (progress.step() > before) {
    auto steps = static_cast<double>(progress.step() - before);
    run->Get(f.steps, {}).Increment(steps);
    run->Get(f.flops, {}).Increment(steps * run->flops_per_step);
    int64_t again = std::min(progress.step(), run->most_steps) - before;
    run->Get(f.rework, {}).Increment(static_cast<double>(std::max<int64_t>(0, again)));
    int64_t tokens = run->last_step < 0 && progress.step() > 0
                         ? progress.tokens() / progress.step()
                         : progress.tokens() - run->last_tokens;
    run->Get(f.tokens, {}).Increment(static_cast<double>(std::max<int64_t>(0, tokens)));
    run->last_step = progress.step();
    run->most_steps = std::max(run->most_steps, progress.step());
    run->last_tokens = progress.tokens();
  }
  run->Get(f.loss, {}).Set(progress.loss());
  run->Get(f.perplexity, {}).Set(progress.perplexity());
  if (progress.has_accuracy()) run->Get(f.accuracy, {}).Set(progress.accuracy());
  if (progress.has_validation_accuracy()) {
    run->Get(f.eval_accuracy, {{"dataset", "validation"}}).Set(progress.validation_accuracy());
  }
  run->Get(f.gradient_norm, {}).Set(progress.gradient_norm());
  for (const v1::GroupNorm& norm : progress.norms()) {
    run->Get(f.group_gradient_norm, {{"group", norm.group()}}).Set(norm.gradient());
    run->Get(f.group_parameter_norm, {{"group", norm.group()}}).Set(norm.parameter());
  }
  run->Get(f.learning_rate, {}).Set(progress.learning_rate());
  run->Get(f.eta, {}).Set(progress.eta_seconds());
  run->Get(f.mfu, {}).Set(progress.utilization_ratio());
  run->Get(f.rate, {}).Set(progress.tokens_per_second());
  if (progress.has_validation_loss()) {
    run->Get(f.eval_loss, {{"dataset", "validation"}}).Set(progress.validation_loss());
    run->Get(f.eval_perplexity, {{"dataset", "validation"}}).Set(progress.validation_perplexity());
  }
}

void Metrics::ObserveStep(const std::string& name, int rank, double step_seconds,
                          const std::map<std::string, double>& phase_seconds) {
  Run* run = Find(name);
  if (run == nullptr) return;
  std::string rank_text = std::to_string(rank);
  run->Get(families_->step_duration, {{"rank", rank_text}}, kStepBuckets).Observe(step_seconds);
  for (const auto& [phase, seconds] : phase_seconds) {
    run->Get(families_->phase, {{"rank", rank_text}, {"phase", phase}}).Increment(seconds);
  }
}

void Metrics::SetMemory(const std::string& name, int rank, const MemoryBreakdown& peak,
                        const MemoryBreakdown& step) {
  Run* run = Find(name);
  if (run == nullptr) return;
  const auto set = [&](Family<Gauge>& family, const MemoryBreakdown& memory) {
    MemoryBreakdown::Fields(memory, [&](const Field& field, int64_t bytes) {
      std::string component(field.name.substr(0, field.name.rfind("_bytes")));
      run->Get(family, {{"rank", std::to_string(rank)}, {"component", component}})
          .Set(static_cast<double>(bytes));
    });
  };
  set(families_->memory_peak, peak);
  set(families_->memory, step);
}

void Metrics::ObserveUse(const std::string& name, int rank,
                         const std::vector<CollectiveUse>& collectives, const TierUse& tiers) {
  Run* run = Find(name);
  if (run == nullptr) return;
  Families& f = *families_;
  const Labels of_rank = {{"rank", std::to_string(rank)}};
  for (const CollectiveUse& use : collectives) {
    Labels labels = of_rank;
    labels["axis"] = use.axis;
    labels["collective"] = use.collective;
    run->Get(f.sent, labels).Increment(use.sent_bytes);
    run->Get(f.operations, labels).Increment(use.calls);
    labels["visibility"] = "exposed";
    run->Get(f.communication, labels).Increment(use.exposed_seconds);
    labels["visibility"] = "hidden";
    run->Get(f.communication, labels).Increment(use.HiddenSeconds());
  }
  const std::pair<const char*, int64_t> bytes[] = {
      {"device", tiers.device_bytes}, {"host", tiers.host_bytes}, {"file", tiers.file_bytes}};
  for (const auto& [tier, held] : bytes) {
    Labels labels = of_rank;
    labels["tier"] = tier;
    run->Get(f.tier, labels).Set(static_cast<double>(held));
  }
  run->Get(f.offload_stall, of_rank).Increment(std::max(0.0, tiers.stall_seconds));
}

void Metrics::ObserveNumerics(const std::string& name, const trainer::ProgressMessage& step) {
  Run* run = Find(name);
  if (run == nullptr || !run->has_rank_zero) return;
  Families& f = *families_;
  run->Get(f.loss_scale, {}).Set(step.loss_scale);
  run->Get(f.padding, {}).Set(step.padding_ratio);
  if (step.skipped) {
    run->Get(f.skipped, step.spike ? kSpike : step.overflow ? kOverflow : kNonFinite).Increment();
  }
  if (step.rolled_back) run->Get(f.rollbacks, {}).Increment();
  run->Get(f.damaged_checkpoints, {})
      .Increment(static_cast<double>(std::max<int64_t>(0, step.damaged_checkpoints)));
  if (!step.loss) run->Get(f.non_finite, kInLoss).Increment();
  if (step.non_finite_gradients > 0) run->Get(f.non_finite, kInGradient).Increment();
}

void Metrics::ObserveTechniques(const std::string& name,
                                const std::map<std::string, double>& metrics) {
  Run* run = Find(name);
  if (run == nullptr || !run->has_rank_zero) return;
  for (const auto& [metric, value] : metrics) {
    const size_t end = metric.find('/');
    const auto found = families_->techniques.find(metric.substr(0, end));
    if (found == families_->techniques.end()) continue;
    const auto& [gauge, label] = found->second;
    Labels labels;
    if (!label.empty() && end != std::string::npos) labels[label] = metric.substr(end + 1);
    run->Get(*gauge, labels).Set(value);
  }
}

void Metrics::ObserveCheckpoint(const std::string& name, const v1::Checkpoint& checkpoint,
                                const std::map<std::string, double>& stage_seconds) {
  Run* run = Find(name);
  if (run == nullptr) return;
  Families& f = *families_;
  for (const auto& [stage, seconds] : stage_seconds) {
    run->Get(f.checkpoint_duration, {{"stage", stage}}, kStepBuckets).Observe(seconds);
  }
  run->Get(f.checkpoint_step, {}).Set(static_cast<double>(checkpoint.step()));
  Gauge& time = run->Get(f.checkpoint_time, {});
  const double interval = checkpoint.created_at() - time.Value();
  if (time.Value() > 0) run->Get(f.checkpoint_interval, {}).Set(interval);
  time.Set(checkpoint.created_at());
  run->Get(f.checkpoint_bytes, {}).Set(static_cast<double>(checkpoint.bytes()));
}

void Metrics::CountFailedCheckpoint(const std::string& name) {
  Run* run = Find(name);
  if (run != nullptr) run->Get(families_->checkpoint_failures, {}).Increment();
}

void Metrics::SetAccounted(const std::string& name, const TimeLedger& ledger) {
  Run* run = Find(name);
  if (run == nullptr || !run->has_rank_zero) return;
  for (int c = 0; c < kTimeClasses; ++c) {
    auto time_class = static_cast<TimeClass>(c);
    run->current[c] = ledger.total(time_class);
    std::chrono::duration<double> total = run->earlier[c] + run->current[c];
    Raise(run->Get(families_->accounted, {{"class", std::string(TimeClassName(time_class))}}),
          total.count());
  }
}

void Metrics::EndRun(const std::string& name) {
  Run* run = Find(name);
  if (run == nullptr) return;
  run->running = false;
  run->ended_at = clock_.Monotonic();
}

void Metrics::RemoveOldRuns() {
  for (auto it = runs_.begin(); it != runs_.end();) {
    Run& run = *it->second;
    if (run.running || clock_.Monotonic() - run.ended_at < kKeepAfterEnd) {
      ++it;
      continue;
    }
    for (const auto& [series, remove] : run.removals) remove();
    it = runs_.erase(it);
  }
}

}  // namespace weft::daemon
