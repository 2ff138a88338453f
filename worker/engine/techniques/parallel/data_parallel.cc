#include "worker/engine/techniques/parallel/data_parallel.h"

#include "kernels/elementwise/elementwise.h"
#include "worker/engine/comm/sum_scalars.h"

namespace weft::engine {
namespace {

TensorView Slice(const TensorView& buffer, const GradientBucket& bucket) {
  char* data =
      static_cast<char*>(buffer.data) + static_cast<size_t>(bucket.begin) * DTypeSize(buffer.dtype);
  return {data, buffer.dtype, {bucket.end - bucket.begin}, buffer.device};
}

}  // namespace

DataParallel::DataParallel(Collective* group, const ParameterSet* parameters, int64_t bucket_bytes,
                           Stream stream, Collective* same_experts)
    : BucketReducer(group, parameters, bucket_bytes, stream),
      same_experts_(same_experts),
      gradients_(parameters->gradients()) {}

DataParallel::~DataParallel() {
  WaitForAll();
}

Status DataParallel::ReduceInBFloat16(Context& context) {
  WEFT_ASSIGN_OR_RETURN(
      narrow_, Tensor::New(context, Component::kCommunication, DType::kBF16, gradients_.shape));
  return OkStatus();
}

TensorView DataParallel::Gradients(int64_t bucket) const {
  return Slice(gradients_, this->bucket(bucket));
}

TensorView DataParallel::Narrow(int64_t bucket) const {
  return Slice(narrow_, this->bucket(bucket));
}

int64_t DataParallel::held_bytes() const {
  const bool another = same_experts_ != nullptr && same_experts_ != group();
  return BucketReducer::held_bytes() + (another ? same_experts_->held_bytes() : 0);
}

Result<Work> DataParallel::Reduce(int64_t bucket) {
  Collective* const replicas = this->bucket(bucket).of_experts ? same_experts_ : group();
  if (replicas == nullptr) return Work();
  TensorView values = Gradients(bucket);
  if (narrow_) {
    values = Narrow(bucket);
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Gradients(bucket), values}));
  }
  return replicas->AllReduce(stream(), values, Reduction::kSum, "all-reduce gradients");
}

Status DataParallel::Finish() {
  WEFT_RETURN_IF_ERROR(BucketReducer::Finish());
  if (!narrow_) return OkStatus();
  for (int64_t bucket = 0; bucket < bucket_count(); ++bucket) {
    if (this->bucket(bucket).of_experts && same_experts_ == nullptr) continue;
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Narrow(bucket), Gradients(bucket)}));
  }
  return OkStatus();
}

}  // namespace weft::engine
