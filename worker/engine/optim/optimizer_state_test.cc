#include "worker/engine/optim/optimizer_state.h"

#include <gtest/gtest.h>

#include "common/env_fault.h"
#include "worker/engine/checkpoint/tensor_files.h"

namespace weft::engine {
namespace {

constexpr char kFolder[] = "/run";

/// State of one parameter of 10 numbers: some in bytes with a scale for every four, some in f32.
struct Kept {
  Kept() {
    context.allocator = &allocator;
    parameters.Register("w", {10}, ParameterRole::kNorm);
    WEFT_CHECK(parameters.Allocate(context, true).ok(), "allocate");
    const ParameterPart part = WholePart(parameters, 0);
    state.Add("small/w", parameters, part, {.dtype = DType::kU8, .scale_block = 4});
    state.Add("large/w", parameters, part);
    WEFT_CHECK(state.Allocate(context).ok(), "allocate");
  }

  Allocator allocator;
  Context context;
  ParameterSet parameters;
  OptimizerState state;
};

TEST(OptimizerStateTest, ATensorIsStoredAndSavedWithItsScales) {
  Kept kept, restored;
  EXPECT_EQ(kept.state[0].dtype, DType::kU8);
  EXPECT_EQ(kept.state[1].dtype, DType::kF32);
  const std::vector<NamedTensor> tensors = kept.state.Named();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "small/w");
  EXPECT_EQ(tensors[1].name, "small/w/scales");
  EXPECT_EQ(tensors[1].view.shape, Shape({3}));
  size_t bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    EXPECT_EQ(tensor.parameter, 0);
    auto* numbers = static_cast<uint8_t*>(tensor.view.data);
    for (size_t i = 0; i < tensor.view.Bytes(); ++i) {
      EXPECT_EQ(numbers[i], 0);
      numbers[i] = static_cast<uint8_t>(++bytes);
    }
  }
  EXPECT_EQ(bytes, 10u + 3 * 4 + 10 * 4) << "each has memory of its own";

  FaultEnv env;
  ASSERT_TRUE(env.CreateDirs(kFolder).ok());
  auto written = WriteTensorFile(env, kFolder, 0, 1, tensors);
  ASSERT_TRUE(written.ok()) << written.status().message();
  CheckpointManifest manifest;
  manifest.files = {*written};
  const Status loaded = LoadTensors(env, kFolder, manifest, restored.state.Named());
  ASSERT_TRUE(loaded.ok()) << loaded.message();
  bytes = 0;
  for (const NamedTensor& tensor : restored.state.Named()) {
    const auto* numbers = static_cast<const uint8_t*>(tensor.view.data);
    for (size_t i = 0; i < tensor.view.Bytes(); ++i) {
      EXPECT_EQ(numbers[i], static_cast<uint8_t>(++bytes));
    }
  }
}

}  // namespace
}  // namespace weft::engine
