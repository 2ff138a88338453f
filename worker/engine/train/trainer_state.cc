#include "worker/engine/train/trainer.h"

#include <string>
#include <utility>

#include "worker/engine/train/state_places.h"

namespace weft::engine {

std::vector<NamedTensor> Trainer::StateTensors(int64_t saved_ranks) {
  // They may be written to. A failure is told again by the next step.
  (void)weights_.FinishUploads();
  if (offloaded_ != nullptr) (void)offloaded_->FinishUnlessLate();
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  if (rounds_ != nullptr) {
    for (NamedTensor& tensor : rounds_->StateTensors()) tensors.push_back(std::move(tensor));
  }
  const size_t of_all_ranks = tensors.size();
  for (NamedTensor& tensor : updaters_.StateTensors()) tensors.push_back(std::move(tensor));
  for (NamedTensor& tensor : techniques_.StateTensors()) tensors.push_back(std::move(tensor));
  MarkPlaces(parts_, tensors, rounds_ == nullptr ? tensors.size() : of_all_ranks);
  if (rounds_ == nullptr) return tensors;
  const int64_t rank = saved_ranks > 0 ? parts_.rank % saved_ranks : parts_.rank;
  for (size_t i = of_all_ranks; i < tensors.size(); ++i) {
    tensors[i].everywhere = false;
    if (rank > 0) tensors[i].name = "rank/" + std::to_string(rank) + "/" + tensors[i].name;
  }
  return tensors;
}

void Trainer::Restored(const TrainCounters& counters) {
  counters_ = counters;
  weights_.Changed(Repack::kAll);
  // What the first steps do may be different, as where scales have no history.
  launcher_.Forget();
  techniques_.OnRestored(counters.step);
  if (rounds_ == nullptr) return;
  const Status restored = rounds_->Restored(*parts_.context, counters.step > 0);
  WEFT_CHECK(restored.ok(), restored.message());
}

}  // namespace weft::engine
