#include "common/model/remat_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace weft {
namespace {

using Kind = RematStep::Kind;

class Walk {
 public:
  explicit Walk(const BlockBytes& bytes)
      : b_(bytes),
        compressed_(bytes.compressed),
        // Both results of attention with what it read, before and after it is projected; at the end
        // the MLP's as well.
        passing_(std::max({3 * b_.row + b_.gathered + b_.qkv,
                           b_.row + std::max(b_.row, b_.attended) + b_.qkv + b_.log_sum_exp,
                           b_.after_mlp + b_.gathered + b_.mlp_hidden})) {}

  int64_t forward() const { return forward_; }
  int64_t backward() const { return backward_; }

  // From now on gradients of weights are deferred; steps add to what waits for them.
  void Defer() { defers_ = true; }
  // What this many steps leave waiting. They are the first ones in the backward pass; the steps
  // that come now are its last.
  int64_t Await(Kind kind, int64_t first, int64_t count, int64_t times) {
    if (!defers_) return 0;
    const int64_t untrained = std::clamp<int64_t>((b_.untrained - first) / count, 0, times);
    const int64_t waiting = (times - untrained) * Waiting({kind, b_.untrained, count, {}});
    later_ += waiting;
    return waiting;
  }

  // What waits of all steps of a plan.
  int64_t AllWaiting(const RematPlan& plan) const {
    int64_t waiting = 0;
    for (const RematStep& step : plan) waiting += Waiting(step);
    return waiting;
  }

  // Returns what is saved when the forward pass is over.
  int64_t Pass(const RematPlan& plan, StreamBytes live, int64_t at_end) {
    int64_t behind = AllWaiting(plan);
    for (const RematStep& step : plan) {
      behind -= Waiting(step);
      Step(step, live, behind);
    }
    Reach(live, at_end);
    return live.saved;
  }

  // This many steps of one kind, of `count` blocks each from block `first` on; what they run again
  // they keep.
  void Repeat(Kind kind, int64_t first, int64_t count, int64_t times, StreamBytes& live) {
    const int64_t untrained = std::clamp<int64_t>((b_.untrained - first) / count, 0, times);
    RepeatAlike(kind, first, count, untrained, live);
    RepeatAlike(kind, first + untrained * count, count, times - untrained, live);
  }

  void Reach(const StreamBytes& live, int64_t more) {
    const int64_t bytes = live.saved + live.stream + live.delta + more;
    if (backwards_) {
      backward_ = std::max(backward_, bytes + later_);
    } else {
      forward_ = std::max(forward_, bytes);
    }
  }

  // What a plan that sends activations to the host keeps.
  struct Kept {
    int64_t here = 0;  ///< When the forward pass is over.
    int64_t away = 0;
  };
  Kept PassBetweenTiers(const RematPlan& plan, StreamBytes live, int64_t at_end) {
    int64_t away = 0;
    std::vector<int64_t> saved;
    for (size_t i = 0; i < plan.size(); ++i) {
      const int64_t before = live.saved;
      plan[i].kind == Kind::kSegment ? Preview(plan[i], live) : Run(plan[i], live);
      saved.push_back(live.saved - before);
      for (size_t k = 0; k < i; ++k) {
        if (plan[k].sent != static_cast<int64_t>(i)) continue;
        live.saved -= saved[k];
        away += saved[k];
      }
    }
    Reach(live, at_end);
    backwards_ = true;
    int64_t held = live.saved;
    for (size_t i = plan.size(); i-- > 0;) {
      for (size_t k = 0; k < i; ++k) {
        if (plan[k].fetched == static_cast<int64_t>(i)) held += saved[k];
      }
      Reach({.saved = held}, 0);
      if (plan[i].kind == Kind::kAttention) {
        Reach({.saved = held - saved[i]}, BackInAttention() + (defers_ ? BehindAttention() : 0));
      } else if (plan[i].kind == Kind::kSegment && Trained(plan[i].end() - 1)) {
        Replay(plan[i], held);
      }
      held -= saved[i];
      later_ += Waiting(plan[i]);
    }
    return {live.saved, away};
  }

 private:
  bool Trained(int64_t block) const { return block >= b_.untrained; }

  const BlockBytes::Kept& KeptOfBlock() const { return compressed_ ? b_.kept : b_.plain; }

  // Bytes of a block after its attention has been recomputed, which is not compressed.
  int64_t BackInAttention() const {
    return KeptOfBlock().before_qkv + KeptOfBlock().recompute_input + b_.plain.attention;
  }

