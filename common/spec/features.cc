// Features of how ranks divide the work, where state resides, and how weights are trained.
#include "common/spec/features.h"

#include <string>
#include <string_view>

#include "common/spec/deterministic_mesh.h"
#include "common/spec/feature_text.h"
#include "common/spec/local_steps.h"
#include "common/spec/offload.h"

namespace weft::features {
namespace {

// The planner asks often: views of literals compare by length first.
using std::string_view_literals::operator""sv;

std::string ShownOptimizer(const JobSpec& job) {
  return Shown("optimizer.name", job.optimizer.name);
}

std::string ShownZero(const JobSpec& job) {
  return Shown("resources.zero_stage", job.resources.zero_stage);
}

std::string ShownLocalSteps(const JobSpec& job) {
  return TimesRounds(job.train) ? ShownRoundSeconds(job.train)
                                : Shown("train.local_steps", job.train.local_steps);
}

std::string ShownSegments(const JobSpec& job) {
  const ResourceSpec& resources = job.resources;
  return resources.recompute == "optimal"sv
             ? "resources.recompute optimal"
             : Shown("resources.recompute_segment", resources.recompute_segment);
}

bool RecomputesSegments(const ResourceSpec& resources) {
  return resources.recompute_segment > 1 || resources.recompute == "optimal"sv;
}

}  // namespace

const Feature kTensorParallel = {
    .name = "tensor parallelism",
    .setting = "resources.tensor_parallel 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.tensor_parallel > 1; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.tensor_parallel", job.resources.tensor_parallel);
        }};

const Feature kTensorParallel2d = {
    .name = "2-D tensor parallelism",
    .setting = "resources.tensor_rows 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.tensor_rows > 1; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.tensor_rows", job.resources.tensor_rows);
        }};

const Feature kSequenceParallel = {
    .name = "sequence parallelism",
    .setting = "resources.sequence_parallel",
    .asked = [](const JobSpec& job) { return job.resources.sequence_parallel; },
    .shown = [](const JobSpec&) { return std::string("resources.sequence_parallel"); }};

const Feature kContextParallel = {
    .name = "context parallelism",
    .setting = "resources.context_parallel 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.context_parallel > 1; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.context_parallel", job.resources.context_parallel);
        }};

const Feature kPipelineParallel = {
    .name = "pipeline parallelism",
    .setting = "resources.pipeline_parallel 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.pipeline_parallel > 1; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.pipeline_parallel", job.resources.pipeline_parallel);
        }};

const Feature kZeroBubble = {
    .name = "pipelines with deferred weight gradients",
    .setting = "resources.pipeline_schedule zero_bubble",
    .asked =
        [](const JobSpec& job) {
          return job.resources.pipeline_parallel > 1 &&
                 job.resources.pipeline_schedule == "zero_bubble"sv;
        },
    .shown = [](const JobSpec&) { return std::string("resources.pipeline_schedule zero_bubble"); }};

const Feature kExpertParallel = {
    .name = "expert parallelism",
    .setting = "resources.expert_parallel 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.expert_parallel > 1; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.expert_parallel", job.resources.expert_parallel);
        }};

const Feature kZero = {.name = "ZeRO",
                       .setting = "resources.zero_stage 1, 2 or 3",
                       .asked = [](const JobSpec& job) { return job.resources.zero_stage > 0; },
                       .shown = ShownZero};

const Feature kZeroGradients = {
    .name = "ZeRO: sharded gradients",
    .setting = "resources.zero_stage 2 or 3",
    .asked = [](const JobSpec& job) { return job.resources.zero_stage > 1; },
    .shown = ShownZero};

const Feature kZeroParameters = {
    .name = "ZeRO: sharded parameters",
    .setting = "resources.zero_stage 3",
    .asked = [](const JobSpec& job) { return job.resources.zero_stage > 2; },
    .shown = ShownZero};

const Feature kZeroParametersOnDevice = {
    .name = "ZeRO: sharded parameters on the device",
    .setting = "resources.zero_stage 3 without offload_parameters",
    .asked =
        [](const JobSpec& job) {
          return job.resources.zero_stage > 2 && !IsOffloaded(job.resources.offload_parameters);
        },
    .shown = [](const JobSpec& job) { return ShownZero(job) + " without offload_parameters"; }};

