#include "worker/engine/techniques/parallel/data_parallel.h"

#include <cstring>
#include <string>
#include <string_view>

#include "kernels/elementwise/elementwise.h"

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
    : group_(group),
      stream_(stream),
      gradients_(parameters->gradients()),
      layout_(CutBuckets(*parameters, bucket_bytes)),
      works_(layout_.buckets.size()) {}

DataParallel::~DataParallel() {
  for (const Work& work : works_) (void)work.Wait(stream_);
}

Status DataParallel::ReduceInBFloat16(Context& context) {
  WEFT_ASSIGN_OR_RETURN(
      narrow_, Tensor::New(context, Component::kCommunication, DType::kBF16, gradients_.shape));
  return OkStatus();
}

TensorView DataParallel::Gradients(int64_t bucket) const {
  return Slice(gradients_, layout_.buckets[static_cast<size_t>(bucket)]);
}

TensorView DataParallel::Narrow(int64_t bucket) const {
  return Slice(narrow_, layout_.buckets[static_cast<size_t>(bucket)]);
}

Status DataParallel::Begin(bool last_micro_batch) {
  last_micro_batch_ = last_micro_batch;
  if (last_micro_batch) {
    missing_.clear();
    for (const GradientBucket& bucket : layout_.buckets) missing_.push_back(bucket.parameters);
  }
  return status_;
}

Status DataParallel::OnGradientReady(int64_t index) {
  WEFT_CHECK(last_micro_batch_, "gradients are complete in the last micro-batch only");
  const int64_t bucket = layout_.bucket_of[static_cast<size_t>(index)];
  int64_t& missing = missing_[static_cast<size_t>(bucket)];
  WEFT_CHECK(missing > 0, "a gradient was reported twice");
  if (--missing > 0) return OkStatus();
  TensorView values = Gradients(bucket);
  if (narrow_) {
    values = Narrow(bucket);
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream_, {Gradients(bucket), values}));
  }
  works_[static_cast<size_t>(bucket)] =
      group_->AllReduce(stream_, values, Reduction::kSum, "all-reduce gradients");
  return OkStatus();
}

Status DataParallel::Finish() {
  for (int64_t missing : missing_) WEFT_CHECK(missing == 0, "a gradient was not reported");
  for (const Work& work : works_) {
    const Status done = work.Wait(stream_);
    if (status_.ok()) status_ = done;
  }
  WEFT_RETURN_IF_ERROR(status_);
  if (!narrow_) return OkStatus();
  for (size_t bucket = 0; bucket < works_.size(); ++bucket) {
    const auto index = static_cast<int64_t>(bucket);
    WEFT_RETURN_IF_ERROR(kernels::Cast(stream_, {Narrow(index), Gradients(index)}));
  }
  return OkStatus();
}

Status DataParallel::SumScalars(std::span<double> values) {
  WEFT_RETURN_IF_ERROR(status_);
  const std::string_view own(reinterpret_cast<const char*>(values.data()), values.size_bytes());
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group_->AllGather(own));
  std::vector<double> sums(values.size(), 0.0);
  for (const std::string& part : all) {
    if (part.size() != values.size_bytes()) {
      return InternalError(
          "ranks sum different numbers of values: " + std::to_string(part.size() / sizeof(double)) +
          " and " + std::to_string(values.size()));
    }
    for (size_t i = 0; i < sums.size(); ++i) {
      double value = 0;
      std::memcpy(&value, part.data() + i * sizeof(double), sizeof(double));
      sums[i] += value;
    }
  }
  std::memcpy(values.data(), sums.data(), values.size_bytes());
  return OkStatus();
}

Status DataParallel::Maximum(const TensorView& values) {
  WEFT_RETURN_IF_ERROR(status_);
  return group_->AllReduce(stream_, values, Reduction::kMax, "largest magnitudes").Wait(stream_);
}

}  // namespace weft::engine
