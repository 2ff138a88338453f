#include "common/model/tensor_traffic.h"

#include <vector>

#include <gtest/gtest.h>

#include "common/model/memory_inputs.h"

namespace weft {
namespace {

MemoryInputs InputsOf(int64_t tensor) {
  JobSpec job;
  ModelSpec& model = job.model;
  model.layers = 24;
  model.width = 2048;
  model.heads = 32;
  model.vocab_size = 1024;
  model.context = 1024;
  Plan plan;
  plan.mesh.tensor = tensor;
  return MemoryInputsOf(job, plan, {});
}

std::vector<int64_t> RowsOf(const std::vector<TensorParallel2d>& grids) {
  std::vector<int64_t> rows;
  for (const TensorParallel2d& grid : grids) rows.push_back(grid.rows);
  return rows;
}

// A block has width h and inner width 4 h. For each token and each way, a rank of an R x C grid
// sends 4 h / R (C - 1) / C and 12 h / C (R - 1) / R numbers.
TEST(TensorTraffic, GridsAreRankedByWhatARankSends) {
  EXPECT_EQ(RowsOf(RankTensorParallel2d(TensorPassOf(InputsOf(2)))), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(RowsOf(RankTensorParallel2d(TensorPassOf(InputsOf(4)))),
            (std::vector<int64_t>{1, 2, 4}));
  EXPECT_EQ(RowsOf(RankTensorParallel2d(TensorPassOf(InputsOf(8)))),
            (std::vector<int64_t>{2, 1, 4, 8}));
  EXPECT_EQ(RowsOf(RankTensorParallel2d(TensorPassOf(InputsOf(16)))),
            (std::vector<int64_t>{2, 4, 1, 8, 16}));
}

TEST(TensorTraffic, GridsOnWhichTheModelCannotBeComputedAreLeftOut) {
  MemoryInputs inputs = InputsOf(8);
  inputs.shape.spec.heads = 4;
  EXPECT_EQ(RowsOf(RankTensorParallel2d(TensorPassOf(inputs))), (std::vector<int64_t>{2, 4, 8}));
}

TEST(TensorTraffic, ABlockSendsWhatTheFormulaSays) {
  MemoryInputs inputs = InputsOf(16);
  inputs.shape.tensor_rows = 4;
  MemoryInputs deeper = inputs;
  deeper.shape.spec.layers += 1;
  deeper.shape.first_trained_layer = inputs.shape.first_trained_layer;
  const int64_t numbers = 1024 * 2048;  // of the residual stream, in bf16
  EXPECT_EQ(TrafficOfRow(TensorPassOf(deeper)).summed - TrafficOfRow(TensorPassOf(inputs)).summed,
            2 * 4 * numbers / 4);
  // And two statistics of two norms, in f32.
  EXPECT_EQ(
      TrafficOfColumn(TensorPassOf(deeper)).summed - TrafficOfColumn(TensorPassOf(inputs)).summed,
      2 * 12 * numbers / 4 + 2 * 2 * 4 * 1024);
}

}  // namespace
}  // namespace weft
