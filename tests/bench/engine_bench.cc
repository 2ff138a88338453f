// Trains a model on random tokens for some steps and prints, as one line of JSON, tokens per
// second, where the time went, and how fast the machine multiplies large matrices meanwhile. The
// first steps warm up and are not counted. With --alternate it takes turns with other programs: it
// prints "ready", then for each line on its standard input runs that many steps and prints their
// seconds, and reports when the input ends.
//
//   engine_bench --layers 12 --width 768 --heads 12 --vocabulary 50257 --context 512 --batch 4

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/json.h"
#include "common/model/memory_inputs.h"
#include "common/model/memory_model.h"
#include "common/model/model_counts.h"
#include "common/rng.h"
#include "common/spec/deterministic_mesh.h"
#include "common/spec/spec_json.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/linear/linear.h"
#include "worker/engine/techniques/offload/planned_offload.h"
#include "worker/engine/tensor/compute_device.h"
#include "worker/engine/tensor/host_memory_pool.h"
#include "worker/engine/tensor/transfer.h"
#include "worker/engine/testing/product_kind.h"
#include "worker/engine/testing/token_streams.h"
#include "worker/engine/train/trainer.h"

namespace weft::engine {
namespace {

struct BenchOptions {
  JobSpec job;
  Plan plan;
  std::string device = "cpu";
  int64_t batch = 8;
  int64_t warmup_steps = 2;
  int64_t steps = 10;
  bool recompute = false;
  bool by_operation = false;
  bool alternate = false;
  bool graphs = true;
  int64_t lora_rank = 0;  ///< 0: everything is trained.
};

Json Phases(const PhaseSeconds& total, double steps) {
  return {{"data", total.data / steps},
          {"forward", total.forward / steps},
          {"backward", total.backward / steps},
          {"communication_exposed", total.communication_exposed / steps},
          {"optimizer", total.optimizer / steps}};
}

// Lists, for each operation, seconds a step without those within it, and operations on numbers.
Json Operations(const Profiler& profiler, double steps) {
  Json operations = Json::object();
  for (const auto& [name, entry] : profiler.entries()) {
    operations[std::string(name)] = {{"seconds", entry.self_seconds / steps},
                                     {"flops", entry.flops / steps}};
  }
  return operations;
}

void AddTo(PhaseSeconds& total, const PhaseSeconds& step) {
  total.data += step.data;
  total.forward += step.forward;
  total.backward += step.backward;
  total.communication_exposed += step.communication_exposed;
  total.optimizer += step.optimizer;
}

// Large tensors repeat themselves: to draw them would take longer than what is measured.
Status FillWithNormals(Context& context, const Tensor& tensor, uint32_t site) {
  constexpr int64_t kDrawn = int64_t{1} << 22;
  return FillOnHost(context.stream, tensor, [&](const TensorView& view) {
    PhiloxStream random({.site = site});
    float* values = view.As<float>();
    for (int64_t i = 0; i < view.shape.Elements(); ++i) {
      values[i] = i < kDrawn ? static_cast<float>(random.Normal()) : values[i - kDrawn];
    }
  });
}

// "cpu", "cuda" (the first one) or "cuda:N".
Result<Device> DeviceOf(const std::string& name) {
  if (name == "cpu") return Device{};
  if (name == "cuda") return Device{DeviceType::kCuda, 0};
  constexpr std::string_view kNumbered = "cuda:";
  int index = 0;
  const char* end = name.data() + name.size();
  if (name.starts_with(kNumbered)) {
    const auto [rest, error] = std::from_chars(name.data() + kNumbered.size(), end, index);
    if (error == std::errc() && rest == end && index >= 0) return Device{DeviceType::kCuda, index};
  }
  return InvalidError("engine_bench: --device " + name + "; hint: cpu, cuda or cuda:N");
}

bool OnDevice(const Context& context) {
  return context.stream.device.type == DeviceType::kCuda;
}

// Returns when the device has done what was enqueued.
Status WaitFor(const Context& context) {
  return OnDevice(context) ? context.stream.cuda->Synchronize() : OkStatus();
}

// What went over the link in a step, and how long that takes at its rate, one way after the other:
// weights go up when the last gradients have come down.
Json LinkUse(HostMemoryPool& host, const Plan& plan, const LinkTotals& down, const LinkTotals& up,
             double steps) {
  const auto bytes_down = static_cast<double>(host.down().totals().bytes - down.bytes) / steps;
  const auto bytes_up = static_cast<double>(host.up().totals().bytes - up.bytes) / steps;
  Json use = {{"optimizer", plan.offload_optimizer},
              {"activations", plan.offload_activations},
              {"parameters", plan.offload_parameters},
              {"delayed_update", plan.delayed_update},
              {"bytes_down", bytes_down},
              {"bytes_up", bytes_up},
              {"link_bytes_per_second", plan.host_link_bytes_per_second}};
  if (plan.host_link_bytes_per_second > 0) {
    use["link_seconds"] =
        (bytes_down + bytes_up) / static_cast<double>(plan.host_link_bytes_per_second);
  }
  return use;
}

// Best rate of a large square product in the compute type: the ceiling that training runs under.
// The numbers are random: multiplying the same one over and over takes less power, and a processor
// whose clock follows its power then reaches rates that no training does.
Result<double> GemmFlopsPerSecond(Context& context, DType compute) {
  const int64_t size = OnDevice(context) ? 8192 : 2048;
  constexpr int kRepeats = 10;
  const Shape shape = {size, size};
  WEFT_ASSIGN_OR_RETURN(Tensor x, Tensor::New(context, Component::kWorkspace, compute, shape));
  WEFT_ASSIGN_OR_RETURN(Tensor y, Tensor::New(context, Component::kWorkspace, compute, shape));
  WEFT_ASSIGN_OR_RETURN(Tensor master,
                        Tensor::New(context, Component::kWorkspace, DType::kF32, shape));
  WEFT_RETURN_IF_ERROR(FillWithNormals(context, master, 0));
  WEFT_RETURN_IF_ERROR(kernels::Cast(context.stream, {master, x}));
  WEFT_RETURN_IF_ERROR(FillWithNormals(context, master, 1));
  WEFT_ASSIGN_OR_RETURN(auto weight,
                        kernels::NewPackedWeight(context.stream.device, size, size, compute));
  WEFT_RETURN_IF_ERROR(weight->Pack(context.stream, master));
  const double flops = 2 * std::pow(static_cast<double>(size), 3);
  double best = 0;
  for (int i = 0; i < kRepeats; ++i) {
    WEFT_RETURN_IF_ERROR(WaitFor(context));
    Stopwatch watch;
    WEFT_RETURN_IF_ERROR(kernels::LinearForward(context.stream, {x, weight.get(), {}, y}));
    WEFT_RETURN_IF_ERROR(WaitFor(context));
    best = std::max(best, flops / watch.Lap());
  }
  return best;
}

// VmRSS: the resident set of this process now; VmHWM: its largest size since ResetPeakMemory.
int64_t MemoryBytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with(field + ":")) return std::atoll(line.c_str() + field.size() + 1) * 1024;
  }
  return 0;
}

