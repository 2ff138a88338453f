#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/check.h"
#include "common/env.h"
#include "common/formats/huggingface.h"
#include "common/formats/safetensors.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/testing/tiny_run.h"

// What make_fixtures.py, make_adapter_fixtures.py and make_sparse24_fixtures.py recorded in
// testdata, and training as they do.

namespace weft::engine {

inline std::string Folder(const std::string& family) {
  return WEFT_SOURCE_DIR "/tests/parity/testdata/" + family;
}

template <class T>
std::vector<T> ReadTensorOf(const std::string& path, const std::string& name) {
  auto file = SafetensorsFile::Open(Env::Posix(), path);
  WEFT_CHECK(file.ok(), file.status().message());
  const SafetensorsView* view = file->Find(name);
  WEFT_CHECK(view != nullptr, name);
  std::vector<T> values(view->bytes.size() / sizeof(T));
  std::memcpy(values.data(), view->bytes.data(), view->bytes.size());
  return values;
}

template <class T>
std::vector<T> ReadTensor(const std::string& family, const std::string& name) {
  return ReadTensorOf<T>(Folder(family) + "/batch.safetensors", name);
}

/// That of the folder. A shared block is there once, as the model of one layer that it also is.
inline ModelSpec FileSpec(const std::string& family) {
  auto spec = ReadModelConfig(Env::Posix(), Folder(family) + "/start", ModelSpec());
  WEFT_CHECK(spec.ok(), spec.status().message());
  return *spec;
}

inline ModelSpec Spec(const std::string& family, double attention_dropout = 0) {
  ModelSpec spec = FileSpec(family);
  spec.attention_dropout = attention_dropout;
  if (family == "gpt2_shared") {
    spec.layers = 3;
    spec.distinct_blocks = 1;
  }
  return spec;
}

/// Rows of a pair each, padded, with a few masked tokens or a label.
inline Batch RecordedTexts(const std::string& family) {
  Batch batch;
  batch.sequences = 3;
  batch.length = 20;
  batch.tokens = ReadTensor<int32_t>(family, "tokens");
  batch.token_types = ReadTensor<int32_t>(family, "token_types");
  batch.lengths = ReadTensor<int32_t>(family, "lengths");
  const std::vector<int32_t> targets = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 60; ++i) batch.positions.push_back(i % 20);
  for (int32_t s = 0; s < 3; ++s) {
    batch.sequence_starts.push_back(s * 20);
    if (batch.lengths[s] < 20) batch.sequence_starts.push_back(s * 20 + batch.lengths[s]);
  }
  batch.sequence_starts.push_back(60);
  batch.target_count = 3;
  if (targets.size() == 3) {
    batch.labels = targets;
    return batch;
  }
  batch.targets = targets;
  for (int32_t i = 0; i < 60; ++i) {
    if (targets[i] >= 0) batch.target_rows.push_back(i);
  }
  batch.target_count = static_cast<int64_t>(batch.target_rows.size());
  return batch;
}

inline Batch RecordedImages(const std::string& family) {
  Batch batch;
  batch.sequences = 3;
  batch.length = 10;  // nine patches and the class
  batch.pixels = ReadTensor<float>(family, "pixels");
  batch.labels = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 30; ++i) batch.positions.push_back(i % 10);
  batch.sequence_starts = {0, 10, 20, 30};
  batch.target_count = 3;
  return batch;
}

inline Batch RecordedBatch(const std::string& family) {
  if (family == "vit") return RecordedImages(family);
  if (family.starts_with("bert")) return RecordedTexts(family);
  Batch batch;
  batch.sequences = 3;
  batch.length = 20;
  batch.tokens = ReadTensor<int32_t>(family, "tokens");
  batch.targets = ReadTensor<int32_t>(family, "targets");
  for (int i = 0; i < 60; ++i) batch.positions.push_back(i % 20);
  batch.sequence_starts = {0, 20, 40, 60};
  batch.target_count = 58;
  return batch;
}

