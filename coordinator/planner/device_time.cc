#include <algorithm>

#include "common/number.h"
#include "coordinator/planner/time_model.h"

namespace weft::planner {
namespace {

// Kernels of a block that the processor starts, forward and backward, and of a pass beside them.
constexpr double kForwardKernels = 10;
constexpr double kBackwardKernels = 18;
constexpr double kPassKernels = 40;
// In a block of experts: what routes, deals out and adds up, and of each expert but the first what
// a dense block has once.
constexpr double kForwardRoutingKernels = 8;
constexpr double kBackwardRoutingKernels = 6;
constexpr double kForwardExpertKernels = 3;
constexpr double kBackwardExpertKernels = 5;
// A device does nothing until the processor, which has waited to be told how many rows the experts
// have, has started something.
constexpr double kSecondsPerWait = 20e-6;
// Casts of the four products of a block.
constexpr double kForwardCasts = 4;
constexpr double kBackwardCasts = 8;
constexpr double kExpertShareOfCasts = 0.5;  // two of the four products, of each expert

/// Beside those of a dense model, in a pass over blocks.
double ExpertKernels(const ModelShape& shape, double routing, double of_expert) {
  if (shape.spec.experts == 0) return 0;
  return routing + (D(shape.spec.experts / shape.expert_ranks) - 1) * of_expert;
}

/// Of what ranks exchange in so many seconds, of which each has most `bytes` taken down to its
/// host, or brought up, where that has the state: both go on beside each other.
double ThroughDevice(const StepInputs& inputs, const DeviceModel& device, double bytes,
                     double exchanging) {
  if (!inputs.offloads_optimizer || exchanging == 0) return exchanging;
  return std::max(exchanging, bytes / device.HostLinkBytesPerSecond());
}

}  // namespace

TimeBreakdown PredictDeviceStep(const StepInputs& inputs, const PassCost& pass,
                                const DeviceModel& device, double network_bytes_per_second) {
  const SoftwareStack& stack = device.stack();
  const PrecisionRecipe& precision = *inputs.precision;
  const double passes = D(inputs.accumulation_steps);
  const double bandwidth = device.MemoryBytesPerSecond();

  TimeBreakdown time;
  time.gemm_seconds = passes * pass.gemm_seconds;
  time.memory_bound_seconds = (passes * (pass.memory_bytes + 2 * D(inputs.coded_bytes)) +
                               (2 * passes - 1) * pass.weight_gradient_bytes) /
                              bandwidth;
  const double recomputed = passes * D(inputs.recomputed_blocks);
  time.recompute_seconds =
      recomputed * (pass.block_forward_gemm_seconds + pass.block_forward_memory_bytes / bandwidth) +
      passes * D(inputs.recomputed_attentions) * pass.attention_forward_gemm_seconds;

  // The processor runs ahead, so that only what it lacks to the device's own time is waited for.
  const double casts_of_products =
      pass.fp8_share * (1 + ExpertKernels(inputs.shape, 0, kExpertShareOfCasts));
  const double casts = casts_of_products * (kForwardCasts + kBackwardCasts);
  const double forward_kernels =
      kForwardKernels + ExpertKernels(inputs.shape, kForwardRoutingKernels, kForwardExpertKernels);
  const double backward_kernels =
      kBackwardKernels +
      ExpertKernels(inputs.shape, kBackwardRoutingKernels, kBackwardExpertKernels);
  const double forwards = passes * D(inputs.shape.spec.layers) + recomputed;
  const double kernels =
      passes * (D(inputs.shape.spec.layers) * (forward_kernels + backward_kernels + casts) +
                kPassKernels) +
      recomputed * (forward_kernels + casts_of_products * kForwardCasts);
  const double computing = time.gemm_seconds + time.memory_bound_seconds + time.recompute_seconds;
  time.overhead_seconds =
      std::max(0.0, kernels * stack.host_seconds - computing) + stack.step_seconds;
  if (inputs.shape.spec.experts > 0) time.overhead_seconds += forwards * kSecondsPerWait;

  // AdamW reads gradient and moments, writes the moments and updates the parameter; the norm reads
  // the gradients; then copies are made where products read another type, or codes, for which
  // weights are read twice.
  const double stored = D(ElementBytes(precision.matrices));
  const double matrices = D(inputs.shape.packed);
  const bool copied = precision.matrices != precision.products;
  const double copies = copied ? stored + D(ElementBytes(precision.products)) : 0;
  const double codes = pass.fp8_share * stored;
  time.optimizer_seconds =
      (inputs.Updated() * (5 * 4 + 2 * stored + 4) + matrices * (copies + codes) +
       4 * pass.step_f32_numbers + stored * pass.step_parameter_numbers) /
          bandwidth +
      pass.step_product_seconds;

  const auto all_reduce = [&](int64_t ranks, int64_t nodes, double bytes) {
    return device.AllReduceSeconds(ranks, nodes, network_bytes_per_second, bytes);
  };
  // Those that share matrices are neighbours, and of others so many are on a machine.
  const int64_t replicas_on_worker =
      std::max<int64_t>(1, inputs.ranks_on_worker / inputs.shape.tensor);
  const auto nodes_of = [&](int64_t ranks) {
    return (ranks + replicas_on_worker - 1) / replicas_on_worker;
  };
  // Ranks that have the same parts stand as far apart as they can.
  const int64_t group_nodes = std::min(inputs.Groups(), nodes_of(inputs.ranks));
  // So do those that have the same experts.
  const int64_t expert_replicas = inputs.ExpertReplicas();
  const int64_t expert_nodes =
      std::min(expert_replicas, nodes_of(inputs.sharers > 1 ? inputs.sharers : inputs.ranks));
  if (inputs.SharesParameters()) {
    const ShardedParameters& shared = inputs.sharded;
    // Gathering or reducing a payload takes half of what an all-reduce of it does.
    const auto seconds = [&](int64_t ShardedTraffic::*payload, int64_t ShardedTraffic::*collectives,
                             double sent = 1) {
      const auto among = [&](int64_t ranks, int64_t nodes, const ShardedTraffic& traffic) {
        const double each = sent * D(traffic.*payload) / std::max(1.0, D(traffic.*collectives));
        return D(traffic.*collectives) / 2 * all_reduce(ranks, nodes, each);
      };
      return among(inputs.sharers, nodes_of(inputs.sharers), shared) +
             among(expert_replicas, expert_nodes, shared.experts);
    };
    const double forward =
        seconds(&ShardedTraffic::forward_payload, &ShardedTraffic::forward_gathers);
    const double backward =
        seconds(&ShardedTraffic::backward_payload, &ShardedTraffic::backward_gathers) +
        seconds(&ShardedTraffic::reduced_payload, &ShardedTraffic::reductions,
                inputs.sent_gradients);
    const double units = D(DistinctBlocks(inputs.shape.spec) + 2);
    const auto exposed = [&](double communicating, double multiplying) {
      return std::max(communicating - std::min(stack.overlap * communicating, multiplying),
                      communicating / units);
    };
    const double between = ThroughDevice(
        inputs, device, D(shared.gradients),
        all_reduce(inputs.Groups(), group_nodes, inputs.sent_gradients * D(shared.gradients)));
    // Sums in the host tier are added between groups once all are there.
    const double beside = inputs.offloads_optimizer ? 0 : between;
    time.exposed_communication_seconds =
        passes * exposed(forward, pass.gemm_seconds - pass.backward_gemm_seconds) +
        (passes - 1) * exposed(backward, pass.backward_gemm_seconds) +
        exposed(backward + beside, pass.backward_gemm_seconds) + (between - beside);
  } else if (inputs.local_steps > 1) {
    // Of each step, among ranks that share sequences; the last bucket has nothing to hide behind.
    const int64_t sharers = inputs.context.ranks;
    const double gradients = stack.gradient_bytes * D(inputs.shape.trained);
    const double buckets = std::max(1.0, gradients / D(inputs.bucket_bytes));
    const double reducing =
        all_reduce(sharers, nodes_of(sharers), inputs.sent_gradients * gradients);
    const double hidden = std::min(stack.overlap * reducing, pass.backward_gemm_seconds);
    // Of an outer step, with nothing beside it: these ranks sum a part each, and gather all.
    const int64_t nodes = std::min(inputs.Workers(), nodes_of(inputs.ranks));
    const double bytes = 4 * D(inputs.shape.trained);
    time.exposed_communication_seconds = std::max(reducing - hidden, reducing / buckets) +
                                         (all_reduce(inputs.Workers(), nodes, bytes / D(sharers)) +
                                          all_reduce(sharers, nodes_of(sharers), bytes) / 2) /
                                             D(inputs.local_steps);
    time.optimizer_seconds += OuterStepBytes(inputs) / bandwidth / D(inputs.local_steps);
  } else if (inputs.ranks > 1) {
    // Those of experts that ranks share are reduced among fewer ranks.
    const bool shares_experts = inputs.shape.expert_ranks > 1;
    const double of_experts =
        shares_experts ? stack.gradient_bytes * D(inputs.shape.stored_trained_experts) : 0;
    const double bytes = stack.gradient_bytes * D(inputs.shape.trained) - of_experts;
    const int64_t sharers = inputs.sharers > 1 ? inputs.sharers : inputs.ranks;
    const auto seconds = [&](double sent) {
      return all_reduce(sharers, nodes_of(sharers), sent * bytes) +
             (shares_experts ? all_reduce(expert_replicas, expert_nodes, sent * of_experts) : 0);
    };
    // Where gradients are shared out too, every pass reduces, else the last one alone; its last
    // bucket has nothing to hide behind.
    const double buckets = std::max(1.0, bytes / D(inputs.bucket_bytes));
    // Half of it are parameters that come back after a shared update, with nothing beside them.
    const bool shares = inputs.sharers > 1;
    const double values = stored * D(inputs.shape.trained);
    const double others = std::max(1.0, D(sharers - 1)) / D(sharers);
    const double gathering =
        shares ? ThroughDevice(inputs, device, values * others, seconds(1) / 2) : 0;
    const double parts = (bytes + of_experts * D(inputs.shape.expert_ranks)) / D(sharers);
    // Sums in the host tier are added between groups once all are there.
    const double between =
        ThroughDevice(inputs, device, parts,
                      all_reduce(inputs.Groups(), group_nodes, inputs.sent_gradients * parts));
    const double beside = inputs.offloads_optimizer ? 0 : between;
    const double reducing = seconds(inputs.sent_gradients) / (shares ? 2 : 1);
    const auto exposed = [&](double communicating) {
      return std::max(
          communicating - std::min(stack.overlap * communicating, pass.backward_gemm_seconds),
          communicating / buckets);
    };
    const double earlier = inputs.zero_stage > 1 ? passes - 1 : 0;
    time.exposed_communication_seconds =
        earlier * exposed(reducing) + exposed(reducing + beside) + (between - beside) + gathering;
  }
  return time;
}

}  // namespace weft::planner
