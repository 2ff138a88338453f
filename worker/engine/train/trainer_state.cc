#include "worker/engine/train/trainer.h"

#include <string>
#include <utility>

namespace weft::engine {

// Which part of a parameter its state is of, and which of the ranks that have the same saves it:
// the first `of_all` tensors are those of all replicas, the others of this worker alone.
void Trainer::MarkPlaces(std::vector<NamedTensor>& tensors, size_t of_all) const {
  const ParameterSet& parameters = parts_.model->parameters();
  const int64_t expert_ranks = parts_.experts == nullptr ? 1 : parts_.experts->degree();
  const bool first_chunks = parts_.sequences == nullptr || parts_.sequences->rank() == 0;
  const bool first_shards = parts().empty() || parts_.reducer->first_shards();
  for (size_t i = 0; i < tensors.size(); ++i) {
    NamedTensor& tensor = tensors[i];
    const bool first = first_chunks && (parts_.rank < expert_ranks || i >= of_all);
    if (tensor.parameter < 0) {
      tensor.saved = first && (parts_.rank == 0 || i >= of_all) &&
                     (parts_.tensor == nullptr || parts_.tensor->rank() == 0) &&
                     (parts_.pipeline == nullptr || parts_.pipeline->rank() == 0 || tensor.part);
      continue;
    }
    const Parameter& parameter = parameters[tensor.parameter];
    tensor.everywhere = parts_.pipeline == nullptr && !parameter.of_shared_expert;
    tensor.saved = tensor.part ? parameters.CountsPart(tensor.parameter) && first_shards
                               : parameters.Counts(tensor.parameter) && first;
    if (parameter.shard.whole()) continue;
    if (!tensor.part) {
      WEFT_CHECK(tensor.view.shape == parameter.shape, "state has the shape of its parameter");
      tensor.part = {.whole = parameter.logical_shape(), .shard = parameter.shard};
      continue;
    }
    tensor.part->whole = parameter.logical_shape();
    tensor.part->shard = parameter.shard;
  }
}

std::vector<NamedTensor> Trainer::StateTensors(int64_t saved_ranks) {
  // They may be written to. A failure is told again by the next step.
  if (uploader_ != nullptr) (void)uploader_->Finish();
  if (under_way_ != nullptr && !under_way_->late) (void)FinishUpdates();
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  if (outer_ != nullptr) {
    for (NamedTensor& tensor : outer_->StateTensors()) tensors.push_back(std::move(tensor));
  }
  const size_t of_all_ranks = tensors.size();
  for (const Updater* updater : {kept_updater_.get(), updater_.get()}) {
    if (updater == nullptr) continue;
    for (NamedTensor& tensor : updater->StateTensors()) tensors.push_back(std::move(tensor));
  }
  for (Technique* technique : techniques_) {
    for (NamedTensor& tensor : technique->StateTensors()) tensors.push_back(std::move(tensor));
  }
  MarkPlaces(tensors, outer_ == nullptr ? tensors.size() : of_all_ranks);
  if (outer_ == nullptr) return tensors;
  const int64_t rank = saved_ranks > 0 ? parts_.rank % saved_ranks : parts_.rank;
  for (size_t i = of_all_ranks; i < tensors.size(); ++i) {
    tensors[i].everywhere = false;
    if (rank > 0) tensors[i].name = "rank/" + std::to_string(rank) + "/" + tensors[i].name;
  }
  return tensors;
}

void Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  stale_ = Repack::kAll;
  // What the first steps do may be different, as where scales have no history.
  if (graphs_ != nullptr) graphs_->Clear();
  for (Technique* technique : techniques_) technique->OnRestored(counters.step);
  if (outer_ == nullptr) return;
  const Status restored = outer_->Restored(*parts_.context, counters.step > 0);
  WEFT_CHECK(restored.ok(), restored.message());
  round_updates_ = round_tokens_ = 0;
}

}  // namespace weft::engine
