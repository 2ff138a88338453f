#include "worker/engine/techniques/offload/planned_offload.h"

namespace weft::engine {

std::optional<HostMemoryPool::Options> HostMemoryPoolOf(const Plan& plan, int64_t limit_bytes) {
  if (plan.offload_optimizer == "none" && plan.offload_activations == "none") return std::nullopt;
  return HostMemoryPool::Options{.limit_bytes = limit_bytes,
                                 .link_bytes_per_second = plan.host_link_bytes_per_second,
                                 .directory = plan.offload_directory,
                                 .optimizer_in_file = plan.offload_optimizer == "nvme"};
}

PlannedOffload PlannedOffload::Of(const Plan& plan, Context& context, ParameterSet* parameters,
                                  BucketReducer* ranks) {
  PlannedOffload offload;
  if (plan.offload_optimizer != "none") {
    offload.gradients =
        std::make_unique<OffloadedGradients>(context, parameters, plan.bucket_bytes, ranks);
  }
  // Sharded ones are gathered by their shard group.
  if (plan.offload_parameters != "none" && !parameters->values_sharded()) {
    offload.parameters =
        std::make_unique<StreamedParameters>(context, parameters, plan.resident_units);
  }
  return offload;
}

}  // namespace weft::engine
