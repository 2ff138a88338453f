#include "coordinator/scheduler/elastic_shares.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace weft::coordinator {

void ShareCompute(std::vector<ShareClaim> claims, int64_t total, double exponent) {
  std::stable_sort(claims.begin(), claims.end(), [](const ShareClaim& a, const ShareClaim& b) {
    return a.priority != b.priority ? a.priority > b.priority : a.at < b.at;
  });
  auto jobs = static_cast<double>(claims.size());
  for (const ShareClaim& claim : claims) {
    const double part = static_cast<double>(total) * (1 - std::pow((jobs - 1) / jobs, exponent));
    const int64_t most = claim.most > 0 ? claim.most : std::numeric_limits<int64_t>::max();
    auto share = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(std::max(part, 1.0))));
    share = std::min(std::max(share, claim.least), most);
    const bool beyond = share > total;
    *claim.share = {share, beyond};
    if (!beyond) total -= share;
    jobs -= 1;
  }
}

}  // namespace weft::coordinator
