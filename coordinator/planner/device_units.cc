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

std::vector<JobSpec> WithUnits(std::vector<JobSpec> choices) {
  std::vector<JobSpec> all;
  std::set<std::string> without_units;  // of what was part
  for (JobSpec& choice : choices) {
    if (choice.resources.offload_optimizer != "part") {
      const bool known = !without_units.empty() && without_units.contains(ToJson(choice).dump());
      if (!known) all.push_back(std::move(choice));
      continue;
    }
    // What part itself does not go with, no set of units does.
    if (!ValidateJob(choice).ok()) continue;
    for (Units& units : DeviceUnitSets(ShapeOf(choice).spec)) {
      all.push_back(choice);
      all.back().resources.offload_optimizer = "host";
      all.back().resources.device_updated_units = std::move(units);
      if (all.back().resources.device_updated_units.empty()) {
        without_units.insert(ToJson(all.back()).dump());
      }
    }
  }
  return all;
}

}  // namespace weft::planner
