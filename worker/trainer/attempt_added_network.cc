#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "common/formats/weight_files.h"
#include "common/model/technique_cost.h"
#include "worker/engine/models/added_network.h"
#include "worker/trainer/attempt.h"

namespace weft::trainer {

Status Attempt::LoadAddedNetwork() {
  const std::optional<AddedNetwork> added = AddedNetworkOf(spec_.job.train);
  if (!added) return OkStatus();
  const std::string& folder = added->model->import_path;
  WEFT_ASSIGN_OR_RETURN(added_fingerprint_, FingerprintOfWeights(env_, folder));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group_->AllGather(added_fingerprint_));
  for (size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    return InvalidError("rank 0 read the weights " + all[0] + " in " + folder + ", rank " +
                        std::to_string(rank) + " read " + all[rank] +
                        "; hint: the folder must be the same on all machines");
  }
  const engine::ModelOptions options = engine::ModelOptionsOf(spec_.plan, spec_.job.train);
  WEFT_ASSIGN_OR_RETURN(added_network_,
                        engine::LoadAddedNetwork(env_, context_, folder, *options.precision,
                                                 tensor_ ? &*tensor_ : nullptr));
  return OkStatus();
}

Status Attempt::CheckAddedNetwork(const StartPoint& start) {
  if (added_network_ == nullptr || start.checkpoint_path.empty()) return OkStatus();
  if (start.base_fingerprint == added_fingerprint_) return OkStatus();
  return InvalidError("the weights in " + AddedNetworkOf(spec_.job.train)->model->import_path +
                      " are no longer those that the checkpoint was trained with (fingerprint " +
                      start.base_fingerprint + ", now " + added_fingerprint_ +
                      "); hint: restore them, or submit a new job that imports an export of this "
                      "one");
}

}  // namespace weft::trainer
