// What fits a device of limited memory, by what is offloaded, and how fast it trains there.
//
//   offload_bench --device-bytes 67108864 --link 400000000 --directory /var/tmp
//
// First, for each policy, the largest GPT-2 (width in steps of 32, a layer for every 16 of it) that
// fits the device by the planner's memory model; that it does is shown by training
// it under the limit. Then the speed of one model, with several numbers of sequences a step:
// seconds of a step, of what it waited for the link, and two bounds. The first is the longest
// of computing (a step with all on the device), of what the link carries in its busier direction at
// its rate, and of what files read and write at theirs, which is measured first. The second knows
// that a step's update comes after its last gradient: it takes that of the forward pass and of the
// backward pass for themselves, each with what must be copied in it.
// With --kept instead, in turns, the speed of that model where the optimizer is on the host except
// that of some units (plan.device_updated_units): of none, of the first half, of the last half;
// and, with a sequence a pass, where weights come block by block except those of some units, which
// stay until the update (plan.resident_units): of none, of the first half, of every other block.
// Prints JSON.

#include <algorithm>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "kernels/cpu/aligned_memory.h"
#include "tests/bench/timed_training.h"
#include "worker/engine/tensor/async_file.h"
#include "worker/engine/testing/product_kind.h"

namespace weft::engine {
namespace {

struct Options {
  int64_t device_bytes = int64_t{32} << 20;
  int64_t link = 1000000000;
  int64_t threads = 2;
  int64_t steps = 5;
  int64_t width = 256;  ///< Of the model whose speed is measured.
  int64_t micro_batch = 4;
  std::vector<int64_t> sequences = {4, 16};  ///< A step, where speed is measured.
  std::string precision = "fp32";
  std::string directory = "/var/tmp";
  int64_t kept = 0;  ///< Rounds of the comparison of units on the device, instead of all else.
};

struct Policy {
  std::string name;
  bool recompute = false;
  std::string optimizer = "none";
  std::string activations = "none";
  std::string parameters = "none";
  bool delayed = false;
};

const Policy kOnDevice = {"all on the device"};
const Policy kOptimizer = {"optimizer host", false, "host"};
const Policy kActivations = {"optimizer, activations host", false, "host", "host"};
const Policy kParameters = {"optimizer, activations, parameters host", false, "host", "host",
                            "host"};

const std::vector<Policy> kFitting = {
    kOnDevice,
    {"recompute", true},
    kOptimizer,
    kActivations,
    kParameters,
    {"the same, recompute", true, "host", "host", "host"},
    {"the same, optimizer nvme", true, "nvme", "host", "host"},
    {"the same, parameters nvme", true, "nvme", "host", "nvme"},
};

const std::vector<Policy> kTimed = {
    kOptimizer,
    {"optimizer host, one step late", false, "host", "none", "none", true},
    kActivations,
    {"optimizer, activations host, one step late", false, "host", "host", "none", true},
    kParameters,
    {"the same, optimizer nvme", false, "nvme", "host", "host"},
    {"the same, optimizer, parameters nvme", false, "nvme", "host", "nvme"},
};

JobSpec JobOf(const Options& options, int64_t width) {
  JobSpec job;
  job.name = "offload-bench";
  job.model.width = width;
  job.model.layers = width / 16;
  job.model.heads = width / 32;
  job.model.vocab_size = 512;
  job.model.context = 64;
  job.train.global_batch = options.micro_batch;
  job.train.steps = 1000;
  job.schedule.warmup_steps = 0;
  return job;
}

Plan PlanOf(const Options& options, const Policy& policy, const JobSpec& job) {
  Plan plan;
  plan.precision = options.precision;
  plan.micro_batch = options.micro_batch;
  plan.threads_per_rank = options.threads;
  plan.offload_optimizer = policy.optimizer;
  plan.offload_activations = policy.activations;
  plan.offload_parameters = policy.parameters;
  plan.delayed_update = policy.delayed;
  const bool in_file = policy.optimizer == "nvme" || policy.parameters == "nvme";
  if (in_file) plan.offload_directory = options.directory;
  plan.bucket_bytes = std::min(plan.bucket_bytes, BlockGradientBytes(job.model));
  if (policy.recompute) {
    plan.block_memory_policy.assign(static_cast<size_t>(job.model.layers), "recompute");
  }
  return plan;
}

MemoryInputs InputsOf(const JobSpec& job, const Plan& plan) {
  return MemoryInputsOf(job, plan, {ProductsOf(PrecisionOf(plan.precision).products)});
}

int64_t Predicted(const JobSpec& job, const Plan& plan) {
  return TotalBytes(PredictDeviceTier(InputsOf(job, plan)));
}

/// The largest model that the memory model has fit the device, trained there.
Result<Json> Largest(const Options& options, const Policy& policy) {
  int64_t width = 0;
  for (int64_t next = 32;; next += 32) {
    const JobSpec job = JobOf(options, next);
    if (Predicted(job, PlanOf(options, policy, job)) > options.device_bytes) break;
    width = next;
  }
  if (width == 0) return InvalidError("no model fits --device-bytes");
  const JobSpec job = JobOf(options, width);
  Plan plan = PlanOf(options, policy, job);
  plan.device_memory_bytes = options.device_bytes;
  WEFT_ASSIGN_OR_RETURN(const Trained trained, Train(job, plan, 1));
  const JobSpec above = JobOf(options, width + 32);
  return Json{{"policy", policy.name},
              {"width", width},
              {"layers", job.model.layers},
              {"parameters", trained.parameters},
              {"state_over_device", 16.0 * static_cast<double>(trained.parameters) /
                                        static_cast<double>(options.device_bytes)},
              {"predicted_device_bytes", Predicted(job, plan)},
              {"next_predicted_bytes", Predicted(above, PlanOf(options, policy, above))},
              {"device_bytes", trained.device_bytes},
              {"host_bytes", trained.host_bytes},
              {"file_bytes", trained.file_bytes}};
}

/// Bytes a second of a file of this size, as often read as written, the best of three.
Result<double> FileRate(const std::string& directory, int64_t bytes) {
  constexpr int64_t kPiece = int64_t{4} << 20, kInFlight = 4;
  const int64_t pieces = std::max<int64_t>(bytes / kPiece, kInFlight);
  WEFT_ASSIGN_OR_RETURN(auto file, AsyncFile::Create(directory, pieces * kPiece));
  const kernels::cpu::AlignedMemory memory = kernels::cpu::AllocateAligned(kInFlight * kPiece);
  std::memset(memory.get(), 1, kInFlight * kPiece);
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    Stopwatch watch;
    for (const bool write : {true, false}) {
      std::vector<int64_t> numbers;
      for (int64_t i = 0; i < pieces + kInFlight; ++i) {
        if (i >= kInFlight) {
          WEFT_RETURN_IF_ERROR(file->queue().Wait(numbers[static_cast<size_t>(i - kInFlight)]));
        }
        if (i >= pieces) continue;
        std::byte* const piece = static_cast<std::byte*>(memory.get()) + i % kInFlight * kPiece;
        WEFT_ASSIGN_OR_RETURN(
            const int64_t number,
            file->queue().Start(write, piece, kPiece, static_cast<uint64_t>(i * kPiece)));
        numbers.push_back(number);
      }
    }
    best = std::max(best, static_cast<double>(2 * pieces * kPiece) / watch.Lap());
  }
  return best;
}

/// The least that a pass can take which computes `computing` seconds while this many bytes are
/// copied, and files are read and written for `files` seconds.
double PassBound(double computing, double up, double down, int64_t link, double files) {
  const auto rate = static_cast<double>(link);
  return std::max({computing, up / rate, down / rate, files});
}

Result<Json> Speed(const Options& options, int64_t sequences, double file_rate) {
  Options sized = options;
  sized.micro_batch = sequences;
  const JobSpec job = JobOf(sized, options.width);
  WEFT_ASSIGN_OR_RETURN(const Trained plain,
                        Train(job, PlanOf(sized, kOnDevice, job), options.steps));
  const double forward = plain.forward_seconds, backward = plain.step_seconds - forward;
  double gradients = 0, weights = 0;  // What the optimizer alone has copied.
  Json rows = Json::array();
  for (const Policy& policy : kTimed) {
    Plan plan = PlanOf(sized, policy, job);
    plan.host_link_bytes_per_second = options.link;
    WEFT_ASSIGN_OR_RETURN(const Trained trained, Train(job, plan, options.steps));
    const double down = trained.bytes_down, up = trained.bytes_up;
    if (gradients == 0) gradients = down, weights = up;
    const double link = std::max(down, up) / static_cast<double>(options.link);
    const double files = trained.file_moved / file_rate;
    const double bound = std::max({plain.step_seconds, link, files});
    Json row = {{"policy", policy.name},
                {"step_seconds", trained.step_seconds},
                {"stalled_seconds", trained.stalled_seconds},
                {"device_bytes", trained.device_bytes},
                {"host_bytes", trained.host_bytes},
                {"file_bytes", trained.file_bytes},
                {"file_bytes_moved", trained.file_moved},
                {"bytes_down", down},
                {"bytes_up", up},
                {"link_seconds", link},
                {"file_seconds", files},
                {"bound_seconds", bound},
                {"share_of_bound", bound / trained.step_seconds}};
    if (!policy.delayed) {
      // Activations go down in the forward pass and gradients in the backward pass. Up come
      // weights before the forward pass, or parameters for both passes, and activations.
      const double parameters = up - (down - gradients);
      const double first = policy.parameters == "none" ? weights : parameters / 2;
      // Gradients in a file are written while values are read; once all are there, and with them
      // their norm, all is read and written that the update changes.
      const double of_all = 4 * static_cast<double>(trained.parameters) / file_rate;
      const double backward_files = policy.parameters == "nvme" ? 2 * of_all : 0;
      const double in_order =
          PassBound(forward, first, down - gradients, options.link, files - backward_files) +
          PassBound(backward, up - first, gradients, options.link, backward_files);
      row["bound_in_order_seconds"] = in_order;
      row["share_of_bound_in_order"] = in_order / trained.step_seconds;
    }
    rows.push_back(std::move(row));
  }
  return Json{{"width", options.width},
              {"layers", job.model.layers},
              {"tokens", job.train.global_batch * job.model.context},
              {"link_bytes_per_second", options.link},
              {"file_bytes_per_second", file_rate},
              {"computing_seconds", plain.step_seconds},
              {"policies", rows}};
}

/// What stays on the device, with the rest on the host.
struct Keeping {
  std::string name;
  Plan plan;
};

/// With the state of as many blocks at either end, each time with the embeddings.
std::vector<Keeping> UpdatedThere(const Options& options, const JobSpec& job) {
  const Plan plan = PlanOf(options, kOptimizer, job);
  std::vector<Keeping> all = {
      {"none", plan}, {"embeddings, first half", plan}, {"embeddings, last half", plan}};
  all[1].plan.device_updated_units = all[2].plan.device_updated_units = {0};
  for (int64_t block = 1; block <= job.model.layers; ++block) {
    all[block <= job.model.layers / 2 ? 1 : 2].plan.device_updated_units.push_back(block);
  }
  all.push_back({"all", PlanOf(options, kOnDevice, job)});
  return all;
}

/// With the weights of as many blocks, in several passes a step.
std::vector<Keeping> StayingThere(const Options& options, const JobSpec& job) {
  const auto plan_of = [&](const Policy& policy) {
    Plan plan = PlanOf(options, policy, job);
    plan.micro_batch = 1;
    plan.accumulation_steps = job.train.global_batch;
    return plan;
  };
  const Plan plan = plan_of({"optimizer, parameters host", false, "host", "none", "host"});
  std::vector<Keeping> all = {{"none", plan}, {"first half", plan}, {"every other block", plan}};
  for (int64_t block = 1; block <= job.model.layers; ++block) {
    if (block <= job.model.layers / 2) all[1].plan.resident_units.push_back(block);
    if (block % 2 == 1) all[2].plan.resident_units.push_back(block);
  }
  all.push_back({"all weights", plan_of(kOptimizer)});
  return all;
}

/// Each in turn, several times.
Result<Json> SpeedInTurns(const Options& options, const JobSpec& job,
                          std::vector<Keeping> keepings) {
  std::vector<std::vector<double>> seconds(keepings.size());
  std::vector<Trained> last(keepings.size());
  std::vector<int64_t> predicted(keepings.size());
  for (int64_t round = 0; round < options.kept; ++round) {
    for (size_t i = 0; i < keepings.size(); ++i) {
      Plan& plan = keepings[i].plan;
      if (plan.offload_optimizer != "none") plan.host_link_bytes_per_second = options.link;
      predicted[i] = Predicted(job, plan);
      WEFT_ASSIGN_OR_RETURN(last[i], Train(job, plan, options.steps));
      seconds[i].push_back(last[i].step_seconds);
    }
  }
  Json rows = Json::array();
  for (size_t i = 0; i < keepings.size(); ++i) {
    std::sort(seconds[i].begin(), seconds[i].end());
    const Plan& plan = keepings[i].plan;
    rows.push_back({{"on_the_device", keepings[i].name},
                    {"device_updated_units", plan.device_updated_units},
                    {"resident_units", plan.resident_units},
                    {"passes", plan.accumulation_steps},
                    {"step_seconds", seconds[i][seconds[i].size() / 2]},
                    {"fastest_seconds", seconds[i].front()},
                    {"stalled_seconds", last[i].stalled_seconds},
                    {"predicted_device_bytes", predicted[i]},
                    {"device_bytes", last[i].device_bytes},
                    {"host_bytes", last[i].host_bytes},
                    {"bytes_down", last[i].bytes_down},
                    {"bytes_up", last[i].bytes_up}});
  }
  return rows;
}

Result<Json> KeptSpeed(const Options& options) {
  const JobSpec job = JobOf(options, options.width);
  WEFT_ASSIGN_OR_RETURN(Json updated, SpeedInTurns(options, job, UpdatedThere(options, job)));
  WEFT_ASSIGN_OR_RETURN(Json staying, SpeedInTurns(options, job, StayingThere(options, job)));
  return Json{{"width", options.width},
              {"layers", job.model.layers},
              {"tokens", job.train.global_batch * job.model.context},
              {"link_bytes_per_second", options.link},
              {"rounds", options.kept},
              {"updated", std::move(updated)},
              {"staying", std::move(staying)}};
}

Result<Json> Report(const Options& options) {
  if (options.kept > 0) return KeptSpeed(options);
  Json largest = Json::array();
  for (const Policy& policy : kFitting) {
    WEFT_ASSIGN_OR_RETURN(Json row, Largest(options, policy));
    largest.push_back(std::move(row));
  }
  WEFT_ASSIGN_OR_RETURN(const double file_rate, FileRate(options.directory, int64_t{128} << 20));
  Json speed = Json::array();
  for (const int64_t sequences : options.sequences) {
    WEFT_ASSIGN_OR_RETURN(Json measured, Speed(options, sequences, file_rate));
    speed.push_back(std::move(measured));
  }
  return Json{{"device_bytes", options.device_bytes}, {"precision", options.precision},
              {"threads", options.threads},           {"micro_batch", options.micro_batch},
              {"largest", std::move(largest)},        {"speed", std::move(speed)}};
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  weft::engine::Options options;
  CLI::App app("What fits a device, and how fast it trains, by what is offloaded.");
  app.add_option("--device-bytes", options.device_bytes)->capture_default_str();
  app.add_option("--link", options.link, "Bytes a second each way.")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str();
  app.add_option("--width", options.width, "Of the model that is timed.")->capture_default_str();
  app.add_option("--micro-batch", options.micro_batch)->capture_default_str();
  app.add_option("--sequences", options.sequences, "A step, of the model that is timed.")
      ->capture_default_str();
  app.add_option("--precision", options.precision)->capture_default_str();
  app.add_option("--directory", options.directory)->capture_default_str();
  app.add_option("--kept", options.kept,
                 "Rounds of the comparison of units on the device, instead.")
      ->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = weft::engine::Report(options);
  if (!result.ok()) {
    std::cerr << result.status().message() << "\n";
    return 1;
  }
  std::cout << result->dump(1) << "\n";
  return 0;
}
