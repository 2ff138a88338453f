// Context-parallel ranks against one rank that has the sequences whole.
#include "worker/engine/nn/context_parallel.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/model/rank_traffic.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/testing/compare.h"
#include "worker/engine/data/joint_batches.h"
#include "worker/engine/nn/ring_attention.h"
#include "worker/engine/nn/ulysses_attention.h"
#include "worker/engine/testing/context_run.h"
#include "worker/engine/testing/many_steps.h"

namespace weft::engine {
namespace {

using ::testing::HasSubstr;
using Values = std::vector<double>;

constexpr int64_t kSteps = kManyTrainedSteps;

TEST(ContextChunks, AreTheWholeWithItsTargetsAndPositions) {
  constexpr int64_t kLength = 24;
  RandomTokens tokens(1000, kLength);
  Batch whole = *tokens.Get(3, 5, 2);
  whole.targets[7] = kernels::kIgnoreTarget;
  --whole.target_count;
  for (int64_t ranks : {2, 3, 4}) {
    std::vector<int> seen(whole.tokens.size(), 0);
    int64_t targets = 0;
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const Result<Batch> own = ChunksOfRank(whole, rank, ranks);
      ASSERT_TRUE(own.ok()) << own.status().ToString();
      EXPECT_EQ(own->length, kLength / ranks);
      EXPECT_EQ(own->stride, kLength);
      EXPECT_EQ(own->sequence_starts.back(), 2 * own->length);
      targets += own->target_count;
      for (size_t i = 0; i < own->tokens.size(); ++i) {
        const int64_t sequence = static_cast<int64_t>(i) / own->length;
        const auto at = static_cast<size_t>(sequence * kLength + own->positions[i]);
        EXPECT_EQ(own->tokens[i], whole.tokens[at]);
        EXPECT_EQ(own->targets[i], whole.targets[at]) << "of the next token, wherever it is";
        ++seen[at];
      }
      EXPECT_EQ(own->positions.front(), rank * kLength / (2 * ranks));
      EXPECT_EQ(own->positions[static_cast<size_t>(own->length) - 1],
                kLength - 1 - rank * kLength / (2 * ranks));
    }
    EXPECT_THAT(seen, ::testing::Each(1));
    EXPECT_EQ(targets, whole.target_count);
  }
  EXPECT_THAT(ChunksOfRank(whole, 0, 5).status().message(),
              HasSubstr("24 tokens, not a multiple of two chunks a rank"));
  whole.sequence_starts.insert(whole.sequence_starts.begin() + 1, 3);
  EXPECT_THAT(ChunksOfRank(whole, 0, 2).status().message(), HasSubstr("data.mask_documents"));
}

TEST(ContextChunks, TellTargetsOfEachJobAndKeepBlankRows) {
  constexpr int64_t kLength = 8;
  std::vector<std::unique_ptr<BatchSource>> sources;
  sources.push_back(std::make_unique<RandomTokens>(1000, kLength));
  sources.push_back(nullptr);
  JointBatches joint(std::move(sources), JointBatches::AtEnd::kBlankRows);
  Batch whole = *joint.Get(0, 0, 4);
  whole.targets[5] = kernels::kIgnoreTarget;
  const std::vector<int64_t> targets[] = {{8, 0}, {7, 0}};  // the target is in the third chunk
  for (int64_t rank = 0; rank < 2; ++rank) {
    const Result<Batch> own = ChunksOfRank(whole, rank, 2);
    ASSERT_TRUE(own.ok()) << own.status().ToString();
    EXPECT_EQ(own->part_targets, targets[rank]);
    EXPECT_EQ(own->target_count, targets[rank][0]);
    EXPECT_EQ(own->lengths, (std::vector<int32_t>{4, 4, 0, 0}));
    EXPECT_EQ(own->padding_tokens, 2 * kLength / 2);
  }
}

/// Queries, keys and values of sequences, in float64 with the values that a type can hold.
struct AttentionProblem {
  DType dtype;
  int64_t ranks, chunk;
  int64_t heads = 8, kv_heads = 2, head_dim = 8, sequences = 2;

