#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/sparse24_mask/sparse24_mask.h"
#include "worker/engine/techniques/sparse24/sparse24_cost.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {

inline constexpr int64_t kSequences = 4;

inline SparsitySpec Exact(std::string method = "masked_decay") {
  return {.method = std::move(method), .mask_interval = 3, .gradient_estimate = "exact"};
}

inline ModelOptions OptionsOf(const SparsitySpec& spec,
                              const PrecisionRecipe& precision = kFp32Precision) {
  ModelOptions options{&precision, true, {}};
  options.train.sparsity = spec;
  options.train.steps = 1 << 20;
  return options;
}

inline Batch TokensOf(const ModelSpec& spec, int64_t first = 0, int64_t count = kSequences) {
  return *RandomTokens(spec.vocab_size, spec.context).Get(0, first, count);
}

inline ModelSpec Llama() {
  ModelSpec spec = TinyModel();
  spec.family = "llama";
  spec.mlp_width = 48;
  return spec;
}

inline ModelSpec WithSquaredRelu(ModelSpec spec = TinyModel()) {
  spec.activation = "squared_relu";
  return spec;
}

inline JobSpec JobOf(const SparsitySpec& spec, int64_t steps = 12) {
  JobSpec job = TinyJob();
  job.train.steps = steps;
  job.train.sparsity = spec;
  job.optimizer.learning_rate = 0.05;
  return job;
}

/// By element 1 where the mask keeps it.
inline std::vector<float> Mask(const TensorView& weight, bool of_rows = false) {
  const int64_t rows = weight.shape[0], columns = weight.shape[1];
  std::vector<uint16_t> bits(static_cast<size_t>(rows * columns / 16));
  const TensorView view(bits.data(), DType::kU16, {rows / 4, columns / 4});
  const Status found = of_rows ? kernels::RowMask({}, {.weight = weight, .mask = view})
                               : kernels::TransposableMask({}, {.weight = weight, .mask = view});
  WEFT_CHECK(found.ok(), found.message());
  std::vector<float> mask;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const uint16_t block = bits[static_cast<size_t>(i / 4 * (columns / 4) + j / 4)];
      mask.push_back(static_cast<float>(block >> (4 * (i % 4) + j % 4) & 1));
    }
  }
  return mask;
}

inline std::vector<int64_t> SparseWeights(const ParameterSet& parameters) {
  std::vector<int64_t> indices;
  for (int64_t i = 0; i < parameters.size(); ++i) {
    if (CanBeSparse24(parameters[i])) indices.push_back(i);
  }
  return indices;
}

/// What a training does before the forward pass of a step.
inline void Prepare(TinyRun& run, int64_t step) {
  run.context.step = step;
  for (const auto& technique : run.model->techniques()) {
    WEFT_CHECK(technique->BeforeForward(run.context, step).ok(), "before forward");
  }
  WEFT_CHECK(run.model->Pack(run.context).ok(), "pack");
}

}  // namespace weft::engine
