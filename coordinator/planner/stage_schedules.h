#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <stop_token>
#include <vector>

#include "common/model/in_flight_activations.h"
#include "common/model/memory_model.h"
#include "coordinator/planner/remat_choice.h"

namespace weft::planner {

/// Chooses the "optimal" recomputation of a pipeline that is cut so: for each stage the fastest
/// schedule (InFlightChain) with which its rank fits, as `rank_fits` says of a choice; that rank's
/// stages alone count. The budget counts the micro-batches under way; stages of one rank share it
/// by their blocks. None where some rank has no schedule that fits. `inputs` are those of one rank
/// with the whole network. None, soon after a request to `stop`.
std::optional<RematChoice> ChooseStageSchedules(
    const MemoryInputs& inputs, const RematCosts& costs, const std::vector<int64_t>& cut,
    const InFlightActivations& in_flight,
    const std::function<bool(int64_t rank, const RematChoice& choice)>& rank_fits,
    const std::stop_token& stop = {});

}  // namespace weft::planner