  int64_t length() const { return 2 * ranks * chunk; }
  int64_t width() const { return heads * head_dim; }
  int64_t kv_width() const { return kv_heads * head_dim; }
};

Values Draw(DType dtype, int64_t count, uint32_t site) {
  PhiloxStream random({.seed = 4, .step = 0, .site = site});
  Values values;
  kernels::cpu::WithFloatType(dtype, [&]<class T>() {
    for (int64_t i = 0; i < count; ++i) {
      values.push_back(ToFloat(FromFloat<T>(static_cast<float>(random.Normal()))));
    }
  });
  return values;
}

Values RowsOf(const AttentionProblem& p, const Values& whole, int64_t width, int64_t rank) {
  Values rows;
  for (int64_t s = 0; s < p.sequences; ++s) {
    for (int64_t number : {rank, 2 * p.ranks - 1 - rank}) {
      const auto first = whole.begin() + (s * p.length() + number * p.chunk) * width;
      rows.insert(rows.end(), first, first + p.chunk * width);
    }
  }
  return rows;
}

/// The other way: puts rows of a rank where they are in the whole.
void PutRows(const AttentionProblem& p, const std::vector<float>& rows, int64_t width, int64_t rank,
             Values& whole) {
  auto from = rows.begin();
  for (int64_t s = 0; s < p.sequences; ++s) {
    for (int64_t number : {rank, 2 * p.ranks - 1 - rank}) {
      std::copy_n(from, p.chunk * width,
                  whole.begin() + (s * p.length() + number * p.chunk) * width);
      from += p.chunk * width;
    }
  }
}

Tensor TensorOf(Context& context, DType dtype, const Shape& shape, const Values& values) {
  auto tensor = Tensor::New(context, Component::kWorkspace, dtype, shape);
  WEFT_CHECK(tensor.ok(), tensor.status().message());
  kernels::cpu::WithFloatType(dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) {
      tensor->As<T>()[i] = FromFloat<T>(static_cast<float>(values[i]));
    }
  });
  return *tensor;
}

struct AttentionResult {
  std::vector<float> out, dq, dk, dv;
};

