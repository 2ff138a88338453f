#include "worker/engine/techniques/parallel/sharded_data_parallel.h"

#include <algorithm>
#include <string>

#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

size_t BytesOf(std::span<const ParameterPart> parts) {
  size_t bytes = 0;
  for (const ParameterPart& part : parts) bytes += part.value.Bytes();
  return bytes;
}

}  // namespace

ShardedDataParallel::ShardedDataParallel(Context& context, Collective* group,
                                         const ParameterSet* parameters, int64_t bucket_bytes)
    : BucketReducer(group, parameters, bucket_bytes, context.stream),
      parameters_(parameters),
      gathers_(static_cast<size_t>(bucket_count())) {}

Result<std::unique_ptr<ShardedDataParallel>> ShardedDataParallel::New(
    Context& context, Collective* group, const ParameterSet* parameters, int64_t bucket_bytes) {
  if (parameters->factoring() != Factoring::kNone) {
    return InvalidError(
        "plan.zero_stage does not go with model.over_parameterization, whose factors need the "
        "whole gradient of a weight; hint: resources.zero_stage 0");
  }
  std::unique_ptr<ShardedDataParallel> made(
      new ShardedDataParallel(context, group, parameters, bucket_bytes));
  WEFT_RETURN_IF_ERROR(made->MakeParts());
  if (!parameters->values_follow_gradients()) WEFT_RETURN_IF_ERROR(made->MakeStaging(context));
  return made;
}

ShardedDataParallel::~ShardedDataParallel() {
  WaitForAll();
  for (const Work& gather : gathers_) (void)gather.Wait(stream());
}

ParameterSet::Range ShardedDataParallel::PartOfBucket(int64_t bucket, int64_t rank) const {
  const GradientBucket& all = this->bucket(bucket);
  const int64_t length = (all.end - all.begin) / group()->size();
  WEFT_CHECK(length * group()->size() == all.end - all.begin, "ranks share a bucket evenly");
  return {all.begin + rank * length, all.begin + (rank + 1) * length};
}

std::vector<ParameterPart> ShardedDataParallel::PartsIn(const ParameterSet::Range& range) const {
  std::vector<ParameterPart> parts;
  for (int64_t i = 0; i < parameters_->size(); ++i) {
    const Parameter& parameter = (*parameters_)[i];
    if (!parameter.trainable()) continue;
    const int64_t begin = parameter.gradient_offset;
    const int64_t end = begin + parameter.shape.Elements();
    const int64_t first = std::clamp(range.begin, begin, end);
    const int64_t count = std::clamp(range.end, begin, end) - first;
    parts.push_back(PartOf(*parameters_, i, first - begin, count,
                           parameters_->gradients().As<float>() + first));
  }
  return parts;
}

Status ShardedDataParallel::MakeParts() {
  for (int64_t b = 0; b < bucket_count(); ++b) {
    const std::vector<ParameterPart> own = PartsIn(PartOfBucket(b, group()->rank()));
    if (parts_.empty()) parts_.resize(own.size());
    for (size_t k = 0; k < own.size(); ++k) {
      if (layout().bucket_of[static_cast<size_t>(own[k].index)] == b) parts_[k] = own[k];
    }
  }
  // Stochastic rounding draws four numbers at a time.
  for (const ParameterPart& part : parts_) {
    if (part.value.dtype == DType::kF32 || part.first % 4 == 0 || part.count() == 0) continue;
    return InvalidError("ranks cannot share the updates of " + (*parameters_)[part.index].name +
                        ", a bf16 matrix cut at element " + std::to_string(part.first) +
                        "; hint: resources.zero_stage 0, or a model.width that is a multiple of 4");
  }
  return OkStatus();
}

Result<Work> ShardedDataParallel::Reduce(int64_t bucket) {
  const auto view = [&](int64_t begin, int64_t end) -> TensorView {
    const Tensor& gradients = parameters_->gradients();
    return {gradients.As<float>() + begin, DType::kF32, {end - begin}, gradients.view().device};
  };
  const GradientBucket& all = this->bucket(bucket);
  const ParameterSet::Range own = PartOfBucket(bucket, group()->rank());
  return group()->ReduceScatter(stream(), view(all.begin, all.end), view(own.begin, own.end),
                                Reduction::kSum, "reduce-scatter gradients");
}

Status ShardedDataParallel::MakeStaging(Context& context) {
  constexpr size_t kAlign = 64;
  for (int64_t b = 0; b < bucket_count(); ++b) {
    for (int64_t rank = 0; rank < group()->size(); ++rank) {
      const size_t bytes = (BytesOf(PartsIn(PartOfBucket(b, rank))) + kAlign - 1) / kAlign * kAlign;
      staged_bytes_ = std::max(staged_bytes_, static_cast<int64_t>(bytes));
    }
  }
  WEFT_ASSIGN_OR_RETURN(staging_, Tensor::New(context, Component::kCommunication, DType::kU8,
                                              {staged_bytes_ * group()->size()}));
  return OkStatus();
}

// The other ranks' parts come packed one parameter behind the other.
Status ShardedDataParallel::GatherStaged(int64_t bucket) {
  const auto copy = [&](int64_t rank, bool to_staging) -> Status {
    int64_t offset = rank * staged_bytes_;
    for (const ParameterPart& part : PartsIn(PartOfBucket(bucket, rank))) {
      if (part.count() == 0) continue;
      TensorView packed = part.value;
      packed.data = staging_.As<uint8_t>() + offset;
      offset += static_cast<int64_t>(part.value.Bytes());
      WEFT_RETURN_IF_ERROR(to_staging ? CopyRows(stream(), part.value, packed)
                                      : CopyRows(stream(), packed, part.value));
    }
    return OkStatus();
  };
  const int own = group()->rank();
  WEFT_RETURN_IF_ERROR(copy(own, true));
  WEFT_RETURN_IF_ERROR(group()
                           ->AllGather(stream(),
                                       staging_.Elements(own * staged_bytes_, staged_bytes_),
                                       staging_, "all-gather parameters")
                           .Wait(stream()));
  for (int64_t rank = 0; rank < group()->size(); ++rank) {
    if (rank != own) WEFT_RETURN_IF_ERROR(copy(rank, false));
  }
  return OkStatus();
}

Status ShardedDataParallel::GatherParameters() {
  if (staging_) {
    for (int64_t b = 0; b < bucket_count(); ++b) WEFT_RETURN_IF_ERROR(GatherStaged(b));
    return OkStatus();
  }
  for (int64_t b = 0; b < bucket_count(); ++b) {
    const GradientBucket& all = this->bucket(b);
    gathers_[static_cast<size_t>(b)] =
        group()->AllGather(stream(), parameters_->ValuesAlong(PartOfBucket(b, group()->rank())),
                           parameters_->ValuesAlong({all.begin, all.end}), "all-gather parameters");
  }
  for (const Work& gather : gathers_) WEFT_RETURN_IF_ERROR(gather.Wait(stream()));
  return OkStatus();
}

}  // namespace weft::engine
