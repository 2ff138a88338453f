#include "worker/engine/techniques/weight_on_device.h"

#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {

// No update is under way: techniques that need whole updates see none (NeedsWholeUpdates).
Result<WeightOnDevice> WeightOnDevice::Of(Context& context, const LinearLayer& layer, DType type) {
  const ParameterSet& parameters = *layer.parameters;
  WeightOnDevice weight;
  weight.view_ = parameters.stacked_value(layer.weight, layer.outputs);
  if (!parameters.on_host(layer.weight)) return weight;
  TransferQueue& up = context.host->up();
  if (context.stream.device.type == DeviceType::kCpu) {
    // It crosses the emulated link, and is read where it is.
    WEFT_RETURN_IF_ERROR(up.Move(weight.view_.Bytes(), [] { return OkStatus(); }));
    return weight;
  }
  if (type != weight.view_.dtype) {
    WEFT_RETURN_IF_ERROR(up.ReserveStaging(context.host->allocator()));
  }
  WEFT_ASSIGN_OR_RETURN(weight.copy_,
                        Tensor::New(context, Component::kWorkspace, type, weight.view_.shape));
  // The memory may have been another copy's.
  WEFT_RETURN_IF_ERROR(up.Follow(context.stream));
  up.Copy(weight.copy_, weight.view_);
  weight.view_ = weight.copy_;
  WEFT_RETURN_IF_ERROR(up.Precede(context.stream));
  return weight;
}

}  // namespace weft::engine
