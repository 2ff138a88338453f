#include "common/model/in_flight_chain.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace weft {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

}  // namespace

InFlightChain::InFlightChain(std::vector<ChainStage> stages, int64_t bytes, int64_t slots,
                             const std::stop_token& stop)
    : stages_(std::move(stages)),
      replays_(stages_, bytes, slots, stop),
      unit_(std::max<int64_t>((bytes + slots - 1) / slots, 1)),
      slots_(slots),
      table_(stages_.size() * static_cast<size_t>((slots + 1) * (slots + 1)), Choice{kInfinity}) {
  for (int64_t stage = std::ssize(stages_); stage-- > 0;) {
    for (int64_t kept = 0; kept <= slots; ++kept) {
      if (stop.stop_requested()) return;
      for (int64_t beside = 0; kept + beside <= slots; ++beside) {
        table_[IndexOf(stage, {kept, beside})] = Best(stage, {kept, beside});
      }
    }
  }
}

// More than one pass takes is of no use.
size_t InFlightChain::IndexOf(int64_t stage, const Room& room) const {
  const int64_t beside = std::min(room.beside, slots_ - room.kept);
  return static_cast<size_t>((stage * (slots_ + 1) + room.kept) * (slots_ + 1) + beside);
}

InFlightChain::Choice InFlightChain::Best(int64_t stage, const Room& room) const {
  const ChainStage& own = stages_[static_cast<size_t>(stage)];
  const auto last = std::ssize(stages_) - 1;
  const int64_t all = room.kept + room.beside;
  const auto rest = [&](int64_t next, int64_t kept) {
    return table_[IndexOf(next, {room.kept - kept, room.beside})].seconds;
  };
  Choice best{kInfinity};
  for (size_t w = 0; w < own.modes.size(); ++w) {
    const ChainStage::Mode& mode = own.modes[w];
    const int64_t saved = replays_.Slots(mode.saved_bytes);
    if (saved > room.kept || replays_.Slots(mode.saved_bytes + mode.passing_bytes) > all) continue;
    const double seconds = own.forward_seconds + mode.recompute_seconds + own.backward_seconds +
                           (stage == last ? 0 : rest(stage + 1, saved));
    if (seconds < best.seconds) best = {seconds, static_cast<int32_t>(w), -1};
  }
  double forward = 0;
  int64_t passing = 0;
  for (int64_t next = stage + 1; next <= last; ++next) {
    const ChainStage& before = stages_[static_cast<size_t>(next - 1)];
    forward += before.forward_seconds;
    passing = std::max(passing, replays_.Slots(before.passing_bytes));
    const int64_t result = replays_.Slots(before.result_bytes);
    if (passing > all || result > room.kept) continue;
    const double seconds =
        forward + rest(next, result) + replays_.PartSeconds(stage, next - 1, all);
    if (seconds < best.seconds) best = {seconds, -1, static_cast<int32_t>(next - stage)};
  }
  return best;
}

InFlightChain::Room InFlightChain::FastestRoom(int64_t bytes, int64_t passes) const {
  Room best{-1, 0};
  double least = kInfinity;
  for (int64_t kept = 0; kept <= slots_; ++kept) {
    const int64_t beside = bytes / unit_ - passes * kept;
    if (beside < 0) break;
    const Room room{kept, std::min(beside, slots_ - kept)};
    const double seconds = table_[IndexOf(0, room)].seconds;
    if (seconds >= least) continue;
    least = seconds;
    best = room;
  }
  return best;
}

double InFlightChain::Seconds(int64_t bytes, int64_t passes) const {
  const Room room = FastestRoom(bytes, passes);
  return room.kept < 0 ? kInfinity : table_[IndexOf(0, room)].seconds;
}

std::optional<RematPlan> InFlightChain::Schedule(int64_t bytes, int64_t passes) const {
  Room room = FastestRoom(bytes, passes);
  if (room.kept < 0) return std::nullopt;
  RematPlan plan;
  for (int64_t stage = 0; stage < std::ssize(stages_);) {
    const Choice& choice = table_[IndexOf(stage, room)];
    if (choice.mode >= 0) {
      const ChainStage::Mode& mode =
          stages_[static_cast<size_t>(stage)].modes[static_cast<size_t>(choice.mode)];
      plan.push_back({mode.kind, stage, 1, {}});
      room.kept -= replays_.Slots(mode.saved_bytes);
      ++stage;
      continue;
    }
    const int64_t next = stage + choice.count;
    plan.push_back({RematStep::Kind::kSegment, stage, choice.count,
                    replays_.Part(stage, next - 1, room.kept + room.beside)});
    room.kept -= replays_.Slots(stages_[static_cast<size_t>(next - 1)].result_bytes);
    stage = next;
  }
  return plan;
}

}  // namespace weft
