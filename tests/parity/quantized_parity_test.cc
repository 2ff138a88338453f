// Compares QLoRA with that of transformers, peft and bitsandbytes, which make_quantized_fixtures.py
// recorded: weights as bitsandbytes dequantises them, losses of 20 steps of AdamW in float32, and
// the adapters after them.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/peft_adapter.h"
#include "common/formats/safetensors.h"
#include "tests/parity/recorded.h"
#include "worker/engine/models/weights.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

/// A case of testdata/quantized, for example llama_nf4_double.
struct Case {
  std::string name;

  std::string family() const { return name.substr(0, name.find('_')); }
  std::string network() const { return "quantized/" + family(); }
  std::string folder() const { return Folder("quantized/" + name); }
  WeightQuantizationSpec format() const {
    return {.type = name.find("_nf4") != std::string::npos ? "nf4" : "fp4",
            .block_size = 64,
            .double_quantization = name.ends_with("_double")};
  }
};

/// The network with its quantised weights and an adapter of the case: "start" or "trained".
struct QuantizedRun : TinyRun {
  QuantizedRun(const Case& of, const std::string& adapter)
      : TinyRun(SpecOf(of), {&kFp32Precision, true, {}}) {
    Status status = ImportWeights(Env::Posix(), Folder(of.network()) + "/start", *model);
    if (status.ok()) {
      status = ImportAdapterWeights(Env::Posix(), of.folder() + "/" + adapter, *model);
    }
    WEFT_CHECK(status.ok(), status.message());
    WEFT_CHECK(model->Pack(context).ok(), "pack");
  }
  static ModelSpec SpecOf(const Case& of) {
    ModelSpec spec = FileSpec(of.network());
    auto peft = ReadAdapterConfig(Env::Posix(), of.folder() + "/start", spec);
    WEFT_CHECK(peft.ok(), peft.status().message());
    spec.peft = *peft;
    spec.weight_quantization = of.format();
    return spec;
  }
};

class QuantizedParity : public ::testing::TestWithParam<const char*> {};

// To roundings of f32: another code or scale would be a thousand times as far.
TEST_P(QuantizedParity, WeightsAreThoseThatBitsandbytesDequantizes) {
  const Case own{GetParam()};
  const QuantizedRun run(own, "start");
  const ParameterSet& parameters = run.model->parameters();
  auto record = SafetensorsFile::Open(Env::Posix(), own.folder() + "/record.safetensors");
  ASSERT_TRUE(record.ok()) << record.status().message();
  int64_t compared = 0;
  for (const SafetensorsView& tensor : record->tensors()) {
    if (tensor.name == "losses") continue;
    SCOPED_TRACE(tensor.name);
    const auto index = parameters.Find(tensor.name);
    ASSERT_TRUE(index.ok()) << index.status().message();
    ASSERT_GT(parameters[*index].quantized_words, 0);
    const std::vector<float> truth =
        ReadTensorOf<float>(own.folder() + "/record.safetensors", tensor.name);
    ASSERT_EQ(std::ssize(truth), parameters[*index].shape.Elements());
    std::vector<float> values(truth.size(), NAN);
    ASSERT_TRUE(
        parameters.Dequantize({}, *index, {values.data(), DType::kF32, {std::ssize(values)}}).ok());
    for (size_t i = 0; i < truth.size(); ++i) {
      ASSERT_NEAR(values[i], truth[i], 1e-6 * std::fabs(truth[i])) << i;
    }
    ++compared;
  }
  EXPECT_GE(compared, 1);
}

TEST_P(QuantizedParity, TwentyStepsEndAtTheAdaptersThatPeftTrains) {
  const Case own{GetParam()};
  QuantizedRun run(own, "start");
  std::vector<double> losses;
  ASSERT_NO_FATAL_FAILURE(TrainTwentySteps(run, RecordedBatch(own.family()), &losses));
  const auto recorded = ReadTensorOf<double>(own.folder() + "/record.safetensors", "losses");
  ASSERT_EQ(losses.size(), recorded.size());
  for (size_t step = 0; step < losses.size(); ++step) {
    EXPECT_NEAR(losses[step], recorded[step], 1e-5 * recorded[step]) << step;
  }
  EXPECT_LT(losses.back(), losses.front() - 0.01) << "it learns";
  const QuantizedRun start(own, "start"), expected(own, "trained");
  const ParameterSet& parameters = run.model->parameters();
  int64_t trained = 0;
  for (int64_t p = 0; p < parameters.size(); ++p) {
    if (parameters[p].frozen) continue;
    const TensorView end = expected.model->parameters().value(p);
    EXPECT_LT(RelativeError(parameters.value(p), end), 1e-4) << parameters[p].name;
    EXPECT_GT(RelativeError(start.model->parameters().value(p), end), 1e-3) << parameters[p].name;
    ++trained;
  }
  EXPECT_GT(trained, 0);
}

INSTANTIATE_TEST_SUITE_P(Cases, QuantizedParity,
                         ::testing::Values("gpt2_fp4", "gpt2_fp4_double", "gpt2_nf4",
                                           "gpt2_nf4_double", "llama_fp4", "llama_fp4_double",
                                           "llama_nf4", "llama_nf4_double"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace weft::engine
