// Mixtures of experts whose rows are padded, against the same tokens without padding.
#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "worker/engine/testing/expert_run.h"

namespace weft::engine {
namespace {

constexpr int32_t kPadding = 49;  // which no document has

std::vector<int32_t> Document(int64_t step, int64_t number, int64_t length) {
  PhiloxStream random(PhiloxKey{3, static_cast<uint32_t>(step), static_cast<uint32_t>(number)});
  std::vector<int32_t> tokens;
  for (int64_t t = 0; t < length; ++t)
    tokens.push_back(static_cast<int32_t>(random.Below(kPadding)));
  return tokens;
}

/// Appends a document with its next tokens as targets, a run of its own.
void Append(const std::vector<int32_t>& document, Batch& batch) {
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
  for (size_t t = 0; t < document.size(); ++t) {
    const bool last = t + 1 == document.size();
    batch.tokens.push_back(document[t]);
    batch.positions.push_back(static_cast<int32_t>(t));
    batch.targets.push_back(last ? kernels::kIgnoreTarget : document[t + 1]);
    batch.target_count += last ? 0 : 1;
  }
}

/// A document a row, padded to `length`.
Batch Padded(const std::vector<std::vector<int32_t>>& documents, int64_t length) {
  Batch batch;
  batch.sequences = std::ssize(documents);
  batch.length = length;
  for (const auto& document : documents) {
    Append(document, batch);
    batch.lengths.push_back(static_cast<int32_t>(document.size()));
    const int64_t padding = length - std::ssize(document);
    if (padding == 0) continue;
    batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
    for (int64_t t = 0; t < padding; ++t) {
      batch.tokens.push_back(kPadding);
      batch.targets.push_back(kernels::kIgnoreTarget);
      batch.positions.push_back(static_cast<int32_t>(t));
    }
    batch.padding_tokens += padding;
  }
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.tokens.size()));
  return batch;
}

/// The same documents one behind the other in one row.
Batch Packed(const std::vector<std::vector<int32_t>>& documents) {
  Batch batch;
  batch.sequences = 1;
  for (const auto& document : documents) Append(document, batch);
  batch.length = std::ssize(batch.tokens);
  batch.sequence_starts.push_back(static_cast<int32_t>(batch.length));
  return batch;
}

std::vector<std::vector<int32_t>> SomeDocuments() {
  return {Document(0, 0, 5), Document(0, 1, 20), Document(0, 2, 9), Document(0, 3, 2)};
}

TEST(PaddedExperts, PaddingNeitherBalancesNorTakesThePlaceOfATokenNorLearns) {
  for (const double capacity : {0.0, 0.5, 1.0, 1.5}) {
    for (const int64_t per_token : {1, 2}) {
      for (const bool normalize : {true, false}) {
        SCOPED_TRACE(std::to_string(capacity) + " " + std::to_string(per_token));
        ModelSpec model = MixtralModel();
        model.context = 64;
        model.expert_capacity = capacity;
        model.experts_per_token = per_token;
        model.normalize_expert_weights = normalize;
        model.router_aux_loss = 5;
        TinyRun packed(model, {&kFp32Precision, true, {}});
        TinyRun padded(model, {&kFp32Precision, true, {}});
        const double loss = packed.Differentiate(Packed(SomeDocuments()), 1.0f / 32);
        // Sums over as many numbers, in another order.
        EXPECT_NEAR(padded.Differentiate(Padded(SomeDocuments(), 24), 1.0f / 32), loss,
                    1e-4 * loss);
        const ParameterSet &want = packed.model->parameters(), &got = padded.model->parameters();
        for (int64_t p = 0; p < want.size(); ++p) {
          const std::vector<float> gradient = ValuesOf(got.gradient(p));
          EXPECT_LT(Distance(gradient, ValuesOf(want.gradient(p))), 1e-5) << want[p].name;
          if (want[p].name != "model.embed_tokens.weight") continue;
          const auto row = gradient.begin() + kPadding * model.width;
          EXPECT_EQ(std::count(row, row + model.width, 0.0f), model.width);
        }
      }
    }
  }
}

/// A document a sequence, padded to one length or not at all.
class Documents : public BatchSource {
 public:
  explicit Documents(bool padded) : padded_(padded) {}
  int64_t Sequences() const override { return 1000; }
  Result<Batch> Get(int64_t step, int64_t first_sequence, int64_t count) override {
    WEFT_CHECK(count == 1, "a micro-batch of one");
    const int64_t length = 2 + (7 * first_sequence + 5 * step) % 22;
    return Padded({Document(step, first_sequence, length)}, padded_ ? 24 : length);
  }

 private:
  const bool padded_;
};

TEST(PaddedExperts, RanksSendNoPadding) {
  for (const ExpertRunConfig& config :
       std::vector<ExpertRunConfig>{{2, 2}, {2, 2, 0.75}, {4, 2, 1.0, "recompute", "fp32", 3}}) {
    SCOPED_TRACE(NameOf(config));
    const auto train = [&](bool padded) {
      MeshCase c = CaseOf(config);
      c.job.train.steps = 6;
      c.tokens = [=] { return std::make_unique<Documents>(padded); };
      return TrainOnMesh(c);
    };
    const std::vector<MeshOutcome> padded = train(true), exact = train(false);
    for (size_t rank = 0; rank < padded.size(); ++rank) {
      EXPECT_EQ(padded[rank].all_to_all.bytes, exact[rank].all_to_all.bytes);
      EXPECT_GT(padded[rank].all_to_all.bytes, 0);
    }
    for (size_t step = 0; step < exact[0].reports.size(); ++step) {
      EXPECT_NEAR(padded[0].reports[step].loss, exact[0].reports[step].loss, 1e-5);
    }
  }
}

}  // namespace
}  // namespace weft::engine