// Sparse products in every step that is timed: no dense tail.
void TrainSparse(BenchOptions& options) {
  TrainSpec& train = options.job.train;
  if (train.sparsity.method == "none") return;
  train.sparsity.dense_share = 0;
  train.precision = options.plan.precision;  // which the technique's operands follow
}

// What the planner's model says of the same run on this processor, by component.
MemoryBreakdown PredictedMemory(const JobSpec& job, const Plan& plan, DType compute) {
  MemoryInputs inputs = MemoryInputsOf(job, plan, {.products = ProductsOf(compute)});
  MemoryBreakdown predicted = PredictMemory(inputs);
  // Operands that are widened for one product are the kernels' own, which no allocator counts.
  inputs.products = ProductKind::kNative;
  predicted.workspace_bytes = PredictMemory(inputs).workspace_bytes;
  return predicted;
}

void ResetPeakMemory() {
  std::ofstream("/proc/self/clear_refs") << "5";
}

// What the counted steps cost.
struct Measured {
  PhaseSeconds phases;
  std::vector<double> seconds;
  std::vector<double> losses;
  StepReport last;
  // Peaks of the first steps asked for, before any product is timed: what the process takes, what
  // it holds of the device, and what the engine's allocator counted.
  int64_t peak_memory_bytes = 0;
  int64_t device_memory_bytes = 0;
  MemoryBreakdown peak_memory;
};

// Seconds of each step; on a device, where a step ends while the next one begins, their mean.
Status Run(Trainer& trainer, Context& context, int64_t steps, Measured& measured) {
  WEFT_RETURN_IF_ERROR(WaitFor(context));
  Stopwatch watch;
  for (int64_t step = 0; step < steps; ++step) {
    WEFT_ASSIGN_OR_RETURN(measured.last, trainer.Step());
    measured.seconds.push_back(measured.last.seconds.Total());
    measured.losses.push_back(measured.last.loss);
    AddTo(measured.phases, measured.last.seconds);
  }
  if (OnDevice(context) && steps > 0) {
    WEFT_RETURN_IF_ERROR(WaitFor(context));
    std::fill_n(measured.seconds.rbegin(), steps, watch.Lap() / static_cast<double>(steps));
  }
  if (measured.peak_memory_bytes == 0) {
    measured.peak_memory_bytes = MemoryBytes("VmHWM");
    measured.peak_memory = measured.last.peak_memory;
    if (OnDevice(context)) measured.device_memory_bytes = context.allocator->held_bytes();
  }
  return OkStatus();
}

