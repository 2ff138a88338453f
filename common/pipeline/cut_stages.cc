#include "common/pipeline/cut_stages.h"

#include <algorithm>
#include <limits>
#include <string>

namespace weft {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

class Cutter {
 public:
  Cutter(const std::vector<double>& blocks, double first, double last,
         const std::vector<StageMachine>& machines)
      : blocks_(static_cast<int64_t>(blocks.size())), machines_(machines), sums_{0} {
    for (const double cost : blocks) sums_.push_back(sums_.back() + cost);
    for (double& sum : sums_) sum += first;
    sums_.front() = 0;
    sums_.back() += last;
  }

  // The least that `combine` makes of the seconds of all stages, each at most `limit`;
  // `cut` gets the blocks of each. kNever where the machines' memory allows no cut.
  template <class Combine>
  double Best(double limit, Combine combine, std::vector<int64_t>* cut) const {
    const auto n = static_cast<size_t>(blocks_ + 1);
    std::vector<std::vector<double>> best(machines_.size() + 1, std::vector<double>(n, kNever));
    std::vector<std::vector<int64_t>> from(best.size(), std::vector<int64_t>(n, 0));
    best[0][0] = 0;
    for (size_t s = 1; s < best.size(); ++s) {
      const auto& [slowness, most_blocks] = machines_[s - 1];
      for (size_t end = s; end < n; ++end) {
        double& least = best[s][end];
        // A stage with more blocks takes longer: by itself longer than the best, it ends the
        // search.
        for (size_t begin = end; begin-- > s - 1;) {
          if (static_cast<int64_t>(end - begin) > most_blocks) break;
          const double seconds = slowness * (sums_[end] - sums_[begin]);
          if (seconds > limit || combine(0, seconds) > least) break;
          const double all = combine(best[s - 1][begin], seconds);
          if (best[s - 1][begin] == kNever || all > least) continue;
          least = all;
          from[s][end] = static_cast<int64_t>(begin);
        }
      }
    }
    if (cut != nullptr) {
      cut->assign(machines_.size(), 0);
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
  const std::vector<StageMachine>& machines_;
  std::vector<double> sums_;  ///< Of all that comes before a block.
};

}  // namespace

Result<std::vector<int64_t>> CutStages(const std::vector<double>& blocks, double first, double last,
                                       const std::vector<StageMachine>& machines) {
  // One stage may be without blocks.
  if (machines.empty() || machines.size() > std::max<size_t>(blocks.size(), 1)) {
    return InvalidError("a pipeline of " + std::to_string(machines.size()) +
                        " stages needs a block for each, and there are " +
                        std::to_string(blocks.size()) + "; hint: fewer stages");
  }
  if (machines.size() == 1 && machines.front().most_blocks >= std::ssize(blocks)) {
    return std::vector<int64_t>{std::ssize(blocks)};
  }
  const Cutter cutter(blocks, first, last, machines);
  const double most = cutter.Best(
      kNever, [](double a, double b) { return std::max(a, b); }, nullptr);
  if (most == kNever) {
    return ExhaustedError("the machines of a pipeline of " + std::to_string(machines.size()) +
                          " stages do not have the memory for its " +
                          std::to_string(blocks.size()) + " blocks; hint: more stages");
  }
  std::vector<int64_t> cut;
  // Sums that differ by their rounding are the same cost.
  cutter.Best(
      most * (1 + 1e-9), [](double a, double b) { return a + b * b; }, &cut);
  return cut;
}

}  // namespace weft
