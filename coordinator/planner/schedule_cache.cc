#include "coordinator/planner/schedule_cache.h"

#include <optional>
#include <set>

#include "common/check.h"
#include "common/pipeline/named_schedule.h"

namespace weft::planner {

void ScheduleCache::Add(const std::vector<ScheduleName>& names, ThreadPool& pool) {
  std::set<ScheduleName> wanted;
  for (const ScheduleName& name : names) {
    if (!made_.contains(name)) wanted.insert(name);
  }
  const std::vector<ScheduleName> missing(wanted.begin(), wanted.end());
  std::vector<std::optional<CachedSchedule>> made(missing.size());
  pool.Run(missing.size(), [&](size_t i) {
    const ScheduleName& name = missing[i];
    Result<PipelineSchedule> schedule =
        UncheckedSchedule(name.kind, name.ranks, name.chunks, name.micro_batches);
    WEFT_CHECK(schedule.ok(), schedule.status().message());
    made[i].emplace(*std::move(schedule));
    return true;
  });
  for (size_t i = 0; i < missing.size(); ++i) made_.emplace(missing[i], *std::move(made[i]));
}

}  // namespace weft::planner
