#include "coordinator/planner/device_units.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "common/model/model_shape.h"
#include "common/model/streamed_units.h"
#include "common/spec/spec_json.h"

namespace weft::planner {
namespace {

constexpr size_t kMostSets = 4096;

using Units = std::vector<int64_t>;

/// The trained blocks, as units in their order, by their kind.
std::vector<Units> KindsOf(const std::vector<StreamedUnit>& units) {
  std::map<std::tuple<int64_t, int64_t, int64_t, int64_t>, Units> kinds;
  for (size_t u = 1; u + 1 < units.size(); ++u) {
    const StreamedUnit& unit = units[u];
    if (unit.trained == 0) continue;
    kinds[{unit.trained, unit.vectors, unit.matrices, unit.in_tiles}].push_back(
        static_cast<int64_t>(u));
  }
  std::vector<Units> each;
  for (auto& [kind, blocks] : kinds) each.push_back(std::move(blocks));
  size_t sets = 4;
  for (const Units& blocks : each) sets *= std::min(blocks.size() + 1, kMostSets);
  if (sets <= kMostSets || each.empty()) return each;
  Units all;
  for (const Units& blocks : each) all.insert(all.end(), blocks.begin(), blocks.end());
  std::sort(all.begin(), all.end());
  return {all};
}

/// Each of `sets` with the first 0, 1, ... of `blocks`.
std::vector<Units> WithFirst(const std::vector<Units>& sets, const Units& blocks) {
  std::vector<Units> more;
  for (const Units& set : sets) {
    for (auto end = blocks.begin();; ++end) {
      more.push_back(set);
      more.back().insert(more.back().end(), blocks.begin(), end);
      if (end == blocks.end()) break;
    }
  }
  return more;
}

}  // namespace

std::vector<Units> DeviceUnitSets(const ModelSpec& model) {
  const std::vector<StreamedUnit> units = StreamedUnits(model);
  std::vector<Units> sets = {{}};
  for (const int64_t end : {int64_t{0}, static_cast<int64_t>(std::ssize(units)) - 1}) {
    if (units[static_cast<size_t>(end)].trained > 0) sets = WithFirst(sets, {end});
  }
  for (const Units& blocks : KindsOf(units)) sets = WithFirst(sets, blocks);
  int64_t trained = 0;
  for (const StreamedUnit& unit : units) trained += unit.trained;
  // The host updates something.
  std::erase_if(sets, [&](const Units& set) { return SumOfUnits(units, set).trained == trained; });
  for (Units& set : sets) std::sort(set.begin(), set.end());
  const auto kept = [&](const Units& set) { return SumOfUnits(units, set).trained; };
  std::stable_sort(sets.begin(), sets.end(),
                   [&](const Units& a, const Units& b) { return kept(a) > kept(b); });
  return sets;
}

std::vector<Units> ResidentUnitSets(const ModelSpec& model) {
  const int64_t head = std::ssize(StreamedUnits(model)) - 1, blocks = head - 1;
  std::vector<Units> sets;
  for (int64_t count = blocks; count >= 0; --count) {
    const int64_t among = count < blocks ? blocks - 1 : blocks;
    Units spread;
    for (int64_t i = 0; i < count; ++i) spread.push_back(1 + (2 * i + 1) * among / (2 * count));
    for (const bool with_head : {true, false}) {
      for (const bool with_tables : {true, false}) {
        if (count == blocks && with_head && with_tables) continue;  // nothing comes in every pass
        sets.push_back(spread);
        if (with_tables) sets.back().insert(sets.back().begin(), 0);
        if (with_head) sets.back().push_back(head);
      }
    }
  }
  return sets;
}

std::vector<JobSpec> WithUnits(std::vector<JobSpec> choices) {
  std::vector<JobSpec> all;
  std::set<std::string> without_units;  // of what was part
  const auto add_each = [&](const JobSpec& choice, std::string ResourceSpec::*place,
                            const std::vector<Units>& sets, Units ResourceSpec::*units) {
    for (const Units& set : sets) {
      all.push_back(choice);
      all.back().resources.*place = "host";
      all.back().resources.*units = set;
      if (set.empty()) without_units.insert(ToJson(all.back()).dump());
    }
  };
  for (JobSpec& choice : choices) {
    const ResourceSpec& resources = choice.resources;
    const bool updated = resources.offload_optimizer == "part";
    if (!updated && resources.offload_parameters != "part") {
      const bool known = !without_units.empty() && without_units.contains(ToJson(choice).dump());
      if (!known) all.push_back(std::move(choice));
      continue;
    }
    // What part itself does not go with, no set of units does.
    if (!ValidateJob(choice).ok()) continue;
    const ModelSpec model = ShapeOf(choice).spec;
    if (updated) {
      add_each(choice, &ResourceSpec::offload_optimizer, DeviceUnitSets(model),
               &ResourceSpec::device_updated_units);
    } else {
      add_each(choice, &ResourceSpec::offload_parameters, ResidentUnitSets(model),
               &ResourceSpec::resident_units);
    }
  }
  return all;
}

}  // namespace weft::planner