const Feature kBf16Reduction = {
    .name = "gradient reduction in bf16",
    .setting = "resources.gradient_reduction bf16",
    .asked = [](const JobSpec& job) { return job.resources.gradient_reduction == "bf16"sv; },
    .shown = [](const JobSpec&) { return std::string("resources.gradient_reduction bf16"); }};

const Feature kLocalSteps = {.name = "local SGD (DiLoCo)",
                             .setting = "train.local_steps 2 or more, or local_round_seconds",
                             .asked = [](const JobSpec& job) { return MakesLocalSteps(job.train); },
                             .shown = ShownLocalSteps};

const Feature kLocalStepsOffloaded = {
    .name = "local SGD with an offloaded optimizer",
    .setting =
        "train.local_steps 2 or more, or local_round_seconds, with resources.offload_optimizer",
    .asked =
        [](const JobSpec& job) {
          return MakesLocalSteps(job.train) && IsOffloaded(job.resources.offload_optimizer);
        },
    .shown =
        [](const JobSpec& job) {
          return ShownLocalSteps(job) + " with resources.offload_optimizer " +
                 job.resources.offload_optimizer;
        }};

const Feature kTimedRounds = {
    .name = "local SGD in rounds by time",
    .setting = "train.local_round_seconds",
    .asked = [](const JobSpec& job) { return TimesRounds(job.train); },
    .shown = [](const JobSpec& job) { return ShownRoundSeconds(job.train); }};

const Feature kMeshDeterminism = {
    .name = "the same bits on any mesh",
    .setting = "train.deterministic mesh",
    .asked = [](const JobSpec& job) { return IsMeshDeterministic(job.train); },
    .shown = [](const JobSpec&) { return std::string("train.deterministic mesh"); }};

const Feature kSharedTables = {
    .name = "pipeline parallelism with a table of tokens that classifies",
    .setting = "resources.pipeline_parallel 2 or more without model.untied_classifier",
    .asked =
        [](const JobSpec& job) {
          return job.resources.pipeline_parallel > 1 && !job.model.untied_classifier;
        },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.pipeline_parallel", job.resources.pipeline_parallel) +
                 " without model.untied_classifier";
        }};

const Feature kReplay = {
    .name = "replay checks",
    .setting = "train.replay_every_steps",
    .asked = [](const JobSpec& job) { return job.train.replay_every_steps > 0; },
    .shown =
        [](const JobSpec& job) {
          return Shown("train.replay_every_steps", job.train.replay_every_steps);
        }};

const Feature kBatchWarmup = {
    .name = "warm-up of the batch",
    .setting = "train.batch_warmup_steps",
    .asked = [](const JobSpec& job) { return job.train.batch_warmup_steps > 0; },
    .shown = [](const JobSpec&) { return std::string("train.batch_warmup_steps"); }};

const Feature kTryPlans = {
    .name = "trials of plans",
    .setting = "resources.try_plans 2 or more",
    .asked = [](const JobSpec& job) { return job.resources.try_plans > 1; },
    .shown =
        [](const JobSpec& job) { return Shown("resources.try_plans", job.resources.try_plans); }};

const Feature kPeerSnapshots = {
    .name = "snapshots in the memory of peers",
    .setting = "checkpoint.peer_every_steps",
    .asked = [](const JobSpec& job) { return job.checkpoint.peer_every_steps > 0; },
    .shown =
        [](const JobSpec& job) {
          return Shown("checkpoint.peer_every_steps", job.checkpoint.peer_every_steps);
        }};

const Feature kCuda = {
    .name = "GPUs",
    .setting = "resources.device cuda",
    .asked = [](const JobSpec& job) { return job.resources.device == "cuda"sv; },
    .shown = [](const JobSpec&) { return std::string("resources.device cuda"); }};

