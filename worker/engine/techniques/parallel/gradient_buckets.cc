#include "worker/engine/techniques/parallel/gradient_buckets.h"

namespace weft::engine {
namespace {

BucketLayout BucketsOfFlatParameters(const ParameterSet& parameters) {
  BucketLayout layout;
  layout.bucket_of.resize(static_cast<size_t>(parameters.size()), -1);
  for (const ParameterSet::FlatParameter& flat : parameters.flat_parameters()) {
    if (!flat.trained) continue;
    GradientBucket bucket{.begin = flat.elements.begin,
                          .end = flat.elements.end,
                          .of_experts = flat.of_experts,
                          .updated = true};
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
  const std::vector<int64_t>& order = parameters.GradientOrder();
  bool open = false;
  int64_t unit = -1;
  bool on_host = false;
  GradientKind kind = GradientKind::kPlain;
  for (auto it = order.rbegin(); it != order.rend(); ++it) {
    const int64_t index = *it;
    const ParameterSet::Range range = parameters.GradientRange(index);
    const bool of_experts = parameters[index].of_shared_expert;
    const bool other_kind = parameters.gradient_kind(index) != kind;
    kind = parameters.gradient_kind(index);
    // Units are brought for the updates of gradients in a file; other gradients are in one memory.
    const bool other_unit = parameters[index].unit != unit &&
                            (parameters.file() != nullptr || parameters.on_host(index) != on_host);
    unit = parameters[index].unit;
    on_host = parameters.on_host(index);
    if (!open || layout.buckets.back().of_experts != of_experts || other_unit || other_kind) {
      layout.buckets.push_back({.begin = range.end,
                                .end = range.end,
                                .of_experts = of_experts,
                                .of_derived = kind == GradientKind::kOfDerived});
    }
    GradientBucket& bucket = layout.buckets.back();
    bucket.begin = range.begin;
    if (parameters[index].differentiated()) ++bucket.parameters;
    if (parameters[index].updated()) bucket.updated = true;
    layout.bucket_of[static_cast<size_t>(index)] = static_cast<int64_t>(layout.buckets.size()) - 1;
    // A stack of parameters is in one bucket: only its first begins where a bucket may.
    const bool within_stack = parameters[index].stacked && parameters[index - 1].trainable();
    open = within_stack ||
           (bucket.end - bucket.begin) * static_cast<int64_t>(sizeof(float)) < bucket_bytes;
  }
  return layout;
}

}  // namespace weft::engine