void ExpectTheWholeAttention(const AttentionProblem& p, bool ulysses) {
  const int64_t rows = p.sequences * p.length();
  std::vector<int32_t> whole_starts;
  for (int64_t s = 0; s <= p.sequences; ++s) {
    whole_starts.push_back(static_cast<int32_t>(s * p.length()));
  }
  kernels::ref::Attention truth = {.sequence_starts = whole_starts,
                                   .heads = p.heads,
                                   .kv_heads = p.kv_heads,
                                   .head_dim = p.head_dim,
                                   .scale = 0.35f,
                                   .q = Draw(p.dtype, rows * p.width(), 1),
                                   .k = Draw(p.dtype, rows * p.kv_width(), 2),
                                   .v = Draw(p.dtype, rows * p.kv_width(), 3)};
  const Values dout = Draw(p.dtype, rows * p.width(), 4);
  const auto forward = truth.Forward();

  std::vector<AttentionResult> results(static_cast<size_t>(p.ranks));
  RunRanks(static_cast<int>(p.ranks), std::chrono::seconds(60), [&](Collective& world) {
    kernels::cpu::SetThreads(1);
    Allocator allocator(0);
    Context context;
    context.allocator = &allocator;
    const ContextParallel ranks(&world, ulysses ? "ulysses" : "ring");
    const int64_t tokens = p.sequences * 2 * p.chunk, qkv = p.width() + 2 * p.kv_width();
    const auto own = [&](const Values& whole, int64_t width) {
      return TensorOf(context, p.dtype, {tokens, width}, RowsOf(p, whole, width, world.rank()));
    };
    // Columns of one tensor, as a block has them.
    const Tensor packed = TensorOf(context, p.dtype, {tokens, qkv}, {});
    const Tensor dpacked = TensorOf(context, p.dtype, {tokens, qkv}, {});
    const auto q = [&](const Tensor& t) { return t.Columns(0, p.width()); };
    const auto k = [&](const Tensor& t) { return t.Columns(p.width(), p.kv_width()); };
    const auto v = [&](const Tensor& t) {
      return t.Columns(p.width() + p.kv_width(), p.kv_width());
    };
    WEFT_CHECK(CopyRows(context.stream, own(truth.q, p.width()), q(packed)).ok(), "q");
    WEFT_CHECK(CopyRows(context.stream, own(truth.k, p.kv_width()), k(packed)).ok(), "k");
    WEFT_CHECK(CopyRows(context.stream, own(truth.v, p.kv_width()), v(packed)).ok(), "v");
    std::vector<int32_t> starts;
    for (int64_t s = 0; s <= p.sequences; ++s) {
      starts.push_back(static_cast<int32_t>(s * 2 * p.chunk));
    }
    const Tensor out = TensorOf(context, p.dtype, {tokens, p.width()}, {});
    const Tensor lse = TensorOf(context, DType::kF32, {p.heads, tokens}, {});
    const kernels::AttentionForwardArgs args{
        .q = q(packed),
        .k = k(packed),
        .v = v(packed),
        .sequence_starts =
            TensorView(starts.data(), DType::kI32, {static_cast<int64_t>(starts.size())}),
        .heads = p.heads,
        .kv_heads = p.kv_heads,
        .scale = 0.35f,
        .out = out,
        .log_sum_exp = lse,
        .length = 2 * p.chunk};
    Status status = ulysses ? UlyssesAttentionForward(context, ranks, args)
                            : RingAttentionForward(context, ranks, args);
    WEFT_CHECK(status.ok(), status.message());
    const Tensor own_dout = own(dout, p.width());
    const kernels::AttentionBackwardArgs back{
        .forward = args, .dout = own_dout, .dq = q(dpacked), .dk = k(dpacked), .dv = v(dpacked)};
    status = ulysses ? UlyssesAttentionBackward(context, ranks, back)
                     : RingAttentionBackward(context, ranks, back);
    WEFT_CHECK(status.ok(), status.message());
    const auto dense = [&](const Tensor& columns) {
      const Tensor copy = TensorOf(context, p.dtype, columns.shape(), {});
      WEFT_CHECK(CopyRows(context.stream, columns, copy).ok(), "copy");
      return ValuesOf(copy.view());
    };
    results[static_cast<size_t>(world.rank())] = {ValuesOf(out.view()), dense(q(dpacked)),
                                                  dense(k(dpacked)), dense(v(dpacked))};
  });
  // The reference uses the rounded results, as the backward pass does.
  Values rounded(forward.out.size());
  for (int64_t rank = 0; rank < p.ranks; ++rank) {
    PutRows(p, results[static_cast<size_t>(rank)].out, p.width(), rank, rounded);
  }
  const auto gradient = truth.Backward(dout, rounded);
  const auto tolerance = kernels::testing::ToleranceFor(p.dtype, p.length() + p.head_dim,
                                                        3 + static_cast<int>(p.ranks));
  const auto expect = [&](const char* what, const std::vector<float>& got, const Values& whole,
                          int64_t width, int64_t rank) {
    EXPECT_EQ(kernels::testing::Mismatch(Values(got.begin(), got.end()),
                                         RowsOf(p, whole, width, rank), tolerance),
              "")
        << what << " of rank " << rank;
  };
  for (int64_t rank = 0; rank < p.ranks; ++rank) {
    const AttentionResult& own = results[static_cast<size_t>(rank)];
    expect("out", own.out, forward.out, p.width(), rank);
    expect("dq", own.dq, gradient.dq, p.width(), rank);
    expect("dk", own.dk, gradient.dk, p.kv_width(), rank);
    expect("dv", own.dv, gradient.dv, p.kv_width(), rank);
  }
}

TEST(ContextParallel, AttentionIsThatOfTheWholeSequences) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (bool ulysses : {false, true}) {
      for (const AttentionProblem& p :
           {AttentionProblem{dtype, 2, 7}, AttentionProblem{dtype, 4, 3},
            AttentionProblem{dtype, 2, 133, 2, 2, 16, 1}}) {
        SCOPED_TRACE(std::string(DTypeName(dtype)) + (ulysses ? ", ulysses of " : ", ring of ") +
                     std::to_string(p.ranks) + ", chunks of " + std::to_string(p.chunk));
        ExpectTheWholeAttention(p, ulysses);
      }
    }
    // More ranks than heads of keys divide: a ring alone.
    ExpectTheWholeAttention({dtype, 3, 5}, false);
  }
}

