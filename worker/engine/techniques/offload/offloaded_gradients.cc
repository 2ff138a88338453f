#include "worker/engine/techniques/offload/offloaded_gradients.h"

#include <algorithm>

#include "worker/engine/tensor/host_tier.h"

namespace weft::engine {
namespace {

// A copy runs beside the backward pass of the next bucket; another may wait behind it.
constexpr size_t kMostInFlight = 2;

}  // namespace

OffloadedGradients::OffloadedGradients(Context& context, ParameterSet* parameters,
                                       int64_t bucket_bytes)
    : context_(&context),
      parameters_(parameters),
      layout_(CutBuckets(*parameters, bucket_bytes)),
      memory_(layout_.buckets.size()),
      on_way_(layout_.buckets.size(), 0),
      sums_below_(layout_.buckets.size(), false) {
  for (int64_t i = 0; i < parameters->size(); ++i) {
    const int64_t bucket = layout_.bucket_of[static_cast<size_t>(i)];
    if (bucket < 0) continue;
    const Parameter& parameter = (*parameters)[i];
    // Without padding, which is zero in the host tier and undefined on the device. Stacked ones are
    // one piece.
    const ParameterSet::Range range = {parameter.gradient_offset,
                                       parameter.gradient_offset + parameter.shape.Elements()};
    if (!pieces_.empty() && pieces_.back().range.end == range.begin &&
        pieces_.back().bucket == bucket) {
      pieces_.back().range.end = range.end;
    } else {
      pieces_.push_back({bucket, range});
    }
  }
}

OffloadedGradients::~OffloadedGradients() {
  (void)context_->host->down().WaitForAll();
  (void)context_->host->up().WaitForAll();
}

Status OffloadedGradients::Begin(bool) {
  missing_.clear();
  for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters);
  return OkStatus();
}

void OffloadedGradients::Copy(int64_t bucket, float* memory, bool down) const {
  HostTier& host = *context_->host;
  const int64_t begin = layout_.buckets[static_cast<size_t>(bucket)].begin;
  auto* all = parameters_->gradients().As<float>();
  for (const Piece& piece : pieces_) {
    if (piece.bucket != bucket) continue;
    const auto bytes = static_cast<size_t>(piece.range.end - piece.range.begin) * sizeof(float);
    float* above = memory + (piece.range.begin - begin);
    float* below = all + piece.range.begin;
    if (down) {
      host.down().Copy(below, above, bytes);
    } else {
      host.up().Copy(above, below, bytes);
    }
  }
}

Status OffloadedGradients::Open(int64_t bucket) {
  HostTier& host = *context_->host;
  const auto b = static_cast<size_t>(bucket);
  const GradientBucket& all = layout_.buckets[b];
  if (sums_below_[b]) WEFT_RETURN_IF_ERROR(host.down().WaitFor(on_way_[b]));
  while (in_flight_.size() >= kMostInFlight) {
    WEFT_RETURN_IF_ERROR(host.down().WaitFor(in_flight_.front()));
    in_flight_.erase(in_flight_.begin());
  }
  WEFT_ASSIGN_OR_RETURN(memory_[b], Tensor::New(*context_, Component::kGradients, DType::kF32,
                                                {all.end - all.begin}));
  if (sums_below_[b]) {
    WEFT_RETURN_IF_ERROR(host.up().WaitFor(host.up().Enqueue([this, bucket, memory = memory_[b]] {
      Copy(bucket, memory.As<float>(), false);
      return OkStatus();
    })));
  }
  parameters_->PlaceGradients({all.begin, all.end}, memory_[b].As<float>());
  return OkStatus();
}

Result<TensorView> OffloadedGradients::PlaceGradient(int64_t index) {
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  if (!memory_[static_cast<size_t>(bucket)]) WEFT_RETURN_IF_ERROR(Open(bucket));
  return parameters_->gradient(index);
}

Status OffloadedGradients::OnGradientReady(int64_t index) {
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  const auto b = static_cast<size_t>(bucket);
  WEFT_CHECK(missing_[b] > 0, "a gradient was reported twice");
  if (--missing_[b] > 0 || !memory_[b]) return OkStatus();
  const GradientBucket& all = layout_.buckets[b];
  parameters_->PlaceGradients({all.begin, all.end}, nullptr);
  on_way_[b] = context_->host->down().Enqueue([this, bucket, memory = std::move(memory_[b])] {
    Copy(bucket, memory.As<float>(), true);
    return OkStatus();
  });
  memory_[b] = {};
  in_flight_.push_back(on_way_[b]);
  sums_below_[b] = true;
  return OkStatus();
}

Status OffloadedGradients::Finish() {
  for (const int64_t missing : missing_) WEFT_CHECK(missing == 0, "a gradient was not reported");
  sums_below_.assign(sums_below_.size(), false);
  in_flight_.clear();
  parameters_->PlaceGradients({0, parameters_->GradientCount()},
                              parameters_->gradients().As<float>());
  return context_->host->down().WaitForAll();
}

}  // namespace weft::engine