  // What gradients of weights that are deferred read of a trained step.
  int64_t Waiting(const RematStep& step) const {
    if (!defers_ || !Trained(step.end() - 1)) return 0;
    const bool compressed = compressed_ && (step.kind != Kind::kSegment || step.count > 1);
    const BlockBytes::Kept& kept = compressed ? b_.kept : b_.plain;
    // What attention reads is then restored, and workspace.
    if (compressed && step.kind == Kind::kAttention)
      return BehindAttention() + b_.plain.attention_product_input;
    return step.count *
           (2 * kept.norm_product_input + kept.attention_product_input + kept.expert_product_input);
  }
  int64_t BehindAttention() const {
    return KeptOfBlock().norm_product_input + KeptOfBlock().expert_product_input;
  }

  // The pass that the backward pass of a segment begins with, besides what is saved.
  void Replay(const RematStep& step, int64_t saved) {
    StreamBytes live{.saved = saved, .input_is_saved = true};
    const bool compressed = std::exchange(compressed_, compressed_ && step.count > 1);
    if (step.replay.empty()) {
      Repeat(Kind::kKeep, step.first, 1, step.count, live);
      Reach(live, 0);
    } else {
      Pass(step.replay, live, 0);
    }
    compressed_ = compressed;
  }

  // A step forward and its part of the backward pass, where nothing is left that later steps saved
  // but so much that waits of them.
  void Step(const RematStep& step, StreamBytes& live, int64_t behind = 0) {
    const int64_t before = live.saved;
    step.kind == Kind::kSegment ? Preview(step, live) : Run(step, live);
    const bool outermost = !backwards_;
    backwards_ = true;
    later_ += behind;
    if (step.kind == Kind::kAttention) {
      Reach({.saved = before}, BackInAttention() + (defers_ ? BehindAttention() : 0));
    } else if (step.kind == Kind::kSegment && Trained(step.end() - 1)) {
      Replay(step, live.saved);
    }
    later_ -= behind;
    backwards_ = !outermost;
  }

  // Steps that all are trained, or none. A step leaves the stream in one state whatever it found,
  // so from the second on each adds as much as the one before: the first two and the last one reach
  // what any of them does.
  void RepeatAlike(Kind kind, int64_t first, int64_t count, int64_t times, StreamBytes& live) {
    int64_t added = 0;
    const int64_t waiting = backwards_ ? 0 : Waiting({kind, first, count, {}});
    for (int64_t i = 0; i < times; ++i) {
      if (i == 2) {
        live.saved += (times - 3) * added;
        later_ -= (times - 3) * waiting;
        i = times - 1;
      }
      later_ -= waiting;
      const int64_t before = live.saved;
      Step({kind, first + i * count, count, {}}, live);
      added = live.saved - before;
    }
  }

  void Leave(StreamBytes& live, int64_t stream) const {
    live.stream = b_.post_norm ? b_.row : stream;
    live.delta = b_.post_norm ? 0 : b_.row;
    live.input_is_saved = false;
  }

  // A block that keeps what it needs.
  void Run(const RematStep& step, StreamBytes& live) {
    if (!Trained(step.first)) {
      // Besides the two terms of the stream their sum.
      Reach(live, passing_ + (live.delta == 0 ? 0 : b_.row));
      Leave(live, b_.row);
      return;
    }
    if (compressed_) {
      const int64_t sums = live.delta == 0 ? 0 : b_.row;
      if (step.kind == Kind::kAttention) {
        Reach(live, sums + b_.row + BackInAttention());
        live.saved -= b_.kept.attention - b_.kept.recompute_input;
      }
      live.saved += b_.kept.saved;
      // Sum, attention's result, the next sum and its norm, and the MLP's before and after it.
      const int64_t rows = b_.post_norm ? 2 : live.delta == 0 ? 4 : 5;
      Reach(live, rows * b_.row + b_.gathered + b_.mlp_quantised - b_.last_norm);
      // What that norm reads and makes, besides the MLP's result and what it read.
      if (b_.post_norm) Reach(live, 4 * b_.row);
      Leave(live, b_.row);
      return;
    }
    int64_t streams = 0;
    if (b_.shifted) {
      streams = live.delta == 0 ? b_.row : 2 * b_.row;
    } else if (live.delta == 0 && (b_.keeps_input || live.input_is_saved)) {
      // The stream is the first thing that the block keeps, or is kept already.
      live.stream = 0;
      if (b_.keeps_input && live.input_is_saved) live.saved -= b_.row;
    }
    const int64_t before = live.saved;
    live.saved += b_.plain.saved;
    if (step.kind == Kind::kAttention) {
      live.saved -= b_.plain.attention - b_.plain.recompute_input;
      Reach({before, live.stream, live.delta}, streams + BackInAttention());
    }
    Reach(live, streams + 2 * b_.row + b_.gathered + b_.unsaved);
    Leave(live, b_.shifted ? b_.row : 0);
  }