Status RunTurns(Trainer& trainer, Context& context, DType compute, Measured& measured) {
  std::printf("ready\n");
  std::fflush(stdout);
  for (int64_t steps = 0; std::cin >> steps;) {
    const size_t before = measured.seconds.size();
    WEFT_RETURN_IF_ERROR(Run(trainer, context, steps, measured));
    WEFT_ASSIGN_OR_RETURN(const double gemm, GemmFlopsPerSecond(context, compute));
    const Json turn = {
        {"seconds", std::vector<double>(measured.seconds.begin() + static_cast<ptrdiff_t>(before),
                                        measured.seconds.end())},
        {"gemm_flops_per_second", gemm}};
    std::printf("%s\n", turn.dump().c_str());
    std::fflush(stdout);
  }
  return OkStatus();
}

Result<Json> RunBench(BenchOptions options) {
  constexpr int64_t kEndless = 1'000'000;
  JobSpec& job = options.job;
  Plan& plan = options.plan;
  job.name = "bench";
  job.train.steps = options.alternate ? kEndless : options.warmup_steps + options.steps;
  job.train.global_batch = options.batch;
  job.schedule.warmup_steps = 0;
  job.model.context = SequenceLength(job);
  job.model.untied_classifier = job.model.family == "llama";
  if (options.lora_rank > 0) {
    PeftSpec& peft = job.model.peft;
    peft.method = "lora";
    peft.rank = options.lora_rank;
    peft.alpha = static_cast<double>(options.lora_rank);
    peft.target_modules = {"all-linear"};
  }
  TrainSparse(options);
  plan.micro_batch = options.batch / plan.accumulation_steps;
  if (IsMeshDeterministic(job.train)) job.train.logical_micro_batch = plan.micro_batch;
  if (options.recompute) plan.block_memory_policy.assign(job.model.layers, "recompute");

  const int64_t memory_before_bytes = MemoryBytes("VmRSS");
  WEFT_ASSIGN_OR_RETURN(const Device where, DeviceOf(options.device));
  WEFT_ASSIGN_OR_RETURN(const std::unique_ptr<ComputeDevice> device,
                        ComputeDevice::Open({.device = where,
                                             .host = HostMemoryPoolOf(plan),
                                             .limit_bytes = plan.device_memory_bytes}));
  Profiler profiler;
  Context context = device->NewContext();
  if (options.by_operation) context.profiler = &profiler;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Model> model,
                        NewModel(context, job.model, ModelOptionsOf(plan, job.train)));
  WEFT_RETURN_IF_ERROR(model->parameters().Initialize(1));
  const PlannedOffload offload = PlannedOffload::Of(plan, context, &model->parameters());
  RandomTokens tokens(job.model.vocab_size, job.model.context);
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<Trainer> trainer,
                        Trainer::New(job, plan,
                                     {.context = &context,
                                      .model = model.get(),
                                      .train = &tokens,
                                      .reducer = offload.gradients.get(),
                                      .graphs = options.graphs}));

  Measured warmup, measured;
  WEFT_RETURN_IF_ERROR(Run(*trainer, context, options.warmup_steps, warmup));
  profiler.Clear();
  ResetPeakMemory();
  LinkTotals down, up;
  if (context.host != nullptr) {
    WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
    down = context.host->down().totals();
    up = context.host->up().totals();
  }
  const DType compute = model->precision().products;
  if (options.alternate) {
    WEFT_RETURN_IF_ERROR(RunTurns(*trainer, context, compute, measured));
  } else {
    WEFT_RETURN_IF_ERROR(Run(*trainer, context, options.steps, measured));
  }
  if (measured.seconds.empty()) return InvalidError("engine_bench: no step was asked for");
  if (context.host != nullptr) WEFT_RETURN_IF_ERROR(context.host->up().WaitForAll());
  std::vector<double>& seconds = measured.seconds;
  const auto steps = static_cast<double>(seconds.size());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  WEFT_ASSIGN_OR_RETURN(double gemm, GemmFlopsPerSecond(context, compute));
  const StepReport& report = measured.last;
  Json result = {
      {"model",
       {{"family", job.model.family},
        {"layers", job.model.layers},
        {"width", job.model.width},
        {"heads", job.model.heads},
        {"vocabulary", job.model.vocab_size},
        {"context", job.model.context}}},
      {"parameters", model->parameters().ElementCount()},
      {"model_flops_per_token", TrainingFlopsPerToken(ShapeOf(job), SequenceLength(job))},
      {"gemm_flops_per_second", gemm},
      {"device", options.device},
      {"batch", options.batch},
      {"precision", plan.precision},
      {"recompute", options.recompute},
      {"sparsity", job.train.sparsity.method},
      {"threads", plan.threads_per_rank},
      {"steps", seconds.size()},
      {"loss", report.loss},
      {"losses", measured.losses},
      {"step_seconds_median", median},
      {"step_seconds_best", seconds.front()},
      {"tokens_per_second", static_cast<double>(report.tokens) / median},
      {"seconds_by_phase", Phases(measured.phases, steps)},
      {"memory_before_bytes", memory_before_bytes},
      {"peak_memory_bytes", measured.peak_memory_bytes},
      {"peak_memory", ToJson(measured.peak_memory)}};
  if (OnDevice(context)) {
    result["device_memory_bytes"] = measured.device_memory_bytes;
    result["graph_steps"] = trainer->graph_steps();
  } else {
    result["predicted_memory"] = ToJson(PredictedMemory(job, plan, compute));
  }
  if (context.host != nullptr) {
    result["offload"] = LinkUse(*context.host, plan, down, up, steps);
    result["device_memory"] = ToJson(report.device_memory);
  }
  if (options.by_operation) {
    result["operations"] = Operations(profiler, steps);
  }
  return result;
}

}  // namespace
}  // namespace weft::engine

