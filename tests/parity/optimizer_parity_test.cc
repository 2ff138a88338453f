// Compares the optimizers with those of PyTorch, whose results make_optimizer_fixtures.py recorded.

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/env.h"
#include "common/formats/safetensors.h"
#include "kernels/cpu/parallel.h"
#include "worker/engine/optim/optimizer.h"

namespace weft::engine {
namespace {

std::vector<float> ReadTensor(const std::string& name) {
  auto file = SafetensorsFile::Open(
      Env::Posix(), WEFT_SOURCE_DIR "/tests/parity/testdata/optimizers.safetensors");
  WEFT_CHECK(file.ok(), file.status().message());
  const SafetensorsView* view = file->Find(name);
  WEFT_CHECK(view != nullptr, name);
  std::vector<float> values(view->bytes.size() / sizeof(float));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

void Copy(const float* from, const TensorView& to) {
  std::memcpy(to.data, from, to.Bytes());
}

OptimizerSpec SpecOf(const std::string& recorded) {
  OptimizerSpec spec;
  spec.learning_rate = 0.01;
  spec.beta1 = 0.9;
  spec.beta2 = 0.95;
  spec.epsilon = 1e-6;
  spec.weight_decay = 0.1;
  spec.update_clip = 1.0;
  spec.decay_exponent = 0.8;
  spec.name = recorded;
  if (recorded == "momentum" || recorded == "nesterov") spec.name = "sgd";
  if (recorded == "sgd") spec.momentum = 0;
  spec.nesterov = recorded == "nesterov";
  if (recorded.rfind("muon_", 0) == 0) {
    spec.name = "muon";
    spec.momentum = 0.95;
    spec.muon_scale = recorded.substr(5);
    spec.nesterov = spec.muon_scale == "match_adamw";
  }
  return spec;
}

TEST(OptimizerParityTest, AHundredStepsEndWherePyTorchEnds) {
  kernels::cpu::SetThreads(1);
  const std::vector<float> gradients[] = {ReadTensor("gradients/w"), ReadTensor("gradients/b")};
  for (const char* recorded : {"sgd", "momentum", "nesterov", "adam", "adamw", "adafactor",
                               "muon_original", "muon_match_adamw"}) {
    SCOPED_TRACE(recorded);
    Allocator allocator;
    Context context;
    context.allocator = &allocator;
    ParameterSet parameters;
    parameters.StartUnit(0);
    parameters.Register("h.0.w.weight", {12, 8}, ParameterRole::kMlpUp);
    parameters.Register("h.0.b.bias", {12}, ParameterRole::kMlpUp, {.bias = true});
    ASSERT_TRUE(parameters.Allocate(context, true).ok());
    Copy(ReadTensor("start/w").data(), parameters.value(0));
    Copy(ReadTensor("start/b").data(), parameters.value(1));
    auto optimizer = NewOptimizer(context, SpecOf(recorded), &parameters, DType::kF32);
    ASSERT_TRUE(optimizer.ok()) << optimizer.status().ToString();
    for (int64_t step = 0; step < 100; ++step) {
      for (int64_t p = 0; p < 2; ++p) {
        const int64_t count = parameters[p].shape.Elements();
        Copy(gradients[p].data() + step * count, parameters.gradient(p));
      }
      const double rate = 0.01 * (1 + 0.5 * std::sin(0.2 * static_cast<double>(step + 1)));
      ASSERT_TRUE((*optimizer)->Update(context, {.learning_rate = rate, .update = step + 1}).ok());
    }
    for (int64_t p = 0; p < 2; ++p) {
      const std::vector<float> expected =
          ReadTensor(std::string(recorded) + (p == 0 ? "/w" : "/b"));
      const float* got = parameters.value(p).As<float>();
      double difference = 0, norm = 0;
      for (size_t i = 0; i < expected.size(); ++i) {
        difference += std::pow(got[i] - expected[i], 2);
        norm += std::pow(expected[i], 2);
      }
      EXPECT_LT(std::sqrt(difference / norm), 1e-5) << parameters[p].name;
    }
  }
}

}  // namespace
}  // namespace weft::engine
