// Virtual tokens before rows of a document each, with padding behind it: each document is what it
// is alone, whatever the padding looks like, and whichever ranks train.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/spec/padded_length.h"
#include "worker/engine/nn/token_batch.h"
#include "worker/engine/techniques/peft/adapters_testing.h"
#include "worker/engine/techniques/peft/virtual_tokens_testing.h"
#include "worker/engine/testing/float64_matrices.h"
#include "worker/engine/testing/mesh_run.h"
#include "worker/engine/testing/padded_documents.h"
#include "worker/engine/testing/parallelism.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kMostTokens = 16;  // of a document on meshes

Batch PaddedBatch(int32_t padding_token = 0) {
  auto batch = PaddedDocuments(TinyModel().vocab_size, kLength, 0, padding_token).Get(1, 0, 3);
  WEFT_CHECK(batch.ok(), batch.status().message());
  WEFT_CHECK(batch->padding_tokens > 0, "some rows are padded");
  return *batch;
}

/// A row of a padded batch without its padding.
Batch DocumentOf(const Batch& rows, int64_t row) {
  const int64_t own = rows.lengths[static_cast<size_t>(row)], first = row * rows.length;
  const auto part = [&](const std::vector<int32_t>& from) {
    return std::vector<int32_t>(from.begin() + first, from.begin() + first + own);
  };
  Batch document;
  document.sequences = 1;
  document.length = own;
  document.tokens = part(rows.tokens);
  document.targets = part(rows.targets);
  document.positions = part(rows.positions);
  document.sequence_starts = {0, static_cast<int32_t>(own)};
  document.target_count = own - 1;
  return document;
}

std::vector<int32_t> OnHost(const Tensor& indices) {
  const auto* const first = indices.As<int32_t>();
  return {first, first + indices.shape().Elements()};
}

// Three rows: a whole one, one of two tokens, and one that is blank.
TEST(PaddedVirtualTokens, AreOnceInEachRowAndNotBeforePadding) {
  Batch batch;
  batch.sequences = 3;
  batch.length = 4;
  batch.tokens.assign(12, 1);
  batch.targets.assign(12, 1);
  batch.positions = {0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3};
  batch.sequence_starts = {0, 4, 6, 8, 12};
  batch.lengths = {4, 2, 0};
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto tokens = TokenBatch::New(context, batch, 0);
  ASSERT_TRUE(tokens.ok()) << tokens.status().message();
  EXPECT_EQ(tokens->RunsOfTokens(), 3);
  const auto extended = tokens->Extend(context, {.count = 2, .first_position = 2, .ordered = true});
  ASSERT_TRUE(extended.ok()) << extended.status().message();
  EXPECT_EQ(extended->runs, 3);
  EXPECT_EQ(extended->batch.count, 18);
  EXPECT_EQ(extended->batch.length, 6);
  EXPECT_EQ(extended->batch.real_tokens, 12);
  EXPECT_THAT(OnHost(extended->batch.lengths), ElementsAre(6, 4, 2));
  EXPECT_THAT(OnHost(extended->batch.sequence_starts), ElementsAre(0, 6, 10, 12, 18));
  EXPECT_THAT(OnHost(extended->token_rows), ElementsAre(2, 3, 4, 5, 8, 9, 10, 11, 14, 15, 16, 17));
  EXPECT_THAT(OnHost(extended->added_rows), ElementsAre(0, 1, 6, 7, 12, 13));
  EXPECT_THAT(OnHost(extended->batch.positions),
              ElementsAre(0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 2, 3, 0, 1, 2, 3, 4, 5));
}

TEST(PaddedVirtualTokens, EachRowIsItsDocumentAlone) {
  const Batch batch = PaddedBatch();
  for (const Method& method : Methods()) {
    for (const char* family : kFamilies) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      const int64_t vocabulary = run.model->spec().vocab_size;
      const std::vector<float> logits = run.Logits(batch);
      for (int64_t row = 0; row < batch.sequences; ++row) {
        SCOPED_TRACE(row);
        const Doubles alone = Wide(run.Logits(DocumentOf(batch, row)));
        const auto first = logits.begin() + row * batch.length * vocabulary;
        EXPECT_LT(Difference({first, first + std::ssize(alone)}, alone), 1e-5);
      }
      // A balancing loss is of the tokens of a batch, not of a document.
      if (run.model->spec().experts > 0) continue;
      const double loss = run.Differentiate(batch);
      const std::vector<float> gradients = run.Gradients();
      double sum = 0;
      Doubles sums(gradients.size(), 0.0);
      for (int64_t row = 0; row < batch.sequences; ++row) {
        sum += run.Differentiate(DocumentOf(batch, row));
        const std::vector<float> own = run.Gradients();
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += own[i];
      }
      EXPECT_NEAR(loss, sum, 1e-5 * sum);
      EXPECT_LT(Difference(Wide(gradients), sums), 1e-4);
    }
  }
}

