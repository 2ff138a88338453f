#include "worker/engine/techniques/parallel/outer_reducer.h"

#include <vector>

namespace weft::engine {

OuterReducer::OuterReducer(Collective* workers, Collective* worker, const ParameterSet* parameters,
                           int64_t bucket_bytes, Stream stream)
    : DataParallel(workers, parameters, bucket_bytes, stream), worker_(worker) {}

TensorView OuterReducer::Part(int64_t bucket, int64_t begin, int64_t end) const {
  const TensorView all = Sums(bucket);
  return {all.As<float>() + begin, all.dtype, {end - begin}, all.device};
}

int64_t OuterReducer::Share(int64_t bucket) const {
  return Sums(bucket).shape.Elements() / worker_->size();
}

Result<Work> OuterReducer::Reduce(int64_t bucket) {
  const int64_t share = Share(bucket);
  const int64_t begin = worker_->rank() * share;
  const bool last = worker_->rank() + 1 == worker_->size();
  const int64_t end = last ? Sums(bucket).shape.Elements() : begin + share;
  return group()->AllReduce(stream(), Part(bucket, begin, end), Reduction::kSum,
                            "all-reduce what workers learned");
}

Status OuterReducer::Finish() {
  WEFT_RETURN_IF_ERROR(DataParallel::Finish());
  std::vector<Work> gathers;
  for (int64_t b = 0; b < bucket_count(); ++b) {
    const int64_t share = Share(b), shared = share * worker_->size();
    const int64_t begin = worker_->rank() * share;
    gathers.push_back(worker_->AllGather(stream(), Part(b, begin, begin + share),
                                         Part(b, 0, shared), "gather what workers learned"));
    const int64_t count = Sums(b).shape.Elements();
    if (shared == count) continue;
    gathers.push_back(worker_->Broadcast(stream(), Part(b, shared, count), worker_->size() - 1,
                                         "gather what workers learned"));
  }
  Status gathered;
  for (const Work& work : gathers) {
    const Status done = work.Wait(stream());
    if (gathered.ok()) gathered = done;
  }
  return gathered;
}

}  // namespace weft::engine
