// Compressed 2:4 weights against those that the library compressed-tensors has written.
#include "common/formats/two_of_four_bitmask.h"

#include <cstring>
#include <map>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dtype.h"
#include "common/env_fault.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors_index.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

constexpr const char* kFixture =
    WEFT_SOURCE_DIR "/common/formats/testdata/two_of_four_bitmask.safetensors";

template <class T>
std::vector<T> Read(const SafetensorsView& view) {
  std::vector<T> values(view.bytes.size() / sizeof(T));
  std::memcpy(values.data(), view.bytes.data(), view.bytes.size());
  return values;
}

TEST(TwoOfFourBitmask, IsWhatTheLibraryWrites) {
  auto file = SafetensorsFile::Open(Env::Posix(), kFixture);
  ASSERT_TRUE(file.ok()) << file.status().message();
  const auto matrix = Read<float>(*file->Find("matrix"));
  constexpr int64_t kColumns = 20;
  ASSERT_TRUE(KeepsTwoOfFour(matrix, kColumns));
  const TwoOfFourBitmask made = CompressTwoOfFour(matrix, kColumns);
  const TwoOfFourNames names = TwoOfFourNamesOf("f32");
  EXPECT_EQ(made.values, Read<float>(*file->Find(names.compressed)));
  EXPECT_EQ(made.bitmask, Read<uint8_t>(*file->Find(names.bitmask)));
}

TEST(TwoOfFourBitmask, HasTwoNumbersOfEachFour) {
  const std::vector<float> matrix = {0, 0, 0, 0, 0, 0, 5, 0, 0, 1, 0, 2};
  ASSERT_TRUE(KeepsTwoOfFour(matrix, 12));
  const TwoOfFourBitmask made = CompressTwoOfFour(matrix, 12);
  EXPECT_EQ(made.values, (std::vector<float>{0, 0, 0, 5, 1, 2}));
  EXPECT_EQ(made.bitmask, (std::vector<uint8_t>{0b01010011, 0b1010}));
  EXPECT_FALSE(KeepsTwoOfFour(std::vector<float>{1, 2, 0, 3}, 4));
  EXPECT_FALSE(KeepsTwoOfFour(matrix, 6));
}

using Weights = std::map<std::string, std::vector<float>>;

// Zeroes the first and the last of each four neighbours.
void PruneMlps(Weights& weights) {
  for (auto& [name, values] : weights) {
    if (name.find(".mlp.") == std::string::npos) continue;
    for (size_t i = 0; i < values.size(); i += 4) values[i] = values[i + 3] = 0;
  }
}

TEST(CompressedExport, HasThreeTensorsForEachSparseWeight) {
  const std::string start = WEFT_SOURCE_DIR "/tests/parity/testdata/llama/start";
  const ModelSpec model = *ReadModelConfig(Env::Posix(), start, {});
  Weights weights;
  for (const HuggingFaceTensor& tensor : HuggingFaceTensors(model)) {
    size_t count = 1;
    for (const int64_t extent : tensor.shape) count *= static_cast<size_t>(extent);
    for (size_t i = 0; i < count; ++i) {
      weights[tensor.parameter].push_back(static_cast<float>(i % 5 + 1));
    }
  }
  const auto values = [&](const HuggingFaceTensor& tensor) -> Result<std::span<const float>> {
    return std::span<const float>(weights.at(tensor.parameter));
  };
  FaultEnv env;
  ExportOptions options;
  options.compresses = true;
  options.dtype = DType::kBF16;
  EXPECT_THAT(ExportModel(env, "/out", model, values, options).message(),
              HasSubstr("nothing to compress; hint: --format hf"));
  PruneMlps(weights);
  const Status status = ExportModel(env, "/out", model, values, options);
  ASSERT_TRUE(status.ok()) << status.message();

  const Json config = (*ParseJson(*ReadFile(env, "/out/config.json")))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  const Json& sparsity = config["sparsity_config"];
  EXPECT_EQ(sparsity["format"], "sparse-24-bitmask");
  EXPECT_EQ(sparsity["targets"], Json::array({"Linear"}));
  EXPECT_EQ(std::ssize(sparsity["ignore"]), 4 * model.layers + (model.untied_classifier ? 1 : 0));
  auto folder = SafetensorsFolder::Open(env, "/out");
  ASSERT_TRUE(folder.ok());
  const std::string module = "model.layers.0.mlp.down_proj";
  const auto find = [&](const std::string& name) { return folder->Find(name); };
  EXPECT_EQ(find(module + ".weight"), nullptr);
  const TwoOfFourNames names = TwoOfFourNamesOf(module);
  const auto rows = static_cast<uint64_t>(model.width);
  const auto columns = static_cast<uint64_t>(MlpWidth(model));
  EXPECT_EQ(Read<int64_t>(*find(names.shape)),
            (std::vector<int64_t>{model.width, MlpWidth(model)}));
  EXPECT_EQ(find(names.shape)->shape, (std::vector<uint64_t>{2, 1}));
  EXPECT_EQ(find(names.compressed)->shape, (std::vector<uint64_t>{rows, columns / 2}));
  EXPECT_EQ(find(names.compressed)->type, SafetensorsType::kBF16);
  EXPECT_EQ(find(names.bitmask)->shape, (std::vector<uint64_t>{rows, (columns + 7) / 8}));
  const auto compressed = Read<BFloat16>(*find(names.compressed));
  const auto bits = Read<uint8_t>(*find(names.bitmask));
  const std::vector<float>& weight = weights.at(module + ".weight");
  size_t next = 0;
  for (uint64_t row = 0; row < rows; ++row) {
    for (uint64_t column = 0; column < columns; ++column) {
      const bool kept = bits[row * ((columns + 7) / 8) + column / 8] >> (column % 8) & 1;
      ASSERT_EQ(kept ? ToFloat(compressed[next++]) : 0.0f, weight[row * columns + column]);
    }
  }
}

}  // namespace
}  // namespace weft