// Of a mixture no padding is sent to an expert, or counted in the balancing loss.
TEST(PaddedVirtualTokens, WhatPaddingLooksLikeChangesNothing) {
  for (const Method& method : Methods()) {
    for (const char* family : kFamilies) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      const double loss = run.Differentiate(PaddedBatch(1));
      const std::vector<float> gradients = run.Gradients();
      EXPECT_EQ(run.Differentiate(PaddedBatch(2)), loss);
      EXPECT_EQ(run.Gradients(), gradients);
    }
  }
}

TEST(PaddedVirtualTokens, TheLossChangesAsGradientsSay) {
  const Batch batch = PaddedBatch();
  for (const Method& method : Methods()) {
    for (const char* family : {"gpt2", "llama", "mistral"}) {
      SCOPED_TRACE(std::string(method.name) + " " + family);
      TinyRun run(JobOf(method, family).model, ModelOptionsOf(TinyPlan("fp32")));
      const double loss = run.Differentiate(batch);
      EXPECT_GT(CheckSlopes(run, loss, [&] { return run.Loss(batch); }), 0);
    }
  }
}

// Micro-batches have lengths of their own, in steps of 8 tokens.
TEST(PaddedVirtualTokens, MeshesFollowOneRank) {
  const std::vector<Parallelism> meshes = {
      {.data = 2, .block_memory_policy = {"recompute", "attention"}},
      {.data = 2, .zero_stage = 3},
      {.tensor = 2},
      {.tensor = 2, .sequence_parallel = true},
      {.pipeline = 2},
      {.data = 2, .zero_stage = 1, .pipeline = 2},
  };
  const std::vector<Method> methods = Methods();
  for (size_t i = 0; i < methods.size(); ++i) {
    for (const bool llama : {false, true}) {
      const std::string family = llama ? "llama" : "gpt2";
      MeshCase c{JobOf(methods[i], family), TinyPlan("fp32", 2, 2)};
      c.job.data.batching = "pad_dynamic";
      c.job.model.kv_heads = 2;
      c.job.model.context = kVirtual + kMostTokens;
      c.job.train.sequence_length = kMostTokens;
      c.job.train.steps = 4;
      c.job.train.log_every_steps = 2;
      c.plan.bucket_bytes = 4000;
      c.tokens = [] {
        return std::make_unique<PaddedDocuments>(TinyModel().vocab_size, kMostTokens,
                                                 kPaddedLengthMultiple);
      };
      const MeshOutcome whole = TrainOnMesh(c).front();
      int64_t tokens = 0;
      for (const StepReport& report : whole.reports) tokens += report.tokens;
      EXPECT_LT(tokens, c.job.train.steps * c.job.train.global_batch * kMostTokens)
          << "some are shorter";
      // Every mesh has every method in one of the families, which has the next mesh in the other.
      const size_t first = (i + (llama ? 1 : 0)) % 2;
      for (size_t k = first; k < meshes.size(); k += 2) {
        SCOPED_TRACE(std::string(methods[i].name) + ", " + family + ", " + meshes[k].Description());
        ExpectFollows(TrainOnMesh(c.On(meshes[k])), whole, 2e-5, 1e-4);
      }
    }
  }
}

TEST(PaddedVirtualTokens, GoWithAllBatchingButDocumentMasks) {
  for (const Method& method : Methods()) {
    for (const std::string batching :
         {"concatenate", "best_fit", "pad_fixed", "pad_dynamic", "pad_uniform"}) {
      SCOPED_TRACE(method.name + (" " + batching));
      JobSpec job = JobOf(method);
      job.data.batching = batching;
      EXPECT_EQ(ValidateJob(job).message(), "");
      job.data.mask_documents = true;
      EXPECT_THAT(ValidateJob(job).message(),
                  HasSubstr("no prediction of memory knows how many documents there are"));
    }
  }
}

}  // namespace
}  // namespace weft::engine
