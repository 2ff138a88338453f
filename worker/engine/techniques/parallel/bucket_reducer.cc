#include "worker/engine/techniques/parallel/bucket_reducer.h"

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/comm/sum_scalars.h"

namespace weft::engine {

BucketReducer::BucketReducer(Collective* group, const ParameterSet* parameters,
                             int64_t bucket_bytes, Stream stream, Collective* same_experts)
    : group_(group),
      same_experts_(same_experts),
      stream_(stream),
      layout_(CutBuckets(*parameters, bucket_bytes)),
      works_(layout_.buckets.size()),
      copies_(layout_.buckets.size()) {}

int64_t BucketReducer::held_bytes() const {
  const bool another = same_experts_ != nullptr && same_experts_ != group_;
  return group_->held_bytes() + (another ? same_experts_->held_bytes() : 0);
}

void BucketReducer::WaitForAll() {
  for (const Work& work : works_) (void)work.Wait(stream_);
}

std::vector<CollectiveRecorder*> BucketReducer::recorders() const {
  CollectiveRecorder* const recorder = CollectiveRecorder::Of(*group_);
  if (recorder == nullptr) return {};
  return {recorder};
}

Status BucketReducer::Begin(bool last_micro_batch) {
  reduces_ = last_micro_batch || places_gradients();
  if (reduces_) {
    missing_.clear();
    for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters);
  }
  return status_;
}

Status BucketReducer::OnGradientReady(int64_t index) {
  WEFT_CHECK(reduces_, "gradients are complete in the last micro-batch only");
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  int64_t& missing = missing_[static_cast<size_t>(bucket)];
  WEFT_CHECK(missing > 0, "a gradient was reported twice");
  if (--missing > 0) return OkStatus();
  WEFT_ASSIGN_OR_RETURN(works_[static_cast<size_t>(bucket)], Reduce(bucket));
  return OkStatus();
}

Status BucketReducer::Finish() {
  for (int64_t missing : missing_) WEFT_CHECK(missing == 0, "a gradient was not reported");
  for (int64_t bucket = 0; bucket < bucket_count(); ++bucket) (void)WaitFor(bucket);
  return status_;
}

Status BucketReducer::WaitFor(int64_t bucket) {
  const Status done = works_[static_cast<size_t>(bucket)].Wait(stream_);
  if (status_.ok()) status_ = done;
  if (!status_.ok() || !CopyOf(bucket)) return status_;
  return FromWire(CopyOf(bucket), Kept(bucket).begin - this->bucket(bucket).begin, Reduced(bucket));
}

void BucketReducer::ReduceInBFloat16(Context& context) {
  context_ = &context;
}

Result<TensorView> BucketReducer::ToWire(const TensorView& values, Tensor& copy) {
  if (context_ == nullptr) return values;
  WEFT_ASSIGN_OR_RETURN(copy, Tensor::New(*context_, Component::kCommunication, DType::kBF16,
                                          {values.shape.Elements()}));
  WEFT_RETURN_IF_ERROR(kernels::Cast(stream_, {values, copy}));
  return copy.view();
}

Status BucketReducer::FromWire(Tensor& copy, int64_t first, const TensorView& values) {
  if (!copy) return OkStatus();
  WEFT_RETURN_IF_ERROR(
      kernels::Cast(stream_, {copy.Elements(first, values.shape.Elements()), values}));
  copy = {};
  return OkStatus();
}

Status BucketReducer::SumScalars(std::span<double> values) {
  WEFT_RETURN_IF_ERROR(status_);
  return engine::SumScalars(*group_, values);
}

Status BucketReducer::Maximum(const TensorView& values) {
  WEFT_RETURN_IF_ERROR(status_);
  return group_->AllReduce(stream_, values, Reduction::kMaxMagnitude, "largest magnitudes")
      .Wait(stream_);
}

}  // namespace weft::engine
