#include "coordinator/planner/host_transfer_time.h"

#include <algorithm>
#include <vector>

#include "common/model/gradient_bytes.h"
#include "common/model/transfer_waits.h"
#include "common/number.h"

namespace weft::planner {
namespace {

double HostLink(const StepInputs& inputs, const StepRates& rates) {
  return rates.HostLinkBytesPerSecond(inputs.place(), inputs.host_link_bytes_per_second);
}

/// How long a pass waits for `weights` and what else it exchanges. The first weights have nothing
/// to overlap with. A schedule is followed step by step. Where some weights are resident, the
/// others are assumed to arrive evenly over the blocks, even if a few blocks use them later.
double OnePassSeconds(const StepInputs& inputs, const PassCost& pass, double recompute_seconds,
                      const StreamedBytes& weights, const StepRates& rates) {
  const BlockSeconds block =
      SecondsOfBlock(pass, inputs.shape, rates.MemoryBytesPerSecond(inputs.place()));
  const double link = HostLink(inputs, rates);
  if (!inputs.schedule.empty()) {
    std::vector<StepLoad> loads = LoadsOf(inputs.schedule, block);
    for (size_t i = 0; i < loads.size(); ++i) {
      loads[i].bytes = SavedByStep(inputs.schedule[i], inputs.block);
    }
    return TransferWaits(inputs.schedule, loads, 1 / link);
  }
  const double file = rates.FileBytesPerSecond(inputs.place());
  const double blocks = D(inputs.shape.spec.layers);
  const double neighbours = std::max(blocks - 1, 1.0);
  const double forward = block.forward;
  const double passes = D(inputs.accumulation_steps);
  const double backward = block.backward + recompute_seconds / passes / blocks;
  const double down = D(inputs.activation_bytes) / link / neighbours;
  const double up = D(weights.forward - weights.first) / link / (blocks + 1);
  const double back = D(weights.backward + inputs.activation_bytes) / link / neighbours;
  const double read = D(inputs.file_pass.forward - inputs.file_pass.first) / file / (blocks + 1);
  const double moved = D(inputs.file_pass.backward) / file / neighbours;
  return D(weights.first) / link + D(inputs.file_pass.first) / file +
         neighbours * std::max(0.0, std::max({down, up, read}) - forward) +
         neighbours * std::max(0.0, std::max(back, moved) - backward);
}

}  // namespace

double StateTransferSeconds(const StepInputs& inputs, const PassCost& pass,
                            double optimizer_seconds, const StepRates& rates) {
  const double link = HostLink(inputs, rates);
  const double passes = D(inputs.accumulation_steps);
  const GradientLinkBytes gradients =
      GradientsOverLink(inputs.shape, inputs.zero_stage, inputs.shard_ranks);
  const double trained = D(inputs.shape.trained - inputs.device_updated.trained);
  const double going_share = trained / std::max(1.0, D(inputs.shape.trained));
  // The backward pass of a block takes twice as long as its forward pass.
  const double of_block = pass.block_forward_gemm_seconds;
  const double of_first = 2 * of_block * D(inputs.device_updated.first_blocks);
  const double of_last = of_block * D(inputs.device_updated.last_blocks);
  const auto exposed = [&](int64_t bytes) {
    const double going = going_share * D(bytes) / link;
    const double buckets = std::max(1.0, 4 * trained / D(inputs.bucket_bytes));
    return std::max(
        {0.0, going - (pass.backward_gemm_seconds - 2 * of_last), going / buckets - of_first});
  };
  const double down = (passes - 1) * exposed(gradients.earlier_down) + exposed(gradients.down);
  const double sums = (passes - 1) * going_share * D(gradients.earlier_up) / link;
  const double forward = pass.gemm_seconds - pass.backward_gemm_seconds - of_last;
  const double overlapped = forward + (inputs.shard_ranks > 1 ? 0 : optimizer_seconds);
  const double weights = D(inputs.uploaded_weight_bytes) / link;
  const double up = inputs.uploads_at_once ? weights : std::max(0.0, weights - overlapped);
  const double after_outer = inputs.local_steps > 1 ? weights / D(inputs.local_steps) : 0;
  return down + sums + up + after_outer;
}

double PassTransferSeconds(const StepInputs& inputs, const PassCost& pass, double recompute_seconds,
                           const StepRates& rates) {
  // The first pass of a step fetches the resident weights, too.
  StreamedBytes first = inputs.streamed;
  first.forward += inputs.resident_weight_bytes;
  const double later = D(inputs.accumulation_steps - 1);
  const double in_later =
      later > 0 ? OnePassSeconds(inputs, pass, recompute_seconds, inputs.streamed, rates) : 0;
  return OnePassSeconds(inputs, pass, recompute_seconds, first, rates) + later * in_later;
}

double UpdateSecondsWithFiles(const StepInputs& inputs, const PassCost& pass, double update_seconds,
                              const StepRates& rates) {
  const RankPlace place = inputs.place();
  const bool overlaps = rates.overlaps_files_with_forward() && inputs.offloads_optimizer &&
                        inputs.shard_ranks <= 1 && !inputs.uploads_at_once;
  // The next forward pass of ranks that do not gather first, or bring all weights at once, runs
  // meanwhile.
  const double overlapped =
      overlaps ? D(inputs.shape.spec.layers) *
                     SecondsOfBlock(pass, inputs.shape, rates.MemoryBytesPerSecond(place)).forward
               : 0;
  return std::max(update_seconds,
                  D(inputs.file_bytes) / rates.FileBytesPerSecond(place) - overlapped);
}

}  // namespace weft::planner
