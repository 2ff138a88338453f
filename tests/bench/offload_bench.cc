// What fits a device of limited memory, by what stands outside it, and how fast it trains there.
//
//   offload_bench --device-bytes 67108864 --link 400000000 --directory /var/tmp
//
// First, for each policy, the largest GPT-2 (width in steps of 32, a layer for every 16 of it) of
// which the planner's memory model says that it fits the device; that it does is shown by training
// it under the limit. Then the speed of one model under the last policies: seconds of a step, of
// what it stood still for the link, and the bound: the longer of computing (a step with all on the
// device) and of what the link carries in each direction at its rate. Prints JSON.

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/model/gradient_bytes.h"
#include "common/model/memory_model.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {
namespace {

struct Options {
  int64_t device_bytes = int64_t{32} << 20;
  int64_t link = 1000000000;
  int64_t threads = 2;
  int64_t steps = 5;
  int64_t width = 256;  ///< Of the model whose speed is measured.
  int64_t micro_batch = 4;
  std::string precision = "fp32";
  std::string directory = "/var/tmp";
};

struct Policy {
  std::string name;
  bool recompute = false;
  std::string optimizer = "none";
  std::string activations = "none";
  std::string parameters = "none";
};

const std::vector<Policy> kPolicies = {
    {"all on the device"},
    {"recompute", true},
    {"optimizer host", false, "host"},
    {"optimizer, activations host", false, "host", "host"},
    {"optimizer, activations, parameters host", false, "host", "host", "host"},
    {"the same, recompute", true, "host", "host", "host"},
    {"the same, optimizer nvme", true, "nvme", "host", "host"},
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
  if (policy.optimizer == "nvme") plan.offload_directory = options.directory;
  plan.bucket_bytes = std::min(plan.bucket_bytes, BlockGradientBytes(job.model));
  if (policy.recompute) {
    plan.block_memory_policy.assign(static_cast<size_t>(job.model.layers), "recompute");
  }
  return plan;
}

MemoryInputs InputsOf(const JobSpec& job, const Plan& plan) {
  MemoryInputs inputs;
  inputs.shape = ShapeOf(job);
  inputs.micro_batch = plan.micro_batch;
  inputs.sequence_length = job.model.context;
  inputs.accumulation_steps = plan.accumulation_steps;
  inputs.precision = &PrecisionOf(plan.precision);
  inputs.products = ProductsOf(inputs.precision->products);
  inputs.optimizer = OptimizerBytesOf(job.model, job, inputs.precision->products);
  inputs.offload_optimizer = plan.offload_optimizer != "none";
  inputs.offload_activations = plan.offload_activations != "none";
  inputs.offload_parameters = plan.offload_parameters != "none";
  if (inputs.offload_optimizer) {
    inputs.open_gradients = OpenGradientBytes(job.model, plan.bucket_bytes);
  }
  inputs.recomputed_blocks = plan.block_memory_policy.empty() ? 0 : job.model.layers;
  return inputs;
}

struct Trained {
  int64_t parameters = 0;
  double step_seconds = 0;     ///< Median.
  double stalled_seconds = 0;  ///< Of it: the rank stood still.
  double bytes_down = 0;
  double bytes_up = 0;
  int64_t device_bytes = 0;  ///< Peaks of all components together.
  int64_t host_bytes = 0;
};

Result<Trained> Train(const JobSpec& job, const Plan& plan, int64_t steps) {
  WEFT_ASSIGN_OR_RETURN(
      const std::unique_ptr<ComputeDevice> device,
      ComputeDevice::Open(
          {.device = {}, .host = HostTierOf(plan), .limit_bytes = plan.device_memory_bytes}));
  Context context = device->NewContext();
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Model> model,
                        NewModel(context, job.model, ModelOptionsOf(plan, job.train)));
  WEFT_RETURN_IF_ERROR(model->parameters().Initialize(1));
  const PlannedOffload offload = PlannedOffload::Of(plan, context, &model->parameters());
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<Trainer> trainer,
                        Trainer::New(job, plan,
                                     {.context = &context,
                                      .model = model.get(),
                                      .train = &tokens,
                                      .reducer = offload.gradients.get()}));
  WEFT_RETURN_IF_ERROR(trainer->Step().status());
  LinkTotals down, up;
  if (context.host != nullptr) {
    WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
    down = context.host->down().totals();
    up = context.host->up().totals();
  }
  std::vector<double> seconds;
  Trained trained;
  for (int64_t i = 0; i < steps; ++i) {
    Stopwatch watch;
    WEFT_ASSIGN_OR_RETURN(const StepReport report, trainer->Step());
    seconds.push_back(watch.Lap());
    trained.stalled_seconds += report.seconds.communication_exposed / static_cast<double>(steps);
  }
  std::sort(seconds.begin(), seconds.end());
  trained.parameters = model->parameters().ElementCount();
  trained.step_seconds = seconds[seconds.size() / 2];
  trained.device_bytes = TotalBytes(context.allocator->Peaks());
  if (context.host == nullptr) return trained;
  WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
  const auto a_step = [&](const LinkTotals& now, const LinkTotals& before) {
    return static_cast<double>(now.bytes - before.bytes) / static_cast<double>(steps);
  };
  trained.bytes_down = a_step(context.host->down().totals(), down);
  trained.bytes_up = a_step(context.host->up().totals(), up);
  trained.host_bytes = TotalBytes(context.host->allocator().Peaks());
  return trained;
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
              {"host_bytes", trained.host_bytes}};
}

