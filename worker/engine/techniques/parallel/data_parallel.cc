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
    : BucketReducer(group, parameters, bucket_bytes, stream, same_experts),
      parameters_(parameters) {}

DataParallel::~DataParallel() {
  WaitForAll();
}

Status DataParallel::ReduceInBFloat16(Context& context) {
  WEFT_ASSIGN_OR_RETURN(narrow_, Tensor::New(context, Component::kCommunication, DType::kBF16,
                                             {parameters_->GradientCount()}));
  return OkStatus();
}

TensorView DataParallel::Sums(int64_t bucket) const {
  return Slice(parameters_->gradients(), this->bucket(bucket));
}

TensorView DataParallel::Narrow(int64_t bucket) const {
  return Slice(narrow_, this->bucket(bucket));
}

Work DataParallel::Sum(int64_t bucket, const TensorView& values) {
  Collective* const replicas = this->bucket(bucket).of_experts ? same_experts() : group();
  if (replicas == nullptr) return Work();
  return replicas->AllReduce(stream(), values, Reduction::kSum, "all-reduce gradients");
}

Result<Work> DataParallel::Reduce(int64_t bucket) {
  if (!narrow_) return Sum(bucket, Sums(bucket));
  WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Sums(bucket), Narrow(bucket)}));
  return Sum(bucket, Narrow(bucket));
}

Result<Work> DataParallel::ReduceAt(int64_t bucket, const Tensor& memory) {
  return Sum(bucket, memory);
}

Status DataParallel::Finish() {
  WEFT_RETURN_IF_ERROR(BucketReducer::Finish());
  if (!narrow_) return OkStatus();
  for (int64_t bucket = 0; bucket < bucket_count(); ++bucket) {
    if (this->bucket(bucket).of_experts && same_experts() == nullptr) continue;
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Narrow(bucket), Sums(bucket)}));
  }
  return OkStatus();
}

}  // namespace weft::engine
