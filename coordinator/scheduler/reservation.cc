#include "coordinator/scheduler/reservation.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace weft::coordinator {
namespace {

constexpr size_t kNamedJobs = 3;

}  // namespace

void Releases::Add(double seconds, const Plan& plan, const std::string& job_id) {
  if (std::isinf(seconds)) return;
  releases_.push_back({seconds, &plan, &job_id});
  sorted_ = false;
}

std::vector<const Plan*> Releases::Remove(const std::set<const Plan*>& plans) {
  std::vector<const Plan*> removed;
  std::erase_if(releases_, [&](const Release& release) {
    if (!plans.contains(release.plan)) return false;
    removed.push_back(release.plan);
    return true;
  });
  return removed;
}

double Releases::SecondsUntil(const ComputeAmount& amount, ComputeAmount free) {
  Sort();
  if (Covers(free, amount)) return 0;
  for (const Release& release : releases_) {
    free += AmountOf(*release.plan);
    if (Covers(free, amount)) return release.seconds;
  }
  return std::numeric_limits<double>::infinity();
}

void Releases::Sort() {
  if (sorted_) return;
  std::stable_sort(releases_.begin(), releases_.end(),
                   [](const Release& a, const Release& b) { return a.seconds < b.seconds; });
  sorted_ = true;
}

std::optional<Reservation> Releases::Reserve(const Plan& wanted, CapacityPool pool) {
  Sort();
  const ComputeAmount amount = AmountOf(wanted);
  const auto reserved = [&](double seconds, size_t given_back) -> std::optional<Reservation> {
    if (!Covers(pool.total(), amount)) return std::nullopt;
    std::optional<Plan> plan = pool.Place(wanted);
    if (!plan) return std::nullopt;
    pool.Take(*plan);
    Reservation reservation{seconds, *std::move(plan), std::move(pool), {}};
    for (size_t i = given_back; i > 0 && reservation.blocked_by.size() < kNamedJobs; --i) {
      reservation.blocked_by.push_back(*releases_[i - 1].job_id);
    }
    return reservation;
  };
  if (auto now = reserved(0, 0)) return now;
  for (size_t i = 0; i < releases_.size(); ++i) {
    pool.Release(*releases_[i].plan);
    // All of one time come together.
    if (i + 1 < releases_.size() && releases_[i + 1].seconds <= releases_[i].seconds) continue;
    if (auto then = reserved(releases_[i].seconds, i + 1)) return then;
  }
  return std::nullopt;
}

std::vector<std::pair<double, ComputeAmount>> Releases::Amounts() {
  Sort();
  std::vector<std::pair<double, ComputeAmount>> amounts;
  amounts.reserve(releases_.size());
  for (const Release& release : releases_) {
    amounts.emplace_back(release.seconds, AmountOf(*release.plan));
  }
  return amounts;
}

}  // namespace weft::coordinator