Result<Json> Speed(const Options& options) {
  const JobSpec job = JobOf(options, options.width);
  Json rows = Json::array();
  double computing = 0;
  for (const Policy& policy : kPolicies) {
    if (policy.recompute) continue;
    Plan plan = PlanOf(options, policy, job);
    plan.host_link_bytes_per_second = policy.optimizer == "none" ? 0 : options.link;
    WEFT_ASSIGN_OR_RETURN(const Trained trained, Train(job, plan, options.steps));
    if (computing == 0) computing = trained.step_seconds;
    const double link =
        std::max(trained.bytes_down, trained.bytes_up) / static_cast<double>(options.link);
    const double bound = std::max(computing, link);
    rows.push_back({{"policy", policy.name},
                    {"step_seconds", trained.step_seconds},
                    {"stalled_seconds", trained.stalled_seconds},
                    {"bytes_down", trained.bytes_down},
                    {"bytes_up", trained.bytes_up},
                    {"link_seconds", link},
                    {"bound_seconds", bound},
                    {"share_of_bound", bound / trained.step_seconds}});
  }
  return Json{{"width", options.width},
              {"layers", job.model.layers},
              {"tokens", job.train.global_batch * job.model.context},
              {"link_bytes_per_second", options.link},
              {"policies", rows}};
}

Result<Json> Report(const Options& options) {
  Json largest = Json::array();
  for (const Policy& policy : kPolicies) {
    WEFT_ASSIGN_OR_RETURN(Json row, Largest(options, policy));
    largest.push_back(std::move(row));
  }
  WEFT_ASSIGN_OR_RETURN(Json speed, Speed(options));
  return Json{{"device_bytes", options.device_bytes}, {"precision", options.precision},
              {"threads", options.threads},           {"micro_batch", options.micro_batch},
              {"largest", std::move(largest)},        {"speed", std::move(speed)}};
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  weft::engine::Options options;
  CLI::App app("What fits a device, and how fast it trains, by what stands outside it.");
  app.add_option("--device-bytes", options.device_bytes)->capture_default_str();
  app.add_option("--link", options.link, "Bytes a second each way.")->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--steps", options.steps)->capture_default_str();
  app.add_option("--width", options.width, "Of the model that is timed.")->capture_default_str();
  app.add_option("--micro-batch", options.micro_batch)->capture_default_str();
  app.add_option("--precision", options.precision)->capture_default_str();
  app.add_option("--directory", options.directory)->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  const auto result = weft::engine::Report(options);
  if (!result.ok()) {
    std::cerr << result.status().message() << "\n";
    return 1;
  }
  std::cout << result->dump(1) << "\n";
  return 0;
}
