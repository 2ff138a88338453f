#include "worker/engine/train/trainer.h"

#include <map>
#include <string>
#include <string_view>
#include <utility>

namespace weft::engine {

namespace {

/// The parameter whose state this is: names of state hold that of the parameter between slashes.
const int64_t* OwnerOf(std::string_view name,
                       const std::map<std::string_view, int64_t>& parameters) {
  while (true) {
    const size_t slash = name.find('/');
    const auto found = parameters.find(name.substr(0, slash));
    if (found != parameters.end()) return &found->second;
    if (slash == std::string_view::npos) return nullptr;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace

// Which part of a parameter its state is of, and which of the ranks that have the same saves it:
// the first `of_all` tensors are those of all replicas, the others of this worker alone.
void Trainer::MarkPlaces(std::vector<NamedTensor>& tensors, size_t of_all) const {
  const ParameterSet& parameters = parts_.model->parameters();
  std::map<std::string_view, int64_t> indices;
  for (int64_t i = 0; i < parameters.size(); ++i) indices[parameters[i].name] = i;
  const int64_t expert_ranks = parts_.experts == nullptr ? 1 : parts_.experts->degree();
  const bool first_chunks = parts_.sequences == nullptr || parts_.sequences->rank() == 0;
  const bool first_shards = ranks_.updated_parts().empty() || parts_.reducer->first_shards();
  for (size_t i = 0; i < tensors.size(); ++i) {
    NamedTensor& tensor = tensors[i];
    const bool first = first_chunks && (parts_.rank < expert_ranks || i >= of_all);
    const int64_t* owner = OwnerOf(tensor.name, indices);
    if (owner == nullptr) {
      tensor.saved = first && (parts_.rank == 0 || i >= of_all) &&
                     (parts_.tensor == nullptr || parts_.tensor->rank() == 0) &&
                     (parts_.pipeline == nullptr || parts_.pipeline->rank() == 0 || tensor.part);
      continue;
    }
    const Parameter& parameter = parameters[*owner];
    tensor.everywhere = parts_.pipeline == nullptr && !parameter.of_shared_expert;
    tensor.saved = tensor.part ? parameters.CountsPart(*owner) && first_shards
                               : parameters.Counts(*owner) && first;
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
  (void)weights_.FinishUploads();
  if (offloaded_ != nullptr) (void)offloaded_->FinishUnlessLate();
  std::vector<NamedTensor> tensors = parts_.model->parameters().NamedValues();
  if (rounds_ != nullptr) {
    for (NamedTensor& tensor : rounds_->StateTensors()) tensors.push_back(std::move(tensor));
  }
  const size_t of_all_ranks = tensors.size();
  for (NamedTensor& tensor : updaters_.StateTensors()) tensors.push_back(std::move(tensor));
  for (NamedTensor& tensor : techniques_.StateTensors()) tensors.push_back(std::move(tensor));
  MarkPlaces(tensors, rounds_ == nullptr ? tensors.size() : of_all_ranks);
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