const Feature kEmulatedMemory = {
    .name = "emulated device memory",
    .setting = "resources.device_memory_bytes",
    .asked = [](const JobSpec& job) { return job.resources.device_memory_bytes > 0; },
    .shown = [](const JobSpec&) { return std::string("resources.device_memory_bytes"); }};

const Feature kEmulatedLink = {
    .name = "emulated link to the host",
    .setting = "resources.host_link_bytes_per_second",
    .asked = [](const JobSpec& job) { return job.resources.host_link_bytes_per_second > 0; },
    .shown = [](const JobSpec&) { return std::string("resources.host_link_bytes_per_second"); }};

const Feature kOffloadOptimizer = {
    .name = "offload of the optimizer",
    .setting = "resources.offload_optimizer",
    .asked = [](const JobSpec& job) { return IsOffloaded(job.resources.offload_optimizer); },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.offload_optimizer", job.resources.offload_optimizer);
        }};

const Feature kOffloadParameters = {
    .name = "offload of the parameters",
    .setting = "resources.offload_parameters",
    .asked = [](const JobSpec& job) { return IsOffloaded(job.resources.offload_parameters); },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.offload_parameters", job.resources.offload_parameters);
        }};

const Feature kParametersInFile = {
    .name = "parameters in a file",
    .setting = "resources.offload_parameters nvme",
    .asked = [](const JobSpec& job) { return job.resources.offload_parameters == "nvme"sv; },
    .shown = [](const JobSpec&) { return std::string("resources.offload_parameters nvme"); }};

const Feature kOffloadActivations = {
    .name = "offload of the activations",
    .setting = "resources.offload_activations",
    .asked = [](const JobSpec& job) { return IsOffloaded(job.resources.offload_activations); },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.offload_activations", job.resources.offload_activations);
        }};

const Feature kDelayedUpdate = {
    .name = "delayed update",
    .setting = "resources.delayed_update",
    .asked = [](const JobSpec& job) { return job.resources.delayed_update; },
    .shown = [](const JobSpec&) { return std::string("resources.delayed_update"); }};

const Feature kDeviceUpdatedUnits = {
    .name = "units updated on the device",
    .setting = "resources.device_updated_units or offload_optimizer part",
    .asked =
        [](const JobSpec& job) {
          return job.resources.offload_optimizer == "part"sv ||
                 !job.resources.device_updated_units.empty();
        },
    .shown =
        [](const JobSpec& job) {
          return std::string(job.resources.offload_optimizer == "part"sv
                                 ? "resources.offload_optimizer part"
                                 : "resources.device_updated_units");
        }};

const Feature kResidentUnits = {
    .name = "units pinned on the device for a step",
    .setting = "resources.resident_units or offload_parameters part",
    .asked =
        [](const JobSpec& job) {
          return job.resources.offload_parameters == "part"sv ||
                 !job.resources.resident_units.empty();
        },
    .shown =
        [](const JobSpec& job) {
          return std::string(job.resources.offload_parameters == "part"sv
                                 ? "resources.offload_parameters part"
                                 : "resources.resident_units");
        }};

const Feature kRecomputeSegments = {
    .name = "recomputation of several blocks at once",
    .setting = "resources.recompute optimal or recompute_segment 2 or more",
    .asked = [](const JobSpec& job) { return RecomputesSegments(job.resources); },
    .shown = ShownSegments};

const Feature kCompressedSegments = {
    .name = "recomputation of several blocks with activation compression",
    .setting = "resources.recompute optimal or recompute_segment 2 or more, with activation_bits",
    .asked =
        [](const JobSpec& job) {
          return job.resources.activation_bits > 0 && RecomputesSegments(job.resources);
        },
    .shown =
        [](const JobSpec& job) { return ShownSegments(job) + " and activation_bits together"; }};

const Feature kActivationCompression = {
    .name = "activation compression",
    .setting = "resources.activation_bits",
    .asked = [](const JobSpec& job) { return job.resources.activation_bits > 0; },
    .shown =
        [](const JobSpec& job) {
          return Shown("resources.activation_bits", job.resources.activation_bits);
        }};

