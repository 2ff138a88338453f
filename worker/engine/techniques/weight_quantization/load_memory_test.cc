// Memory of the host while a folder is read and its weights are quantised.
#include <algorithm>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

#include "worker/engine/models/weights.h"
#include "worker/engine/testing/heap_peak.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

// One tensor at a time is there as numbers: as it is read, and what has been drawn for it before.
void ExpectToReadInTheMemoryOfWords(ModelSpec model) {
  if (HeapPeak::InUse() == 0) GTEST_SKIP() << "a sanitizer has its own heap";
  const std::string folder = ::testing::TempDir() + "quantized_load";
  model.family = "llama";
  model.width = 256;
  model.heads = 4;
  model.peft.method = "lora";
  ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
  options.with_gradients = false;
  options.block_memory_policy.assign(static_cast<size_t>(model.layers), "keep");
  {
    const TinyRun whole(model, options);
    ASSERT_TRUE(ExportWeights(Env::Posix(), folder, *whole.model, {}).ok());
  }
  model.weight_quantization.type = "nf4";
  HeapPeak peak;
  const TinyRun run(model, options);
  const Status imported = ImportWeights(Env::Posix(), folder, *run.model);
  const int64_t most = peak.Stop();
  ASSERT_TRUE(imported.ok()) << imported.message();
  int64_t held = 0, numbers = 0, largest = 0;
  for (const Parameter& parameter : run.model->parameters()) {
    const int64_t elements = parameter.shape.Elements();
    held += static_cast<int64_t>(parameter.StoredBytes());
    numbers += elements;
    largest = std::max(largest, elements);
  }
  constexpr int64_t kFloat = 4, kRest = int64_t{4} << 20;
  EXPECT_GE(most, kFloat * largest);
  EXPECT_LE(most, held + 4 * kFloat * largest + kRest);
  EXPECT_LT(2 * most, kFloat * numbers) << "the network is much larger";
  EXPECT_TRUE(Env::Posix().RemoveTree(folder).ok());
}

TEST(WeightQuantization, AFolderIsReadInTheMemoryOfItsQuantizedWeights) {
  ModelSpec model = TinyModel();
  model.layers = 12;
  model.mlp_width = 1024;
  ExpectToReadInTheMemoryOfWords(model);
}

TEST(WeightQuantization, SoIsThatOfAMixtureOfExperts) {
  ModelSpec model = TinyModel();
  model.layers = 6;
  model.mlp_width = 512;
  model.experts = 4;
  ExpectToReadInTheMemoryOfWords(model);
}

}  // namespace
}  // namespace weft::engine
