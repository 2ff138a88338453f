#include "common/model/remat_memory.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace weft {
namespace {

using Kind = RematStep::Kind;

class Walk {
 public:
  explicit Walk(const BlockBytes& bytes)
      : b_(bytes),
        // Both results of attention with what it read, before and after it is projected; at the end
        // the MLP's as well.
        passing_(std::max({3 * b_.row + b_.qkv,
                           b_.row + std::max(b_.row, b_.attended) + b_.qkv + b_.log_sum_exp,
                           4 * b_.row + b_.before})) {}

  int64_t peak() const { return peak_; }

  void Pass(const RematPlan& plan, StreamBytes live, int64_t at_end) {
    std::vector<StreamBytes> before, after;
    for (const RematStep& step : plan) {
      before.push_back(live);
      step.kind == Kind::kSegment ? Preview(step, live) : Run(step, live);
      after.push_back(live);
    }
    Reach(live, at_end);
    for (size_t i = plan.size(); i-- > 0;) {
      if (plan[i].kind == Kind::kAttention) {
        Reach({.saved = before[i].saved}, b_.entry + b_.attention);
      } else if (plan[i].kind == Kind::kSegment && Trained(plan[i].end() - 1)) {
        Pass(plan[i].replay, {.saved = after[i].saved, .input_is_saved = true}, 0);
      }
    }
  }

  // What a step saves is on the device until the next one has run, and again from the backward
  // pass of the next one on. Returns what leaves.
  int64_t PassOffloaded(const RematPlan& plan, StreamBytes live, int64_t at_end) {
    const int64_t below = live.saved;
    std::vector<int64_t> saved;
    for (const RematStep& step : plan) {
      const int64_t before = live.saved;
      step.kind == Kind::kSegment ? Preview(step, live) : Run(step, live);
      if (!saved.empty()) live.saved -= saved.back();
      saved.push_back(live.saved + (saved.empty() ? 0 : saved.back()) - before);
    }
    Reach(live, at_end);
    for (size_t i = plan.size(); i-- > 0;) {
      const int64_t next = below + (i > 0 ? saved[i - 1] : 0);
      Reach({.saved = next + saved[i]}, 0);
      if (plan[i].kind == Kind::kAttention) {
        Reach({.saved = next}, b_.entry + b_.attention);
      } else if (plan[i].kind == Kind::kSegment && Trained(plan[i].end() - 1)) {
        Pass(plan[i].replay, {.saved = next + saved[i], .input_is_saved = true}, 0);
      }
    }
    return std::accumulate(saved.begin(), saved.end() - 1, int64_t{0});
  }

 private:
  bool Trained(int64_t block) const { return block >= b_.untrained; }
  void Reach(const StreamBytes& live, int64_t more) {
    peak_ = std::max(peak_, live.saved + live.stream + live.delta + more);
  }
  void Leave(StreamBytes& live, int64_t stream) const {
    live.stream = b_.post_norm ? b_.row : stream;
    live.delta = b_.post_norm ? 0 : b_.row;
    live.input_is_saved = false;
  }

  // A block that keeps what it needs.
  void Run(const RematStep& step, StreamBytes& live) {
    if (!Trained(step.first)) {
      Reach(live, passing_);
      Leave(live, b_.row);
      return;
    }
    if (b_.compressed) {
      live.saved += b_.saved;
      // Sum, attention's result, the next sum and its norm, and the MLP's before and after it.
      const int64_t rows = b_.post_norm ? 2 : live.delta == 0 ? 4 : 5;
      Reach(live, rows * b_.row + b_.before);
      Leave(live, b_.row);
      return;
    }
    int64_t streams = 0;
    if (b_.shifted) {
      streams = live.delta == 0 ? b_.row : 2 * b_.row;
    } else if (live.delta == 0) {
      // The stream is the first thing that the block keeps.
      live.stream = 0;
      if (live.input_is_saved) live.saved -= b_.row;
    }
    const int64_t before = live.saved;
    live.saved += b_.saved;
    if (step.kind == Kind::kAttention) {
      live.saved -= b_.attention;
      Reach({before, live.stream, live.delta}, streams + b_.entry + b_.attention);
    }
    Reach(live, streams + 2 * b_.row);
    Leave(live, b_.shifted ? b_.row : 0);
  }

  // Blocks that keep the input of the first, as one tensor.
  void Preview(const RematStep& step, StreamBytes& live) {
    const bool trained = Trained(step.end() - 1);
    int64_t input = b_.row;
    if (live.delta == 0) {
      live.stream = trained ? 0 : live.stream;
      if (!trained || live.input_is_saved) input = 0;
    }
    live.saved += input;
    Reach(live, passing_);
    // From the second block on, the result of the one before and its sum.
    if (step.count > 1) Reach(live, passing_ + (b_.post_norm ? b_.row : 3 * b_.row));
    if (!trained) live.saved -= input;
    Leave(live, b_.row);
  }

  const BlockBytes& b_;
  const int64_t passing_;
  int64_t peak_ = 0;
};

}  // namespace

int64_t PeakOfBlocks(const RematPlan& plan, const BlockBytes& bytes, const StreamBytes& start,
                     int64_t at_end) {
  Walk walk(bytes);
  walk.Pass(plan, start, at_end);
  return walk.peak();
}

OffloadedPeaks PeakOfOffloadedBlocks(const RematPlan& plan, const BlockBytes& bytes,
                                     const StreamBytes& start, int64_t at_end) {
  Walk walk(bytes);
  const int64_t host = walk.PassOffloaded(plan, start, at_end);
  return {walk.peak(), host};
}

}  // namespace weft
