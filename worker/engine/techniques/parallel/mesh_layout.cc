#include "worker/engine/techniques/parallel/mesh_layout.h"

#include "common/check.h"

namespace weft::engine {
namespace {

constexpr std::array<MeshAxis, kMeshAxes> kAllAxes = {
    MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kExpert, MeshAxis::kData, MeshAxis::kPipeline};

}  // namespace

std::string_view MeshAxisName(MeshAxis axis) {
  switch (axis) {
    case MeshAxis::kTensor:
      return "tensor";
    case MeshAxis::kContext:
      return "context";
    case MeshAxis::kExpert:
      return "expert";
    case MeshAxis::kData:
      return "data";
    case MeshAxis::kPipeline:
      return "pipeline";
  }
  return "?";
}

MeshLayout::MeshLayout(const Mesh& mesh)
    : degrees_{mesh.tensor, mesh.context, mesh.expert, mesh.data, mesh.pipeline} {
  for (int64_t degree : degrees_) WEFT_CHECK(degree >= 1, "a degree of the mesh is below 1");
}

int64_t MeshLayout::ranks() const {
  int64_t count = 1;
  for (int64_t degree : degrees_) count *= degree;
  return count;
}

int64_t MeshLayout::degree(AxisSet axes) const {
  int64_t count = 1;
  for (MeshAxis axis : kAllAxes) count *= axes.Has(axis) ? degree(axis) : 1;
  return count;
}

MeshLayout::Coordinates MeshLayout::CoordinatesOf(int64_t rank) const {
  Coordinates coordinates{};
  for (size_t axis = 0; axis < degrees_.size(); ++axis) {
    coordinates[axis] = rank % degrees_[axis];
    rank /= degrees_[axis];
  }
  return coordinates;
}

int64_t MeshLayout::RankAt(const Coordinates& coordinates) const {
  int64_t rank = 0;
  for (size_t axis = degrees_.size(); axis-- > 0;) rank = rank * degrees_[axis] + coordinates[axis];
  return rank;
}

std::vector<int64_t> MeshLayout::Group(int64_t rank, AxisSet axes) const {
  std::vector<int64_t> group = {GroupColor(rank, axes)};
  int64_t stride = 1;
  for (MeshAxis axis : kAllAxes) {
    if (axes.Has(axis)) {
      const size_t before = group.size();
      for (int64_t step = 1; step < degree(axis); ++step) {
        for (size_t i = 0; i < before; ++i) group.push_back(group[i] + step * stride);
      }
    }
    stride *= degree(axis);
  }
  return group;
}

int64_t MeshLayout::GroupColor(int64_t rank, AxisSet axes) const {
  Coordinates coordinates = CoordinatesOf(rank);
  for (MeshAxis axis : kAllAxes) {
    if (axes.Has(axis)) coordinates[static_cast<size_t>(axis)] = 0;
  }
  return RankAt(coordinates);
}

std::string MeshLayout::Name(AxisSet axes) const {
  std::string name;
  for (MeshAxis axis : kAllAxes) {
    if (!axes.Has(axis) || degree(axis) == 1) continue;
    if (!name.empty()) name += " and ";
    name += MeshAxisName(axis);
  }
  return name;
}

}  // namespace weft::engine
