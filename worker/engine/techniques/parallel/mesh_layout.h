#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "common/spec/plan.h"

namespace weft::engine {

/// The axes of a mesh, from ranks that are next to each other to those farthest apart. Tensor
/// parallelism exchanges activations within every layer and wants the fastest links, so its ranks
/// are consecutive; context and expert parallelism exchange once or twice a layer; data parallelism
/// once a step, overlapped with the backward pass; a pipeline moves the least, one activation a
/// micro-batch, and so its stages may be on different machines (Narayanan et al. 2021, "Efficient
/// Large-Scale Language Model Training on GPU Clusters", section 3; Megatron's order
/// tp-cp-ep-dp-pp).
enum class MeshAxis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
inline constexpr int kMeshAxes = 5;

/// "tensor", "context", ...
std::string_view MeshAxisName(MeshAxis axis);

/// Some of the axes.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<MeshAxis> axes) {
    for (MeshAxis axis : axes) *this = With(axis);
  }
  constexpr AxisSet With(MeshAxis axis) const {
    AxisSet more = *this;
    more.bits_ |= 1u << static_cast<unsigned>(axis);
    return more;
  }
  constexpr bool Has(MeshAxis axis) const {
    return (bits_ >> static_cast<unsigned>(axis) & 1) != 0;
  }
  bool operator==(const AxisSet&) const = default;

 private:
  unsigned bits_ = 0;
};

/// The ranks that hold the same parameters, and so add their gradients: those that differ in the
/// sequences or the part of a sequence that they see. Experts excepted, which each rank of the
/// expert axis has of its own.
inline constexpr AxisSet kGradientAxes = {MeshAxis::kData, MeshAxis::kContext, MeshAxis::kExpert};

/// Subsets of these: the data-parallel ranks, and those with the same experts.
inline constexpr AxisSet kSequenceAxes = {MeshAxis::kData, MeshAxis::kExpert};
inline constexpr AxisSet kSameExpertAxes = {MeshAxis::kData, MeshAxis::kContext};

/// Along which axes ranks bring gradients together in every step, those of experts along the second
/// ones, and along which they meet in outer steps.
struct ReductionAxes {
  AxisSet gradients = kGradientAxes;
  AxisSet same_experts = kSameExpertAxes;
  AxisSet outer = {};
};

/// The axes of reductions: with `local_steps`, context-parallel ranks make steps together, as one
/// worker, and workers meet in outer steps.
constexpr ReductionAxes ReductionAxesOf(bool local_steps) {
  if (!local_steps) return {};
  return {{MeshAxis::kContext}, {MeshAxis::kContext}, {MeshAxis::kData}};
}

/// Which rank is where in a mesh. Rank = coordinates, the tensor axis running fastest, in the order
/// of MeshAxis. A pure value.
class MeshLayout {
 public:
  /// The degrees of `mesh` are at least 1.
  explicit MeshLayout(const Mesh& mesh);

  int64_t ranks() const;
  int64_t degree(MeshAxis axis) const { return degrees_[static_cast<size_t>(axis)]; }
  /// Ranks of a group along all of `axes`.
  int64_t degree(AxisSet axes) const;

  using Coordinates = std::array<int64_t, kMeshAxes>;
  Coordinates CoordinatesOf(int64_t rank) const;
  int64_t CoordinateOf(int64_t rank, MeshAxis axis) const {
    return CoordinatesOf(rank)[static_cast<size_t>(axis)];
  }
  int64_t RankAt(const Coordinates& coordinates) const;

  /// Its number among the data-parallel ranks.
  int64_t ReplicaOf(int64_t rank) const {
    return CoordinateOf(rank, MeshAxis::kData) * degree(MeshAxis::kExpert) +
           CoordinateOf(rank, MeshAxis::kExpert);
  }

  /// The group of `rank` along `axes`: the ranks that differ from it in these coordinates only, in
  /// rising order. Each rank is in one group, and groups of disjoint axes share one rank at most.
  std::vector<int64_t> Group(int64_t rank, AxisSet axes) const;

  /// The smallest rank of Group: a color for Collective::Split.
  int64_t GroupColor(int64_t rank, AxisSet axes) const;

  /// "data", "context and data", ...: those of the axes along which there is more than one rank.
  std::string Name(AxisSet axes) const;

 private:
  std::array<int64_t, kMeshAxes> degrees_;
};

}  // namespace weft::engine
