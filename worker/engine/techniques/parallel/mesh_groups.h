#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "worker/engine/comm/collective.h"
#include "worker/engine/techniques/parallel/mesh_layout.h"

namespace weft::engine {

/// The groups of one rank along the axes of a mesh, made once from the group of all ranks. Axes
/// along which there is only one rank have no group and cost nothing; axes that span all ranks
/// share the group of all, as do sets that differ by axes of one rank share theirs.
class MeshGroups {
 public:
  /// `world` has the ranks of the layout and outlives this. All ranks ask for the same `sets`.
  /// kInvalid when world and layout differ.
  static Result<MeshGroups> Make(Collective* world, const MeshLayout& layout,
                                 const std::vector<AxisSet>& sets);

  /// The group along `axes`, one of the sets asked for; null when the rank is alone in it.
  Collective* Along(AxisSet axes) const;

  /// The accounts of all groups. Those of the world are of the axes that span all ranks; without
  /// such axes they are called "world".
  std::vector<AxisAccount> Accounts() const;

  /// Leaves all groups, the world among them. From any thread.
  void Abort();

 private:
  struct Member {
    AxisSet axes;
    std::string name;
    Collective* group = nullptr;
    std::unique_ptr<Collective> owned;
  };
  Collective* world_ = nullptr;
  std::vector<Member> members_;
};

}  // namespace weft::engine
