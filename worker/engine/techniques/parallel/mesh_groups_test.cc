#include "worker/engine/techniques/parallel/mesh_groups.h"

#include <algorithm>
#include <functional>
#include <map>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

using testing::ElementsAre;

constexpr MeshAxis kAxes[] = {MeshAxis::kTensor, MeshAxis::kContext, MeshAxis::kExpert,
                              MeshAxis::kData, MeshAxis::kPipeline};

const std::vector<std::vector<MeshAxis>> kAxisLists = {
    {MeshAxis::kTensor},
    {MeshAxis::kContext},
    {MeshAxis::kExpert},
    {MeshAxis::kData},
    {MeshAxis::kPipeline},
    {MeshAxis::kData, MeshAxis::kContext, MeshAxis::kExpert},
    {MeshAxis::kTensor, MeshAxis::kPipeline},
    {std::begin(kAxes), std::end(kAxes)}};

/// Calls fn with every way to lay `ranks` ranks out along five axes.
void ForEachMesh(int64_t ranks, const std::function<void(const Mesh&)>& fn) {
  for (int64_t data = 1; data <= ranks; ++data) {
    for (int64_t tensor = 1; tensor <= ranks; ++tensor) {
      for (int64_t pipeline = 1; pipeline <= ranks; ++pipeline) {
        for (int64_t context = 1; context <= ranks; ++context) {
          const int64_t others = data * tensor * pipeline * context;
          if (ranks % others == 0) fn({data, tensor, pipeline, context, ranks / others});
        }
      }
    }
  }
}

TEST(MeshLayout, EveryRankIsInOneGroupAlongAnyAxesOfAnyMesh) {
  int meshes = 0;
  for (const int64_t ranks : {1, 2, 6, 8, 12, 16, 24}) {
    ForEachMesh(ranks, [&](const Mesh& mesh) {
      ++meshes;
      const MeshLayout layout(mesh);
      ASSERT_EQ(layout.ranks(), ranks);
      std::set<MeshLayout::Coordinates> places;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const MeshLayout::Coordinates place = layout.CoordinatesOf(rank);
        places.insert(place);
        ASSERT_EQ(layout.RankAt(place), rank);
      }
      ASSERT_EQ(static_cast<int64_t>(places.size()), ranks);
      for (const std::vector<MeshAxis>& list : kAxisLists) {
        AxisSet axes;
        for (const MeshAxis axis : list) axes = axes.With(axis);
        std::map<int64_t, int> members;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const std::vector<int64_t> group = layout.Group(rank, axes);
          // By definition: those with the same other coordinates.
          std::vector<int64_t> expected;
          for (int64_t other = 0; other < ranks; ++other) {
            bool same = true;
            for (const MeshAxis axis : kAxes) {
              const auto i = static_cast<size_t>(axis);
              const bool within = std::find(list.begin(), list.end(), axis) != list.end();
              same = same &&
                     (within || layout.CoordinatesOf(other)[i] == layout.CoordinatesOf(rank)[i]);
            }
            if (same) expected.push_back(other);
          }
          ASSERT_EQ(group, expected);
          ASSERT_EQ(static_cast<int64_t>(group.size()), layout.degree(axes));
          ASSERT_EQ(layout.GroupColor(rank, axes), group.front());
          if (rank == group.front()) {
            for (int64_t member : group) ++members[member];
          }
        }
        ASSERT_EQ(static_cast<int64_t>(members.size()), ranks);
        for (const auto& [rank, count] : members) ASSERT_EQ(count, 1) << rank;
      }
    });
  }
  EXPECT_GT(meshes, 100);
}

TEST(MeshLayout, TensorRanksAreNeighboursAndStagesApart) {
  const MeshLayout layout({.data = 2, .tensor = 2, .pipeline = 2});
  EXPECT_THAT(layout.Group(5, {MeshAxis::kTensor}), ElementsAre(4, 5));
  EXPECT_THAT(layout.Group(5, {MeshAxis::kData}), ElementsAre(5, 7));
  EXPECT_THAT(layout.Group(5, {MeshAxis::kPipeline}), ElementsAre(1, 5));
  EXPECT_THAT(layout.Group(5, {MeshAxis::kData, MeshAxis::kTensor}), ElementsAre(4, 5, 6, 7));
  EXPECT_EQ(layout.Name(kGradientAxes), "data") << "the others have one rank";
  EXPECT_EQ(MeshLayout({.data = 2, .context = 2}).Name(kGradientAxes), "context and data");
}

TEST(MeshLayout, RanksThatShareExpertsSeeDifferentSequences) {
  const MeshLayout layout({.data = 2, .expert = 4});
  for (int64_t rank = 0; rank < 8; ++rank) EXPECT_EQ(layout.ReplicaOf(rank), rank);
  EXPECT_EQ(layout.degree(kSequenceAxes), 8);
  EXPECT_THAT(layout.Group(6, {MeshAxis::kExpert}), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(layout.Group(6, kSameExpertAxes), ElementsAre(2, 6));
  EXPECT_EQ(layout.Name(kGradientAxes), "expert and data");
}

TEST(MeshGroups, AddAlongTheirAxesAndCostNothingAlongNone) {
  const Mesh mesh{.data = 2, .tensor = 2};
  RunRanks(4, std::chrono::seconds(20), [&](Collective& world) {
    auto groups = MeshGroups::Make(&world, MeshLayout(mesh),
                                   {{MeshAxis::kTensor},
                                    kGradientAxes,
                                    {MeshAxis::kPipeline},
                                    {MeshAxis::kTensor, MeshAxis::kData},
                                    kSameExpertAxes});
    ASSERT_TRUE(groups.ok()) << groups.status().message();
    EXPECT_EQ(groups->Along({MeshAxis::kPipeline}), nullptr);
    EXPECT_EQ(groups->Along({MeshAxis::kTensor, MeshAxis::kData}), &world);
    EXPECT_EQ(groups->Along(kSameExpertAxes), groups->Along(kGradientAxes)) << "the same ranks";
    EXPECT_EQ(groups->Accounts().size(), 3u) << "world, tensor, data";
    EXPECT_EQ(groups->Accounts().front().axis, "tensor and data");
    float value = static_cast<float>(1 << world.rank());
    const TensorView view(&value, DType::kF32, {1});
    Collective* tensor = groups->Along({MeshAxis::kTensor});
    EXPECT_EQ(tensor->name(), "tensor");
    ASSERT_TRUE(tensor->AllReduce(Stream{}, view).Wait(Stream{}).ok());
    EXPECT_EQ(value, world.rank() < 2 ? 3 : 12);
    ASSERT_TRUE(groups->Along(kGradientAxes)->AllReduce(Stream{}, view).Wait(Stream{}).ok());
    EXPECT_EQ(value, 15);
    EXPECT_EQ(MeshGroups::Make(&world, MeshLayout({.data = 3}), {}).status().code(),
              StatusCode::kInvalid);
    ASSERT_TRUE(world.Barrier().ok());
    groups->Abort();
    EXPECT_EQ(tensor->Barrier().code(), StatusCode::kUnavailable);
    EXPECT_EQ(world.Barrier().code(), StatusCode::kUnavailable);
  });
}

}  // namespace
}  // namespace weft::engine