const Feature kOffloadedOptimal = {
    .name = "optimal recomputation with offloaded activations",
    .setting = "resources.recompute optimal with offload_activations",
    .asked =
        [](const JobSpec& job) {
          return job.resources.recompute == "optimal"sv &&
                 IsOffloaded(job.resources.offload_activations);
        },
    .shown =
        [](const JobSpec&) {
          return std::string("resources.recompute optimal and offload_activations together");
        }};

const Feature kBf16Pure = {
    .name = "bf16 weights",
    .setting = "train.precision bf16_pure",
    .asked = [](const JobSpec& job) { return job.train.precision == "bf16_pure"sv; },
    .shown = [](const JobSpec&) { return std::string("train.precision bf16_pure"); }};

const Feature kLossScaling = {
    .name = "gradients that have the scale of the loss",
    .setting = "train.precision fp16",
    .asked = [](const JobSpec& job) { return job.train.precision == "fp16"sv; },
    .shown = [](const JobSpec&) { return std::string("train.precision fp16"); }};

const Feature kSpikeGuard = {
    .name = "guard against spikes of the loss",
    .setting = "train.guard.spike_deviations",
    .asked = [](const JobSpec& job) { return job.train.guard.spike_deviations > 0; },
    .shown = [](const JobSpec&) { return std::string("train.guard.spike_deviations"); }};

const Feature kGradientClipValue = {
    .name = "clipping of gradient elements",
    .setting = "train.gradient_clip_value",
    .asked = [](const JobSpec& job) { return job.train.gradient_clip_value > 0; },
    .shown = [](const JobSpec&) { return std::string("train.gradient_clip_value"); }};

const Feature kWholeTensorOptimizer = {
    .name = "optimizers of whole tensors",
    .setting = "optimizer.name lars, lamb, adafactor or muon",
    .asked = [](const JobSpec& job) { return !UpdatesElementwise(job.optimizer); },
    .shown = ShownOptimizer};

const Feature kOtherThanAdamW = {
    .name = "optimizers other than AdamW",
    .setting = "optimizer.name other than adamw",
    .asked = [](const JobSpec& job) { return job.optimizer.name != "adamw"sv; },
    .shown = ShownOptimizer};

const Feature kNoAdamMoments = {.name = "optimizers without the second moments of Adam",
                                .setting = "optimizer.name other than adam and adamw",
                                .asked =
                                    [](const JobSpec& job) {
                                      const std::string& name = job.optimizer.name;
                                      return name != "adamw"sv && name != "adam"sv;
                                    },
                                .shown = ShownOptimizer};

const Feature kNoParameterMoments = {
    .name = "optimizers whose state is no moment of each parameter",
    .setting = "optimizer.name adafactor or schedule_free_adamw",
    .asked =
        [](const JobSpec& job) {
          const std::string& name = job.optimizer.name;
          return name == "adafactor"sv || name == "schedule_free_adamw"sv;
        },
    .shown = ShownOptimizer};

const Feature kNoMupRates = {.name = "optimizers without rules of muP",
                             .setting = "optimizer.name other than adam, adamw and lion",
                             .asked =
                                 [](const JobSpec& job) {
                                   const std::string& name = job.optimizer.name;
                                   return name != "adamw"sv && name != "adam"sv && name != "lion"sv;
                                 },
                             .shown = ShownOptimizer};

const Feature kLars = {.name = "LARS",
                       .setting = "optimizer.name lars",
                       .asked = [](const JobSpec& job) { return job.optimizer.name == "lars"sv; },
                       .shown = ShownOptimizer};

const Feature kScheduleFree = {
    .name = "schedule-free AdamW",
    .setting = "optimizer.name schedule_free_adamw",
    .asked = [](const JobSpec& job) { return job.optimizer.name == "schedule_free_adamw"sv; },
    .shown = ShownOptimizer};

const Feature kOtherThanConstant = {
    .name = "schedules other than constant",
    .setting = "schedule.kind other than constant",
    .asked = [](const JobSpec& job) { return job.schedule.kind != "constant"sv; },
    .shown = [](const JobSpec& job) { return Shown("schedule.kind", job.schedule.kind); }};

}  // namespace weft::features
