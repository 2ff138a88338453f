#include "worker/engine/nn/packed_parameter.h"

#include <utility>

#include "worker/engine/tensor/host_memory_pool.h"

namespace weft::engine {
namespace {

/// The device has sharded and quantised values as a whole when copies are made.
bool HasMasterOnHost(const ParameterSet& parameters, int64_t index) {
  return parameters.on_host(index) && !parameters.values_sharded() &&
         parameters[index].quantized_words == 0;
}

}  // namespace

PackedParameter::PackedParameter(ParameterSet* parameters, int64_t index, DType compute,
                                 int64_t count, const Shard::Range& rows)
    : copies_(std::make_shared<Copies>()) {
  copies_->parameters = parameters;
  copies_->index = index;
  copies_->count = count;
  copies_->rows = rows;
  copies_->compute = compute;
  copies_->spare = &parameters->spare_copies();
  parameters->AddCopies(index, copies_);
}

Status PackedParameter::Pack(Context& context, Repack what) {
  const ParameterSet& parameters = *copies_->parameters;
  copies_->unused = false;
  if (parameters.values_sharded() || parameters.streamed()) return OkStatus();
  if (parameters[copies_->index].quantized_words > 0) return OkStatus();
  if (copies_->made && what == Repack::kTrained && !copies_->trained()) return OkStatus();
  return copies_->Make(context);
}

void PackedParameter::Release() {
  copies_->packed = {};
  copies_->stored = {};
  copies_->made = false;
  if (!std::exchange(copies_->unused, true)) copies_->spare->Clear();
}

TensorView PackedParameter::Copies::Master() const {
  if (rows.size() > 0) return RowsOf(parameters->value(index), rows.begin, rows.size());
  return count == 1 ? parameters->padded_value(index) : parameters->stacked_value(index, count);
}

// The packed copy alone is on the device, or the matrix that products read.
Status PackedParameter::Copies::Reserve(Context& context) {
  if (unused) return OkStatus();
  const TensorView master = Master();
  WEFT_ASSIGN_OR_RETURN(packed, spare->Take(context, master.shape[0], master.shape[1], compute));
  if (!HasMasterOnHost(*parameters, index)) return OkStatus();
  kernels::PackedWeight& weight = *packed.weight;
  WEFT_RETURN_IF_ERROR(packed.held.Set(context.allocator, Component::kParameters, weight.Bytes()));
  if (!weight.reads_master()) return OkStatus();
  // A CUDA device has it in the type that its products read, as which it comes.
  const bool converts = context.stream.device.type == DeviceType::kCuda;
  const DType type = converts ? compute : master.dtype;
  if (type != master.dtype) {
    WEFT_RETURN_IF_ERROR(context.host->up().ReserveStaging(context.host->allocator()));
  }
  WEFT_ASSIGN_OR_RETURN(stored, Tensor::New(context, Component::kParameters, type, master.shape));
  return OkStatus();
}

Status PackedParameter::Copies::Make(Context& context) {
  if (unused) return OkStatus();
  const TensorView master = Master();
  made = true;
  if (packed.weight == nullptr) WEFT_RETURN_IF_ERROR(Reserve(context));
  if (HasMasterOnHost(*parameters, index)) return MakeOffloaded(context, master);
  WEFT_RETURN_IF_ERROR(packed.weight->Pack(context.stream, master));
  return packed.held.Set(context.allocator, Component::kParameters, packed.weight->Bytes());
}

Status PackedParameter::Copies::MakeOffloaded(Context& context, const TensorView& master) {
  HostMemoryPool& host = *context.host;
  kernels::PackedWeight& weight = *packed.weight;
  for (int64_t i = index; i < index + count; ++i) parameters->AwaitUpdated(host, i);
  if (!weight.reads_master()) {
    return host.up().Move(static_cast<size_t>(weight.Bytes()),
                          [&] { return weight.Pack(context.stream, master); });
  }
  host.up().Copy(stored, master);
  return weight.Pack(context.stream, stored);
}

}  // namespace weft::engine
