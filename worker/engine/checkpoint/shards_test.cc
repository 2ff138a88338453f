// Tensors that ranks shard by rows or columns.

#include <numeric>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "common/formats/safetensors.h"
#include "worker/engine/checkpoint/tensor_files.h"

namespace weft::engine {
namespace {

constexpr char kFolder[] = "/run";

/// A tensor, and which part of it a rank has.
struct Logical {
  std::string name;
  Shape shape;
  int axis = 0;
  std::vector<int64_t> blocks;  ///< Along the axis, each partitioned; none: all have it.
  bool grid = false;            ///< Four ranks are a grid of two rows, which divide the columns.

  Shard Of(int64_t rank, int64_t ranks) const {
    const bool both = grid && ranks == 4;
    const int64_t parts = both ? 2 : ranks, part = rank % parts;
    Shard shard{axis, 0, {}};
    for (int64_t size : blocks) {
      shard.ranges.push_back(
          {shard.extent + size * part / parts, shard.extent + size * (part + 1) / parts});
      shard.extent += size;
    }
    const int64_t width = shape[-1];
    if (!both) return shard;
    return shard.Across({1, width, {{width * (rank / 2) / 2, width * (rank / 2 + 1) / 2}}});
  }
  std::vector<float> Values() const {
    std::vector<float> values(static_cast<size_t>(shape.Elements()));
    std::iota(values.begin(), values.end(), static_cast<float>(name.size()) / 8);
    return values;
  }
};

const std::vector<Logical>& Tensors() {
  static const std::vector<Logical> tensors = {{"stacked", {24, 3}, 0, {8, 8, 8}},
                                               {"columns", {5, 12}, 1, {12}},
                                               {"rows of a grid", {16, 7}, 0, {8, 8}, true},
                                               {"uneven table", {7, 3}, 0, {7}},
                                               {"bias", {9}, 0, {9}},
                                               {"norm", {6}, 0, {}}};
  return tensors;
}

/// What one rank has, its numbers right or all wrong.
struct RankState {
  std::vector<std::vector<float>> values;
  std::vector<NamedTensor> tensors;

  RankState(int64_t rank, int64_t ranks, bool right) {
    for (const Logical& logical : Tensors()) {
      const Shard shard = ranks == 1 ? Shard{} : logical.Of(rank, ranks);
      const Shape shape = shard.PartShape(logical.shape);
      std::vector<float> own(static_cast<size_t>(shape.Elements()), -1.0f);
      const std::vector<float> all = logical.Values();
      shard.ForEachRun(shape, [&](int64_t to, int64_t from, int64_t count) {
        for (int64_t i = 0; i < count && right; ++i) own[to + i] = all[from + i];
      });
      values.push_back(std::move(own));
      NamedTensor tensor{logical.name, TensorView(values.back().data(), DType::kF32, shape)};
      if (!shard.whole()) tensor.part = {.whole = logical.shape, .first = 0, .shard = shard};
      tensors.push_back(std::move(tensor));
    }
  }
};

CheckpointManifest Write(Env& env, int64_t ranks) {
  CheckpointManifest manifest;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    RankState state(rank, ranks, true);
    if (rank > 0) std::erase_if(state.tensors, [](const NamedTensor& t) { return !t.part; });
    auto file = WriteTensorFile(env, kFolder, rank, ranks, state.tensors);
    EXPECT_TRUE(file.ok()) << file.status().message();
    manifest.files.push_back(*file);
  }
  return manifest;
}

TEST(Shards, AreReadByAnyNumberOfRanksBitForBit) {
  for (const int64_t writers : {1, 2, 4}) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs(kFolder).ok());
    const CheckpointManifest manifest = Write(env, writers);
    for (const int64_t readers : {1, 2, 4}) {
      for (int64_t rank = 0; rank < readers; ++rank) {
        RankState loaded(rank, readers, false);
        const Status status = LoadTensors(env, kFolder, manifest, loaded.tensors);
        EXPECT_TRUE(status.ok()) << status.message();
        EXPECT_EQ(loaded.values, RankState(rank, readers, true).values)
            << writers << " to " << readers;
      }
    }
  }
}

TEST(Shards, ThatAreMissingOrTwiceThereAreNotTakenForTheWhole) {
  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs(kFolder).ok());
  CheckpointManifest manifest = Write(env, 2);
  RankState whole(0, 1, false);
  std::swap(manifest.files[1], manifest.files[0]);
  manifest.files.push_back(manifest.files[0]);
  EXPECT_THAT(LoadTensors(env, kFolder, manifest, whole.tensors).message(),
              testing::HasSubstr("more than once"));
  manifest.files.resize(2);
  manifest.files.erase(manifest.files.begin());
  EXPECT_THAT(LoadTensors(env, kFolder, manifest, whole.tensors).message(),
              testing::HasSubstr("or not all of it"));
}

TEST(Shards, WhoseRangesMakeNoSenseAreCorrupt) {
  for (const char* place :
       {R"({"shape":[5,12],"axis":1,"ranges":[[0,3],[2,5]]})", R"({"shape":[5,12],"axis":1})",
        R"({"shape":[5,12],"axis":1,"ranges":[[7,13]]})",
        R"({"shape":[5,12],"axis":1,"ranges":[[3,3],[4,10]]})",
        R"({"shape":[5,12],"axis":0,"ranges":[[0,5]],"columns":[6,13]})",
        R"({"shape":[5,12],"axis":0,"ranges":[[0,5]],"columns":[6,6]})",
        R"({"shape":[5,12],"axis":0,"ranges":[[0,5]],"columns":6})",
        R"({"shape":[5,12],"axis":1,"ranges":[[0,6]],"columns":[0,12]})",
        R"({"shape":[5,12],"axis":1,"ranges":[]})", R"({"shape":[5,12],"axis":2,"ranges":[[0,6]]})",
        R"({"shape":[5,12],"axis":0,"ranges":[[0,5]]})",
        R"({"shape":[5,12],"axis":-1,"ranges":[[0,6]]})",
        R"({"shape":[5],"axis":1,"ranges":[[0,6]]})", R"({"shape":[5,12],"axis":1,"ranges":[6]})",
        R"({"shape":[5,12],"axis":1,"ranges":{"0":6}})",
        R"({"shape":[5,18446744073709551615],"axis":1,"ranges":[[0,6]]})",
        R"({"shape":[5,12],"axis":1,"ranges":[[0,18446744073709551615]]})",
        R"({"shape":[1,1,1,1,1,1,1,1,1,1,5,12],"axis":1,"ranges":[[0,6]]})", "7"}) {
    FaultEnv env;
    ASSERT_TRUE(env.CreateDirs(kFolder).ok());
    std::vector<float> values(30);
    std::vector<SafetensorsTensor> contents;
    contents.push_back(
        {"columns", SafetensorsType::kF32, {5, 6}, std::as_bytes(std::span(values)), {}});
    const std::string path = std::string(kFolder) + "/file";
    auto written = WriteSafetensors(env, path, std::move(contents),
                                    {{"weft_parts", std::string(R"({"columns":)") + place + "}"}});
    ASSERT_TRUE(written.ok()) << written.status().message();
    CheckpointManifest manifest;
    manifest.files = {{"file", 0, static_cast<int64_t>(written->bytes), written->hash}};
    std::vector<float> into(60);
    const Status status = LoadTensors(env, kFolder, manifest,
                                      {{"columns", TensorView(into.data(), DType::kF32, {5, 12})}});
    EXPECT_EQ(status.code(), StatusCode::kCorrupt) << place << ": " << status.message();
  }
}

}  // namespace
}  // namespace weft::engine
