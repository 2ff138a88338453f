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
                           Stream stream)
    : BucketReducer(group, parameters, bucket_bytes, stream), gradients_(parameters->gradients()) {}

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

Result<Work> DataParallel::Reduce(int64_t bucket) {
  TensorView values = Gradients(bucket);
  if (narrow_) {
    values = Narrow(bucket);
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Gradients(bucket), values}));
  }
  return group()->AllReduce(stream(), values, Reduction::kSum, "all-reduce gradients");
}

Status DataParallel::Finish() {
  WEFT_RETURN_IF_ERROR(BucketReducer::Finish());
  if (!narrow_) return OkStatus();
  for (int64_t bucket = 0; bucket < bucket_count(); ++bucket) {
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream(), {Narrow(bucket), Gradients(bucket)}));
  }
  return OkStatus();
}

}  // namespace weft::engine
