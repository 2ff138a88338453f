#include "common/spec/elastic_ranks.h"

#include "common/spec/local_steps.h"

namespace weft {

bool RanksComeAndGo(const JobSpec& job, const Plan& plan) {
  const bool one_rank_each = RankCount(plan.mesh) == plan.mesh.data;
  const bool in_memory = plan.offload_optimizer != "nvme" && plan.offload_parameters != "nvme";
  return TimesRounds(job.train) && job.resources.ranks == 0 && job.phases.empty() &&
         plan.device == "cpu" && one_rank_each && in_memory;
}

}  // namespace weft
