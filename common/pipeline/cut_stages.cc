#include "common/pipeline/cut_stages.h"

#include <algorithm>
#include <limits>
#include <string>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Cutter {
 public:
  Cutter(const std::vector<double>& blocks, double first, double last, int64_t stages)
      : blocks_(static_cast<int64_t>(blocks.size())), stages_(stages), sums_{0} {
    for (const double cost : blocks) sums_.push_back(sums_.back() + cost);
    for (double& sum : sums_) sum += first;
    sums_.front() = 0;
    sums_.back() += last;
  }

  // The least that `combine` makes of the costs of all stages, none of which is above `limit`;
  // `cut` gets the blocks of each.
  template <class Combine>
  double Best(double limit, Combine combine, std::vector<int64_t>* cut) const {
    const auto n = static_cast<size_t>(blocks_ + 1);
    std::vector<std::vector<double>> best(static_cast<size_t>(stages_ + 1),
                                          std::vector<double>(n, kNever));
    std::vector<std::vector<int64_t>> from(best.size(), std::vector<int64_t>(n, 0));
    best[0][0] = 0;
    for (size_t s = 1; s < best.size(); ++s) {
      for (size_t end = s; end < n; ++end) {
        for (size_t begin = s - 1; begin < end; ++begin) {
          const double cost = sums_[end] - sums_[begin];
          if (best[s - 1][begin] == kNever || cost > limit) continue;
          const double all = combine(best[s - 1][begin], cost);
          if (all >= best[s][end]) continue;
          best[s][end] = all;
          from[s][end] = static_cast<int64_t>(begin);
        }
      }
    }
    if (cut != nullptr) {
      cut->assign(static_cast<size_t>(stages_), 0);
      int64_t end = blocks_;
      for (size_t s = best.size() - 1; s > 0; --s) {
        const int64_t begin = from[s][static_cast<size_t>(end)];
        (*cut)[s - 1] = end - begin;
        end = begin;
      }
    }
    return best.back().back();
  }

 private:
  int64_t blocks_;
  int64_t stages_;
  std::vector<double> sums_;  ///< Of all that stands before a block.
};

}  // namespace

Result<std::vector<int64_t>> CutStages(const std::vector<double>& blocks, double first, double last,
                                       int64_t stages) {
  if (stages < 1 || stages > static_cast<int64_t>(blocks.size())) {
    return InvalidError("a pipeline of " + std::to_string(stages) +
                        " stages needs a block for each, and there are " +
                        std::to_string(blocks.size()) + "; hint: fewer stages");
  }
  const Cutter cutter(blocks, first, last, stages);
  const double most = cutter.Best(
      kNever, [](double a, double b) { return std::max(a, b); }, nullptr);
  std::vector<int64_t> cut;
  // Sums that differ by their rounding are the same cost.
  cutter.Best(
      most * (1 + 1e-9), [](double a, double b) { return a + b * b; }, &cut);
  return cut;
}

}  // namespace weft
