// Where the ranks of an attempt find each other.
#include <algorithm>
#include <cmath>
#include <utility>

#include "common/clock.h"
#include "common/failpoint.h"
#include "coordinator/service/service.h"

namespace weft::coordinator {
namespace {

void AnswerRank(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                const Result<std::string>& value) {
  if (!Failpoint("coordinator.rendezvous.before_reply").ok()) return;
  link->ReplyStore(request_id, value);
  (void)Failpoint("coordinator.rendezvous.after_reply");
}

}  // namespace

int64_t Service::RanksThatMeet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                               const AttemptKey& attempt) {
  std::string worker_id;
  if (SessionOf(link, "store", &worker_id) == nullptr) return 0;
  const auto it = live_.find(attempt.job_id);
  if (it != live_.end() &&
      LivingPlacement(it->second->current, attempt.epoch, worker_id) != nullptr) {
    int64_t ranks = 0;
    for (const PlacementRecord& each : it->second->current.attempt->placements) {
      ranks += std::ssize(each.ranks);
    }
    return std::max<int64_t>(ranks, 1);
  }
  metrics_.Fenced("store");
  AnswerRank(link, request_id, AbortedError("the attempt is over"));
  return 0;
}

void Service::StoreSet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                       const AttemptKey& attempt, const std::string& key, std::string value) {
  loop_.Post([this, link, request_id, attempt, key, value = std::move(value)]() mutable {
    const int64_t ranks = RanksThatMeet(link, request_id, attempt);
    if (ranks == 0) return;
    Status status = rendezvous_.Set(attempt.job_id, attempt.epoch, ranks, key, std::move(value));
    AnswerRank(link, request_id, status.ok() ? Result<std::string>("") : status);
  });
}

void Service::StoreGet(const std::shared_ptr<WorkerLink>& link, int64_t request_id,
                       const AttemptKey& attempt, const std::string& key, double timeout_seconds) {
  loop_.Post([this, link, request_id, attempt, key, timeout_seconds] {
    const int64_t ranks = RanksThatMeet(link, request_id, attempt);
    if (ranks == 0) return;
    int64_t ticket = rendezvous_.Get(attempt.job_id, attempt.epoch, ranks, key,
                                     [link, request_id](const Result<std::string>& value) {
                                       AnswerRank(link, request_id, value);
                                     });
    if (ticket == 0) return;
    double seconds = std::isfinite(timeout_seconds) ? std::clamp(timeout_seconds, 0.0, 3600.0) : 0;
    loop_.PostAfter(FromSeconds(seconds), [this, ticket] { rendezvous_.Expire(ticket); });
  });
}

}  // namespace weft::coordinator
