#include "coordinator/scheduler/forecast.h"

#include <algorithm>

namespace weft::coordinator {
namespace {

constexpr auto kLater = [](const auto& a, const auto& b) { return a.first > b.first; };

}  // namespace

Forecast::Forecast(const ComputeAmount& free,
                   const std::vector<std::pair<double, ComputeAmount>>& releases)
    : free_(free), releases_(releases) {
  std::make_heap(releases_.begin(), releases_.end(), kLater);
}

void Forecast::Hold(const ComputeAmount& amount, double seconds) {
  free_ -= amount;
  releases_.emplace_back(seconds, amount);
  std::push_heap(releases_.begin(), releases_.end(), kLater);
}

std::optional<double> Forecast::Start(const ComputeAmount& amount, double seconds) {
  while (known_ && (free_.gpus < amount.gpus || free_.cores < amount.cores)) {
    if (releases_.empty()) {
      known_ = false;
      break;
    }
    std::pop_heap(releases_.begin(), releases_.end(), kLater);
    now_ = std::max(now_, releases_.back().first);
    free_ += releases_.back().second;
    releases_.pop_back();
  }
  if (!known_) return std::nullopt;
  free_ -= amount;
  releases_.emplace_back(now_ + seconds, amount);
  std::push_heap(releases_.begin(), releases_.end(), kLater);
  return now_;
}

}  // namespace weft::coordinator