int main(int argc, char** argv) {
  weft::engine::BenchOptions options;
  options.job.model.vocab_size = 8192;
  options.plan.threads_per_rank = 2;
  CLI::App app("Speed of the training engine on random tokens.");
  app.add_option("--family", options.job.model.family)->capture_default_str();
  app.add_option("--layers", options.job.model.layers)->capture_default_str();
  app.add_option("--width", options.job.model.width)->capture_default_str();
  app.add_option("--heads", options.job.model.heads)->capture_default_str();
  app.add_option("--kv-heads", options.job.model.kv_heads)->capture_default_str();
  app.add_option("--mlp-width", options.job.model.mlp_width)->capture_default_str();
  app.add_option("--vocabulary", options.job.model.vocab_size)->capture_default_str();
  app.add_option("--context", options.job.model.context)->capture_default_str();
  app.add_option("--batch", options.batch)->capture_default_str();
  app.add_option("--accumulation", options.plan.accumulation_steps)->capture_default_str();
  app.add_option("--precision", options.plan.precision)->capture_default_str();
  app.add_option("--device", options.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--threads", options.plan.threads_per_rank)->capture_default_str();
  app.add_option("--warmup", options.warmup_steps)->capture_default_str();
  app.add_option("--steps", options.steps)->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--deterministic", options.job.train.deterministic, "run or mesh");
  app.add_flag("--recompute", options.recompute);
  app.add_option("--lora-rank", options.lora_rank, "LoRA on all linear layers of blocks");
  app.add_option("--sparsity", options.job.train.sparsity.method,
                 "2:4 sparse MLPs in every step, by a method of train.sparsity")
      ->check(CLI::IsMember({"none", "masked_decay", "sr_ste", "s_ste", "static", "slope"}));
  app.add_option("--mask-interval", options.job.train.sparsity.mask_interval, "Steps")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--gradient-estimate", options.job.train.sparsity.gradient_estimate,
                 "minimum_variance, sequential or exact")
      ->check(CLI::IsMember({"minimum_variance", "sequential", "exact"}))
      ->capture_default_str();
  app.add_option("--quantize", options.job.model.weight_quantization.type, "none, nf4 or fp4");
  app.add_option("--offload", options.plan.offload_optimizer, "none, host or nvme");
  app.add_option("--offload-directory", options.plan.offload_directory);
  app.add_option("--offload-activations", options.plan.offload_activations, "none or host");
  app.add_option("--offload-parameters", options.plan.offload_parameters, "none, host or nvme");
  app.add_option("--link", options.plan.host_link_bytes_per_second, "Bytes per second");
  app.add_option("--device-memory", options.plan.device_memory_bytes, "Bytes");
  app.add_option("--bucket", options.plan.bucket_bytes, "Bytes of a bucket of gradients");
  app.add_flag("--delayed", options.plan.delayed_update);
  app.add_flag("--by-operation", options.by_operation);
  app.add_flag("!--no-graphs", options.graphs, "On a device: enqueue every operation of a step");
  app.add_flag("--alternate", options.alternate);
  CLI11_PARSE(app, argc, argv);
  auto result = weft::engine::RunBench(options);
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().ToString().c_str());
    return 1;
  }
  std::printf("%s\n", result->dump().c_str());
  return 0;
}
