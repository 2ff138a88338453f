#include "coordinator/planner/cluster/nearby_runs.h"

#include <cmath>
#include <string>

namespace weft::planner {
namespace {}  // namespace

NearbyRuns::NearbyRuns(const SoftwareStack& fitted, const std::vector<MeasuredRun>& runs) {
  std::vector<ShapeSample> samples;
  for (const MeasuredRun& each : runs) {
    const SoftwareStack stack = each.program ? WithConstants(*each.program, fitted) : fitted;
    const Result<StepLedger> step = PredictStep(each.device, stack, each.run);
    if (!step.ok()) continue;
    samples.push_back({ShapeOf(each.device, each.run), std::log(each.seconds / step->Seconds())});
  }
  measured_ = WeighShapes(samples);
}

double NearbyRuns::Factor(const AcceleratorSpec& device, const ClusterRun& run) const {
  return std::exp(NearShapesOf(ShapeOf(device, run), measured_).deviation);
}

BlockShape NearbyRuns::ShapeOf(const AcceleratorSpec& device, const ClusterRun& run) {
  const int64_t tokens = run.micro_batch * run.model.sequence_length / run.context;
  return {run.model.width, run.tensor, tokens, run.model.sequence_length,
          device.name + " " + run.precision + " " + std::string(NameOf(run.recomputation)) + " " +
              std::to_string(run.model.experts)};
}

}  // namespace weft::planner