/// Those rows as documents with padding behind them, as padded() of make_adapter_fixtures.py has
/// them.
inline Batch RecordedDocuments(const std::string& family) {
  Batch batch = RecordedBatch(family);
  batch.lengths = {20, 13, 6};
  batch.sequence_starts.clear();
  batch.target_count = 0;
  for (int32_t s = 0; s < 3; ++s) {
    const int32_t own = batch.lengths[s];
    batch.sequence_starts.push_back(s * 20);
    if (own < 20) batch.sequence_starts.push_back(s * 20 + own);
    for (int32_t t = 0; t < 20; ++t) {
      int32_t& target = batch.targets[s * 20 + t];
      if (t + 1 >= own) target = kernels::kIgnoreTarget;
      batch.target_count += target != kernels::kIgnoreTarget ? 1 : 0;
      if (t >= own) batch.positions[s * 20 + t] = t - own;
    }
    batch.padding_tokens += 20 - own;
  }
  batch.sequence_starts.push_back(60);
  return batch;
}

/// |got - expected| / |expected| as vectors.
inline double RelativeError(const float* got, const float* expected, size_t count) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < count; ++i) {
    difference += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    norm += std::pow(static_cast<double>(expected[i]), 2);
  }
  return std::sqrt(difference / norm);
}

inline double RelativeError(const TensorView& got, const TensorView& expected) {
  return RelativeError(got.As<float>(), expected.As<float>(),
                       static_cast<size_t>(expected.shape.Elements()));
}

inline double NormOf(const TensorView& values) {
  double squares = 0;
  for (int64_t i = 0; i < values.shape.Elements(); ++i) {
    squares += std::pow(static_cast<double>(values.As<float>()[i]), 2);
  }
  return std::sqrt(squares);
}

/// All keys moved alike change no attention weight: without rotary positions a key's bias has no
/// gradient, only rounding.
inline bool HasNoGradient(const std::string& name) {
  return name.ends_with("attention.self.key.bias") ||
         name.ends_with("attention.attention.key.bias");
}

/// The recorded batch at every step.
class RecordedTokens : public BatchSource {
 public:
  explicit RecordedTokens(Batch batch) : batch_(std::move(batch)) {}
  int64_t Sequences() const override { return 3; }
  Result<Batch> Get(int64_t, int64_t, int64_t) override { return batch_; }

 private:
  Batch batch_;
};

/// As make_fixtures.py trains.
inline JobSpec RecordedJob(const ModelSpec& model) {
  JobSpec job;
  job.model = model;
  job.train.steps = 20;
  job.train.global_batch = 3;
  job.train.sequence_length = 20;
  job.train.gradient_clip_norm = 1.0;
  job.schedule.kind = "constant";
  job.schedule.warmup_steps = 0;
  job.optimizer.learning_rate = 1e-3;
  job.optimizer.beta2 = 0.95;
  job.optimizer.epsilon = 1e-6;
  job.optimizer.weight_decay = 0.1;
  return job;
}

inline Plan RecordedPlan() {
  Plan plan;
  plan.precision = "fp32";
  plan.micro_batch = 3;
  return plan;
}

/// The loss before each step goes into `losses`, if it is given.
inline void TrainTwentySteps(TinyRun& run, Batch batch, std::vector<double>* losses = nullptr) {
  const JobSpec job = RecordedJob(run.model->spec());
  const Plan plan = RecordedPlan();
  RecordedTokens tokens(std::move(batch));
  auto trainer = Trainer::New(
      job, plan, {.context = &run.context, .model = run.model.get(), .train = &tokens});
  ASSERT_TRUE(trainer.ok()) << trainer.status().ToString();
  while (!(*trainer)->finished()) {
    auto report = (*trainer)->Step();
    ASSERT_TRUE(report.ok()) << report.status().ToString();
    if (losses != nullptr) losses->push_back(report->loss);
  }
}

inline void TrainTwentySteps(TinyRun& run, const std::string& family) {
  TrainTwentySteps(run, RecordedBatch(family));
}

}  // namespace weft::engine