TEST(ContextParallel, TrainingFollowsThatOfOneRank) {
  const ModelSpec gpt2 = Gpt2Model(), llama = LlamaModel();
  for (const MeshCase& c :
       {CaseOf(gpt2, "ring", 2), CaseOf(gpt2, "ring", 4), CaseOf(gpt2, "ulysses", 2),
        CaseOf(gpt2, "ulysses", 4), CaseOf(llama, "ring", 2), CaseOf(llama, "ring", 4),
        CaseOf(llama, "ulysses", 2), CaseOf(llama, "ulysses", 4),
        CaseOf(gpt2, "ring", 2, 2, "recompute"), CaseOf(llama, "ulysses", 2, 2, "attention")}) {
    SCOPED_TRACE(NameOf(c));
    const MeshOutcome whole = TrainOnMesh(c.Whole()).front();
    const std::vector<MeshOutcome> ranks = TrainOnMesh(c);
    for (size_t rank = 0; rank < ranks.size(); ++rank) {
      SCOPED_TRACE(rank);
      const MeshOutcome& own = ranks[rank];
      for (size_t step = 0; step < kSteps; ++step) {
        const StepReport &report = own.reports[step], &truth = whole.reports[step];
        EXPECT_NEAR(report.loss, truth.loss, 1e-5 * truth.loss) << step;
        EXPECT_NEAR(report.gradient_norm, truth.gradient_norm, 1e-4 * truth.gradient_norm);
        EXPECT_EQ(report.loss, ranks[0].reports[step].loss) << "the same on all ranks";
        EXPECT_EQ(report.targets, truth.targets);
        EXPECT_EQ(report.tokens, truth.tokens) << "counted once";
      }
      EXPECT_NEAR(own.evaluation, whole.evaluation, 1e-5 * whole.evaluation);
      for (const auto& [name, values] : own.values) {
        EXPECT_LT(Distance(values, whole.values.at(name)), 2e-3) << name;
        EXPECT_EQ(values, ranks[0].values.at(name)) << name << " bit for bit on all ranks";
      }
    }
  }
}

// The order of all sums is fixed.
TEST(ContextParallel, TrainingIsTheSameEachTime) {
  for (const char* method : {"ring", "ulysses"}) {
    const MeshCase c = CaseOf(LlamaModel(), method, 4, 1, "keep", "bf16");
    const MeshOutcome once = TrainOnMesh(c).front(), again = TrainOnMesh(c).front();
    EXPECT_EQ(once.values, again.values) << method;
    const MeshOutcome whole = TrainOnMesh(c.Whole()).front();
    for (size_t step = 0; step < kSteps; ++step) {
      EXPECT_NEAR(once.reports[step].loss, whole.reports[step].loss, 2e-2) << method << step;
    }
  }
}

TEST(ContextParallel, TakesAndSendsWhatTheModelSays) {
  ModelSpec model = LlamaModel();
  model.layers = 3;
  model.width = 128;
  model.vocab_size = 700;
  model.context = 256;
  for (const char* method : {"ring", "ulysses"}) {
    for (const MeshCase& base :
         {CaseOf(model, method, 2, 2), CaseOf(model, method, 4, 1, "recompute", "bf16"),
          CaseOf(model, method, 4, 1, "attention")}) {
      MeshCase c = base;
      c.job.train.steps = 2;
      c.job.train.log_every_steps = 10;
      SCOPED_TRACE(NameOf(c));
      const MemoryInputs inputs = InputsOf(c);
      const RankTraffic traffic = TrafficOfStep(inputs);
      const MemoryBreakdown predicted = CountedMemory(inputs);
      for (const MeshOutcome& own : TrainOnMesh(c)) {
        EXPECT_EQ(own.exchanged.sent_bytes + own.all_to_all.sent_bytes,
                  2 * static_cast<double>(traffic.context_sent));
        EXPECT_EQ(own.exchanged.calls > 0, !inputs.context.ulysses);
        const MemoryBreakdown& peak = own.reports.back().peak_memory;
        const auto expect_near = [&](const char* what, int64_t MemoryBreakdown::*bytes) {
          EXPECT_NEAR(static_cast<double>(peak.*bytes) / static_cast<double>(predicted.*bytes), 1,
                      0.01)
              << what << ": predicted " << predicted.*bytes << ", measured " << peak.*bytes;
        };
        expect_near("parameters", &MemoryBreakdown::parameters_bytes);
        expect_near("gradients", &MemoryBreakdown::gradients_bytes);
        expect_near("activations", &MemoryBreakdown::activations_bytes);
        expect_near("workspace", &MemoryBreakdown::workspace_bytes);
      }
    }
  }
}

}  // namespace
}  // namespace weft::engine
