#include "worker/engine/techniques/parallel/mesh_groups.h"

#include <algorithm>
#include <string>

#include "common/check.h"

namespace weft::engine {

Result<MeshGroups> MeshGroups::Make(Collective* world, const MeshLayout& layout,
                                    const std::vector<AxisSet>& sets) {
  if (world->size() != layout.ranks()) {
    return InvalidError("a mesh of " + std::to_string(layout.ranks()) +
                        " ranks cannot be laid over " + std::to_string(world->size()));
  }
  MeshGroups groups;
  groups.world_ = world;
  for (const AxisSet& axes : sets) {
    Member member{axes, layout.Name(axes), nullptr, nullptr};
    const auto same = std::find_if(groups.members_.begin(), groups.members_.end(),
                                   [&](const Member& other) { return other.name == member.name; });
    if (layout.degree(axes) == layout.ranks() && layout.ranks() > 1) {
      member.group = world;
    } else if (same != groups.members_.end()) {
      member.group = same->group;
    } else if (layout.degree(axes) > 1) {
      WEFT_ASSIGN_OR_RETURN(member.owned,
                            world->Split(layout.GroupColor(world->rank(), axes), member.name));
      member.group = member.owned.get();
    }
    groups.members_.push_back(std::move(member));
  }
  return Result<MeshGroups>(std::move(groups));
}

Collective* MeshGroups::Along(AxisSet axes) const {
  for (const Member& member : members_) {
    if (member.axes == axes) return member.group;
  }
  WEFT_CHECK(false, "no group was made along these axes");
  return nullptr;
}

std::vector<AxisAccount> MeshGroups::Accounts() const {
  std::vector<AxisAccount> accounts = {{"world", &world_->account()}};
  for (const Member& member : members_) {
    if (member.owned != nullptr) {
      accounts.push_back({member.name, &member.owned->account()});
    } else if (member.group == world_) {
      accounts.front().axis = member.name;
    }
  }
  return accounts;
}

void MeshGroups::Abort() {
  for (const Member& member : members_) {
    if (member.owned != nullptr) member.owned->Abort();
  }
  world_->Abort();
}

}  // namespace weft::engine