  // Blocks that keep the input of the first, as one tensor.
  void Preview(const RematStep& step, StreamBytes& live) {
    const bool trained = Trained(step.end() - 1);
    // From the second block on, the result of the one before and its sum.
    const int64_t more = step.count == 1 ? 0 : b_.post_norm ? b_.row : 3 * b_.row;
    if (compressed_) {
      Reach(live, (live.delta == 0 ? 0 : b_.row) + passing_ + more);
      if (trained) live.saved += b_.input;
      Leave(live, b_.row);
      return;
    }
    int64_t input = b_.row;
    if (live.delta == 0) {
      live.stream = trained ? 0 : live.stream;
      if (!trained || live.input_is_saved) input = 0;
    }
    live.saved += input;
    Reach(live, passing_ + more);
    if (!trained) live.saved -= input;
    Leave(live, b_.row);
  }

  const BlockBytes& b_;
  bool compressed_;  ///< What is kept now.
  const int64_t passing_;
  bool defers_ = false;
  bool backwards_ = false;  ///< In a part of the backward pass.
  int64_t later_ = 0;       ///< What waits there of later blocks.
  int64_t forward_ = 0;
  int64_t backward_ = 0;
};

}  // namespace

int64_t SavedByStep(const RematStep& step, const BlockBytes& bytes) {
  if (step.end() <= bytes.untrained) return 0;
  if (step.kind == Kind::kSegment) return bytes.input;
  if (step.kind == Kind::kKeep) return bytes.kept.saved;
  return bytes.kept.saved - bytes.kept.attention + bytes.kept.recompute_input;
}

TierPeaks PeakOfBlocks(const RematPlan& plan, const BlockBytes& bytes, const StreamBytes& start,
                       int64_t at_end) {
  const TierPasses passes = PassesOf(plan, bytes, start, at_end, false);
  return {std::max(passes.device.forward, passes.device.backward), passes.host};
}

int64_t PeakOfFirstBlocks(int64_t layers, int64_t recomputed, int64_t attention, int64_t segment,
                          const BlockBytes& bytes, const StreamBytes& start, int64_t at_end) {
  const PassBytes passes =
      PassesOfFirstBlocks(layers, recomputed, attention, segment, bytes, start, at_end, false);
  return std::max(passes.forward, passes.backward);
}

PassBytes PassesOfFirstBlocks(int64_t layers, int64_t recomputed, int64_t attention,
                              int64_t segment, const BlockBytes& bytes, const StreamBytes& start,
                              int64_t at_end, bool defers) {
  const int64_t segments = recomputed / segment, whole = segments * segment;
  const struct {
    Kind kind;
    int64_t first, count, times;
  } parts[] = {{Kind::kSegment, 0, segment, segments},
               {Kind::kSegment, whole, recomputed - whole, recomputed > whole ? 1 : 0},
               {Kind::kAttention, recomputed, 1, attention},
               {Kind::kKeep, recomputed + attention, 1, layers - recomputed - attention}};
  Walk walk(bytes);
  if (defers) walk.Defer();
  PassBytes passes;
  for (const auto& part : parts) {
    if (part.times > 0) passes.waiting += walk.Await(part.kind, part.first, part.count, part.times);
  }
  StreamBytes live = start;
  for (const auto& part : parts) {
    if (part.times > 0) walk.Repeat(part.kind, part.first, part.count, part.times, live);
  }
  walk.Reach(live, at_end);
  passes.kept = live.saved;
  passes.forward = walk.forward();
  passes.backward = std::max(walk.backward(), passes.kept);
  return passes;
}

TierPasses PassesOf(const RematPlan& plan, const BlockBytes& bytes, const StreamBytes& start,
                    int64_t at_end, bool defers) {
  Walk walk(bytes);
  if (defers) walk.Defer();
  TierPasses passes;
  passes.device.waiting = walk.AllWaiting(plan);
  if (Transfers(plan)) {
    const auto [kept, away] = walk.PassBetweenTiers(plan, start, at_end);
    passes.device.kept = kept;
    passes.host = away;
  } else {
    passes.device.kept = walk.Pass(plan, start, at_end);
  }
  passes.device.forward = walk.forward();
  passes.device.backward = std::max(walk.backward(), passes.device.kept);
  return passes;
}

}  // namespace weft
