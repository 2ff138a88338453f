// Gradients of the sources of derived matrices, where ranks shard gradients.
#include <span>

#include "worker/engine/techniques/parallel/sharded_data_parallel.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

Status ShardedDataParallel::SplitDerived(std::span<const int64_t> derived, const Split& split) {
  if (!places_gradients()) return split(derived);
  for (int64_t b = 0; b < bucket_count(); ++b) {
    if (bucket(b).of_derived) WEFT_RETURN_IF_ERROR(SplitBucket(b, split));
  }
  return OkStatus();
}

Status ShardedDataParallel::SplitBucket(int64_t bucket, const Split& split) {
  const GradientBucket& all = this->bucket(bucket);
  WEFT_ASSIGN_OR_RETURN(const Tensor whole, Tensor::New(*context_, Component::kGradients,
                                                        DType::kF32, {all.end - all.begin}));
  WEFT_RETURN_IF_ERROR(shards_
                           ->AllGather(stream(), Sums(bucket), whole.view(),
                                       "all-gather gradients of derived weights")
                           .Wait(stream()));
  parameters_->PlaceGradients({all.begin, all.end}, whole.As<float>());
  for (int64_t i = 0; i < parameters_->size(); ++i) {
    if (layout().bucket_of[static_cast<size_t>(i)] != bucket) continue;
    WEFT_RETURN_IF_ERROR((*parameters_)[i].derived() ? SplitMatrix(i, split) : KeepPart(i));
  }
  parameters_->PlaceGradients({all.begin, all.end}, nullptr);
  return OkStatus();
}

// Gradients of the sources of a matrix follow one another.
Status ShardedDataParallel::SplitMatrix(int64_t index, const Split& split) {
  const Parameter& matrix = (*parameters_)[index];
  const int64_t first = matrix.first_source, last = first + matrix.sources - 1;
  const ParameterSet::Range range{parameters_->GradientRange(first).begin,
                                  parameters_->GradientRange(last).end};
  WEFT_ASSIGN_OR_RETURN(const Tensor memory,
                        Tensor::New(*context_, Component::kGradients, DType::kF32, {range.size()}));
  parameters_->PlaceGradients(range, memory.As<float>());
  WEFT_RETURN_IF_ERROR(split(std::span<const int64_t>(&index, 1)));
  for (int64_t source = first; source <= last; ++source) {
    WEFT_RETURN_IF_ERROR(KeepPart(source));
  }
  parameters_->PlaceGradients(range, nullptr);
  return OkStatus();
}

Status ShardedDataParallel::KeepPart(int64_t index) {
  const int64_t b = layout().bucket_of[static_cast<size_t>(index)];
  const ParameterSet::Range part = PartOfParameter(index, OwnPart(b));
  if (part.size() == 0) return OkStatus();
  const TensorView whole = parameters_->gradient(index);
  const TensorView from(whole.As<float>() + (part.begin - parameters_->GradientOffset(index)),
                        DType::kF32, {part.size()}, whole.device);
  return CopyRows(stream(), from, {SumOf(index, part), DType::kF32, {part.size()}, whole.device});
}

}  // namespace weft::engine
