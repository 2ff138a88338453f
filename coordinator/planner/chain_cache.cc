#include "coordinator/planner/chain_cache.h"

#include <algorithm>

namespace weft::planner {

std::optional<RematPlan> CachedChain::Schedule(int64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto [found, added] = found_.try_emplace(bytes);
  if (!added) return found->second;
  if (std::holds_alternative<std::monostate>(chain_)) {
    if (name_.link_seconds_per_byte) {
      chain_.emplace<OffloadingChain>(name_.stages, name_.bytes, name_.slots,
                                      ChainLink{*name_.link_seconds_per_byte}, stop_);
    } else {
      chain_.emplace<OptimalChain>(name_.stages, name_.bytes, name_.slots, stop_);
    }
  }
  auto* const offloading = std::get_if<OffloadingChain>(&chain_);
  found->second = offloading != nullptr ? offloading->Schedule(bytes)
                                        : std::get<OptimalChain>(chain_).Schedule(bytes);
  return found->second;
}

std::shared_ptr<CachedChain> ChainCache::At(ChainName name) {
  const std::lock_guard lock(mutex_);
  const auto known = std::find_if(chains_.begin(), chains_.end(),
                                  [&](const auto& chain) { return chain->name() == name; });
  if (known != chains_.end()) {
    chains_.splice(chains_.begin(), chains_, known);
  } else {
    chains_.push_front(std::make_shared<CachedChain>(std::move(name), stop_));
    if (chains_.size() > kMost) chains_.pop_back();
  }
  return chains_.front();
}

}  // namespace weft::planner
