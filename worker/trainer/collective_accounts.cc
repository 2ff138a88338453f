#include "worker/trainer/collective_accounts.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

namespace weft::trainer {
namespace {

/// The row of an axis and a kind; end() without one.
template <class Uses>
auto Find(Uses& uses, std::string_view axis, std::string_view collective) {
  return std::find_if(uses.begin(), uses.end(), [&](const CollectiveUse& use) {
    return use.axis == axis && use.collective == collective;
  });
}

/// Adds `factor` times `other`.
void AddTimes(CollectiveUse& use, const CollectiveUse& other, double factor) {
  use.calls += factor * other.calls;
  use.bytes += factor * other.bytes;
  use.sent_bytes += factor * other.sent_bytes;
  use.seconds += factor * other.seconds;
  use.exposed_seconds += factor * other.exposed_seconds;
}

}  // namespace

std::vector<CollectiveUse> CollectiveAccounts::Totals() const {
  std::vector<CollectiveUse> uses;
  for (const engine::AxisAccount& entry : accounts_) {
    for (int number = 0; number < engine::kCollectiveKinds; ++number) {
      const auto kind = static_cast<engine::CollectiveKind>(number);
      const engine::CollectiveTotals totals = entry.account->totals(kind);
      if (totals.calls == 0) continue;
      const std::string_view name = engine::CollectiveKindName(kind);
      const CollectiveUse use{.axis = entry.axis,
                              .collective = std::string(name),
                              .calls = static_cast<double>(totals.calls),
                              .bytes = totals.bytes,
                              .sent_bytes = totals.sent_bytes,
                              .seconds = totals.seconds,
                              .exposed_seconds = totals.exposed_seconds};
      const auto row = Find(uses, use.axis, name);
      if (row == uses.end()) {
        uses.push_back(use);
      } else {
        AddTimes(*row, use, 1);
      }
    }
  }
  return uses;
}

void CollectiveAccounts::SetProfiler(engine::Profiler* profiler) const {
  for (const engine::AxisAccount& entry : accounts_) entry.account->SetProfiler(profiler);
}

std::vector<CollectiveUse> Difference(std::vector<CollectiveUse> after,
                                      const std::vector<CollectiveUse>& before) {
  for (const CollectiveUse& use : before) {
    const auto row = Find(after, use.axis, use.collective);
    if (row != after.end()) AddTimes(*row, use, -1);
  }
  std::erase_if(after, [](const CollectiveUse& use) { return use.calls == 0; });
  return after;
}

std::vector<CollectiveUse> PerStep(std::vector<CollectiveUse> uses, double steps) {
  for (CollectiveUse& use : uses) {
    CollectiveUse mean{.axis = use.axis, .collective = use.collective};
    AddTimes(mean, use, 1 / steps);
    use = std::move(mean);
  }
  return uses;
}

}  // namespace weft::trainer
