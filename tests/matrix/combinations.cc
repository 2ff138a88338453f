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
/// Most ranks of a combination with choices besides the two that it is there for: more ranks than
/// processors take longer than they find.
constexpr int64_t kEnrichedRanks = 2;
constexpr int kOrders = 4;  // more find little more

using Place = std::pair<size_t, size_t>;  // axis, choice

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

/// Pairs of choices of different axes that combinations have.
class Pairs {
 public:
  Pairs() {
    for (const Axis& axis : Axes()) {
      first_.push_back(choices_);
      choices_ += axis.size();
    }
    counts_.resize(choices_ * choices_);
  }

  bool Has(const Place& one, const Place& other) const {
    return counts_[Index(one.first, one.second, other.first, other.second)] > 0;
  }
  void Add(const Combination& combination) {
    ForEach(combination, [&](size_t index) { ++counts_[index]; });
  }
  /// How many more there would be.
  size_t Gain(const Combination& combination) const {
    size_t gain = 0;
    ForEach(combination, [&](size_t index) { gain += counts_[index] == 0 ? 1 : 0; });
    return gain;
  }
  /// Others have all of its pairs, too.
  bool Spares(const Combination& combination) const {
    bool spares = true;
    ForEach(combination, [&](size_t index) { spares &= counts_[index] > 1; });
    return spares;
  }
  void Remove(const Combination& combination) {
    ForEach(combination, [&](size_t index) { --counts_[index]; });
  }

 private:
  /// The place of a pair of choices of two axes, in the order of the axes.
  size_t Index(size_t a, size_t choice, size_t b, size_t other) const {
    return (first_[a] + choice) * choices_ + first_[b] + other;
  }
  template <class Fn>
  void ForEach(const Combination& combination, const Fn& fn) const {
    for (size_t a = 0; a < combination.size(); ++a) {
      for (size_t b = a + 1; b < combination.size(); ++b) {
        fn(Index(a, combination[a], b, combination[b]));
      }
    }
  }

  size_t choices_ = 0;
  std::vector<size_t> first_;  // of an axis, among all choices
  std::vector<int> counts_;    // combinations that have a pair
};

/// The growing set, with the pairs that are in it.
class Cover {
 public:
  std::vector<Combination> chosen;
  std::set<Combination> known;
  Pairs covered;

  void Take(const Combination& combination) {
    if (!known.insert(combination).second) return;
    chosen.push_back(combination);
    covered.Add(combination);
  }

  /// Puts into the axes that are not in `kept` what covers most: of a few orders of the axes, which
  /// decide what is still legal later, the best one.
  Combination Enrich(const Combination& combination, const std::set<size_t>& kept) const {
    std::vector<size_t> order;
    for (size_t axis = 0; axis < combination.size(); ++axis) {
      if (kept.count(axis) == 0) order.push_back(axis);
    }
    Combination best = EnrichInOrder(combination, order);
    PhiloxStream random(PhiloxKey{5, static_cast<uint32_t>(chosen.size()), 0});
    for (int tries = 1; tries < kOrders; ++tries) {
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
      Combination other = EnrichInOrder(combination, order);
      if (covered.Gain(other) > covered.Gain(best)) best = std::move(other);
    }
    return best;
  }

 private:
  /// What covers most of one axis after the other, twice: what the later ones got may let the
  /// earlier ones have more.
  Combination EnrichInOrder(Combination combination, const std::vector<size_t>& order) const {
    size_t best = covered.Gain(combination);
    const int64_t most_ranks = std::max(kEnrichedRanks, JobOf(combination).resources.ranks);
    for (int pass = 0; pass < 2; ++pass) {
      for (const size_t axis : order) {
        const Combination before = combination;
        for (size_t choice = 0; choice < Axes()[axis].size(); ++choice) {
          Combination other = With(before, {axis, choice});
          const size_t gain = covered.Gain(other);
          if (gain <= best || !IsLegal(other)) continue;
          if (JobOf(other).resources.ranks > most_ranks) continue;
          best = gain;
          combination = std::move(other);
        }
      }
    }
    return combination;
  }
};

/// Leaves out, of most ranks first, combinations whose pairs others have.
std::vector<Combination> WithoutSpare(std::vector<Combination> all, size_t least) {
  Pairs counts;
  for (const Combination& combination : all) counts.Add(combination);
  std::vector<Combination> by_ranks = all;
  std::stable_sort(by_ranks.begin(), by_ranks.end(), [](const auto& one, const auto& other) {
    return JobOf(one).resources.ranks > JobOf(other).resources.ranks;
  });
  std::set<Combination> spare;
  for (const Combination& combination : by_ranks) {
    if (all.size() - spare.size() > least && counts.Spares(combination)) {
      counts.Remove(combination);
      spare.insert(combination);
    }
  }
  std::erase_if(all, [&](const Combination& one) { return spare.contains(one); });
  return all;
}

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
  const bool compressed = JobOf(combination).resources.activation_bits > 0;
  Combination plain = combination;
  for (size_t axis = 0; axis < plain.size(); ++axis) {
    Effect effect = Axes()[axis][plain[axis]].effect;
    if (effect == Effect::kKeepsOther)
      effect = compressed ? Effect::kOwnTraining : Effect::kSameBits;
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
      if (kept.size() < 2 || cover.covered.Has(places[a], places[b])) continue;
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
  return WithoutSpare(std::move(cover.chosen), least);
}

}  // namespace weft::testing
