#include "worker/engine/techniques/parallel/gradient_buckets.h"

namespace weft::engine {
namespace {

BucketLayout BucketsOfFlatParameters(const ParameterSet& parameters) {
  BucketLayout layout;
  layout.bucket_of.resize(static_cast<size_t>(parameters.size()), -1);
  for (const ParameterSet::FlatParameter& flat : parameters.flat_parameters()) {
    if (!flat.trained) continue;
    GradientBucket bucket{flat.elements.begin, flat.elements.end, 0, flat.of_experts};
    for (int64_t index : flat.parameters) {
      if (!parameters[index].differentiated()) continue;
      ++bucket.parameters;
      layout.bucket_of[static_cast<size_t>(index)] = static_cast<int64_t>(layout.buckets.size());
    }
    layout.buckets.push_back(bucket);
  }
  return layout;
}

}  // namespace

BucketLayout CutBuckets(const ParameterSet& parameters, int64_t bucket_bytes) {
  if (parameters.values_sharded()) return BucketsOfFlatParameters(parameters);
  BucketLayout layout;
  layout.bucket_of.resize(static_cast<size_t>(parameters.size()), -1);
  bool open = false;
  int64_t unit = -1;
  bool on_host = false;
  for (int64_t index = parameters.size() - 1; index >= 0; --index) {
    if (!parameters[index].differentiated()) continue;
    const ParameterSet::Range range = parameters.GradientRange(index);
    const bool of_experts = parameters[index].of_shared_expert;
    // Of gradients in a file units are brought for their updates; others are in one memory.
    const bool other_unit = parameters[index].unit != unit &&
                            (parameters.file() != nullptr || parameters.on_host(index) != on_host);
    unit = parameters[index].unit;
    on_host = parameters.on_host(index);
    if (!open || layout.buckets.back().of_experts != of_experts || other_unit) {
      layout.buckets.push_back({range.end, range.end, 0, of_experts});
    }
    GradientBucket& bucket = layout.buckets.back();
    bucket.begin = range.begin;
    ++bucket.parameters;
    layout.bucket_of[static_cast<size_t>(index)] = static_cast<int64_t>(layout.buckets.size()) - 1;
    // A stack of parameters is in one bucket: only its first begins where a bucket may.
    const bool within_stack = parameters[index].stacked && parameters[index - 1].trainable();
    open = within_stack ||
           (bucket.end - bucket.begin) * static_cast<int64_t>(sizeof(float)) < bucket_bytes;
  }
  return layout;
}

}  // namespace weft::engine
