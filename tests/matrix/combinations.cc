#include "tests/matrix/combinations.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/rng.h"

namespace weft::testing {
namespace {

constexpr int64_t kMostRanks = 8;

using Place = std::pair<size_t, size_t>;  // axis, choice
using Pair = std::pair<Place, Place>;

std::vector<Place> Places() {
  std::vector<Place> places;
  for (size_t axis = 0; axis < Axes().size(); ++axis) {
    for (size_t choice = 0; choice < Axes()[axis].size(); ++choice)
      places.push_back({axis, choice});
  }
  return places;
}

Combination Plain() {
  return Combination(Axes().size(), 0);
}

Combination With(Combination combination, const Place& place) {
  combination[place.first] = place.second;
  return combination;
}

/// `combination`, or it with one more choice in an axis that is not in `kept`; the first that is
/// legal.
std::optional<Combination> Legalize(const Combination& combination, const std::set<size_t>& kept) {
  if (IsLegal(combination)) return combination;
  for (const Place& place : Places()) {
    if (kept.count(place.first) > 0 || combination[place.first] == place.second) continue;
    if (Combination helped = With(combination, place); IsLegal(helped)) return helped;
  }
  return std::nullopt;
}

std::vector<Pair> PairsOf(const Combination& combination) {
  std::vector<Pair> pairs;
  for (size_t a = 0; a < combination.size(); ++a) {
    for (size_t b = a + 1; b < combination.size(); ++b) {
      pairs.push_back({{a, combination[a]}, {b, combination[b]}});
    }
  }
  return pairs;
}

/// The growing set, with the pairs that are missing from it.
struct Cover {
  std::vector<Combination> chosen;
  std::set<Combination> known;
  std::set<Pair> covered;

  void Take(const Combination& combination) {
    if (!known.insert(combination).second) return;
    chosen.push_back(combination);
    for (const Pair& pair : PairsOf(combination)) covered.insert(pair);
  }
  size_t Gain(const Combination& combination) const {
    size_t gain = 0;
    for (const Pair& pair : PairsOf(combination)) gain += covered.count(pair) == 0;
    return gain;
  }

  /// Puts into the axes that are not in `kept` what covers most.
  Combination Enrich(Combination combination, const std::set<size_t>& kept) const {
    size_t best = Gain(combination);
    for (size_t axis = 0; axis < combination.size(); ++axis) {
      if (kept.count(axis) > 0) continue;
      const Combination before = combination;
      for (size_t choice = 0; choice < Axes()[axis].size(); ++choice) {
        Combination other = With(before, {axis, choice});
        const size_t gain = Gain(other);
        if (gain <= best || !IsLegal(other)) continue;
        best = gain;
        combination = std::move(other);
      }
    }
    return combination;
  }
};

}  // namespace

JobSpec JobOf(const Combination& combination) {
  JobSpec job;
  job.name = "matrix";
  job.model.layers = 4;
  job.model.width = 32;
  job.model.heads = 4;
  job.model.vocab_size = 50;
  job.model.context = 16;
  job.data.train = {"made up"};
  job.schedule.kind = "constant";
  job.schedule.warmup_steps = 0;
  job.train.steps = 10;
  job.train.global_batch = 8;
  job.train.precision = "fp32";
  job.train.eval_every_steps = 0;
  job.train.log_every_steps = 1000;
  job.checkpoint.every_steps = 0;
  job.resources.ranks = 1;
  job.resources.threads_per_rank = 1;
  job.resources.micro_batch = 2;
  job.resources.recompute = "none";
  job.resources.device = "cpu";
  for (size_t axis = 0; axis < combination.size(); ++axis) {
    Axes()[axis][combination[axis]].apply(job);
  }
  return job;
}

std::string NameOf(const Combination& combination) {
  std::string name = Axes()[0][combination[0]].name;
  for (size_t axis = 1; axis < combination.size(); ++axis) {
    if (combination[axis] > 0) name += ", " + Axes()[axis][combination[axis]].name;
  }
  return name;
}

bool IsLegal(const Combination& combination) {
  static auto* const known = new std::map<Combination, bool>;
  const auto [entry, fresh] = known->try_emplace(combination, false);
  if (fresh) {
    const JobSpec job = JobOf(combination);
    entry->second = job.resources.ranks <= kMostRanks && ValidateJob(job).ok();
  }
  return entry->second;
}

Combination Without(const Combination& combination, const std::function<bool(Effect)>& leave_out) {
  const bool in_bits = JobOf(combination).resources.activation_bits > 0;
  Combination plain = combination;
  for (size_t axis = 0; axis < plain.size(); ++axis) {
    Effect effect = Axes()[axis][plain[axis]].effect;
    if (effect == Effect::kKeepsOther) effect = in_bits ? Effect::kOwnTraining : Effect::kSameBits;
    if (leave_out(effect)) plain[axis] = 0;
  }
  return plain;
}

std::vector<Combination> CoveringSet(size_t least) {
  Cover cover;
  const std::vector<Place> places = Places();
  for (const Place& place : places) {
    if (auto alone = Legalize(With(Plain(), place), {place.first})) cover.Take(*alone);
  }
  for (size_t a = 0; a < places.size(); ++a) {
    for (size_t b = a + 1; b < places.size(); ++b) {
      const std::set<size_t> kept = {places[a].first, places[b].first};
      if (kept.size() < 2 || cover.covered.count({places[a], places[b]}) > 0) continue;
      const auto both = Legalize(With(With(Plain(), places[a]), places[b]), kept);
      if (both) cover.Take(cover.Enrich(*both, kept));
    }
  }
  PhiloxStream random(PhiloxKey{17, 0, 0});
  for (int tries = 0; cover.chosen.size() < least && tries < 100000; ++tries) {
    Combination combination;
    // Half of the axes plain: few combinations of everything are legal.
    for (const Axis& axis : Axes()) {
      combination.push_back(random.Below(2) == 0 ? 0 : random.Below(axis.size()));
    }
    if (IsLegal(combination)) cover.Take(combination);
  }
  return cover.chosen;
}

}  // namespace weft::testing
