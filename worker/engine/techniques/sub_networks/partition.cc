#include "worker/engine/techniques/sub_networks/partition.h"

#include <cstddef>
#include <numeric>
#include <utility>

#include "common/check.h"
#include "common/rng.h"

namespace weft::engine {

OwnUnits UnitsOfRank(uint64_t seed, int64_t round, const std::string& site, int64_t units,
                     int64_t rank, int64_t ranks) {
  WEFT_CHECK(units >= ranks, "each rank has a unit");
  std::vector<size_t> order(static_cast<size_t>(units));
  std::iota(order.begin(), order.end(), size_t{0});
  PhiloxStream random(
      {seed, static_cast<uint32_t>(round), SiteHash((site + "/sub-networks").c_str())});
  for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random.Below(i)]);
  OwnUnits result;
  result.own.resize(order.size());
  for (size_t i = static_cast<size_t>(rank); i < order.size(); i += static_cast<size_t>(ranks)) {
    result.own[order[i]] = 1;
    ++result.count;
  }
  return result;
}

}  // namespace weft::engine
