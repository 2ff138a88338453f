#include "worker/engine/nn/activation_offload.h"

#include <utility>

namespace weft::engine {

SavedTensor ActivationOffload::KeepExactly(Tensor tensor) {
  // Rows with gaps between them are looks at what is saved as a whole.
  if (!tensor || !tensor.view().Contiguous()) return Tape::AsItIs(std::move(tensor));
  std::shared_ptr<Place> place;
  for (const std::weak_ptr<Place>& saved : saved_) {
    const std::shared_ptr<Place> other = saved.lock();
    if (other == nullptr || other->device.view().data != tensor.view().data ||
        other->device.Bytes() != tensor.Bytes()) {
      continue;
    }
    place = other;
    break;
  }
  const DType dtype = tensor.dtype();
  const Shape shape = tensor.shape();
  if (place == nullptr) {
    place = std::make_shared<Place>(Place{std::move(tensor), {}});
    saved_.push_back(place);
  }
  return Tape::Save({}, [place, dtype, shape](Context&, const Tensor&) -> Result<Tensor> {
    WEFT_CHECK(place->device, "a saved tensor is read before it is back");
    return place->device.Part(0, dtype, shape);
  });
}

Status ActivationOffload::EndForward(Context& context, size_t step) {
  if (plan_[step].offloaded()) {
    for (const std::weak_ptr<Place>& saved : saved_) {
      if (std::shared_ptr<Place> place = saved.lock()) {
        steps_[step].places.push_back(std::move(place));
      }
    }
    saved_.clear();
    WEFT_RETURN_IF_ERROR(Leave(context, steps_[step]));
  }
  for (size_t i = 0; i < step; ++i) {
    if (plan_[i].sent != static_cast<int64_t>(step)) continue;
    ProfileScope scope(context.profiler, "wait for activations");
    WEFT_RETURN_IF_ERROR(host_->down().Await(context.stream, steps_[i].job));
    for (const std::shared_ptr<Place>& place : steps_[i].places) place->device = {};
  }
  return OkStatus();
}

Status ActivationOffload::StartBackward(Context& context, size_t step) {
  if (plan_[step].offloaded()) {
    ProfileScope scope(context.profiler, "wait for activations");
    WEFT_RETURN_IF_ERROR(host_->up().Await(context.stream, steps_[step].job));
    for (const std::shared_ptr<Place>& place : steps_[step].places) place->host = {};
    steps_[step].places.clear();
  }
  for (size_t i = step; i-- > 0;) {
    if (plan_[i].fetched == static_cast<int64_t>(step)) {
      WEFT_RETURN_IF_ERROR(Return(context, steps_[i]));
    }
  }
  return OkStatus();
}

// Memory is taken and given back by whoever computes, not by the lanes, so that what is held at a
// time does not depend on the link.
Status ActivationOffload::Leave(Context& context, Step& step) {
  Context below = InHostMemoryPool(context);
  for (const std::shared_ptr<Place>& place : step.places) {
    const Tensor& from = place->device;
    WEFT_ASSIGN_OR_RETURN(place->host,
                          Tensor::New(below, Component::kActivations, from.dtype(), from.shape()));
  }
  step.job = host_->down().Enqueue(
      [host = host_, places = step.places] {
        for (const std::shared_ptr<Place>& place : places) {
          host->down().Copy(place->host.view().data, place->device.view().data,
                            place->host.Bytes());
        }
        return OkStatus();
      },
      context.stream);
  return OkStatus();
}

Status ActivationOffload::Return(Context& context, Step& step) {
  for (const std::shared_ptr<Place>& place : step.places) {
    const Tensor& from = place->host;
    WEFT_ASSIGN_OR_RETURN(
        place->device, Tensor::New(context, Component::kActivations, from.dtype(), from.shape()));
  }
  step.job = host_->up().Enqueue(
      [host = host_, places = step.places] {
        for (const std::shared_ptr<Place>& place : places) {
          host->up().Copy(place->device.view().data, place->host.view().data,
                          place->device.Bytes());
        }
        return OkStatus();
      },
      context.stream);
  return OkStatus();
}

}  // namespace weft::engine
