#include "worker/engine/techniques/parallel/data_parallel.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/comm/rank_threads.h"

namespace weft::engine {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;

/// Parameters of 100, 200, ... f32 numbers (400, 800, ... bytes; 64-byte ranges).
struct Parameters {
  explicit Parameters(int count) {
    context.allocator = &allocator;
    for (int i = 0; i < count; ++i) {
      set.Register("p" + std::to_string(i), Shape{100 * (i + 1)}, ParameterRole::kNorm);
    }
    WEFT_CHECK(set.Allocate(context, true).ok(), "allocate");
  }
  void Fill(int rank) {
    float* gradients = set.gradients().As<float>();
    for (int64_t i = 0; i < set.GradientCount(); ++i) {
      gradients[i] = std::sin(static_cast<float>(i * 7 + rank));
    }
  }
  std::vector<float> Gradients() const {
    const float* begin = set.gradients().As<float>();
    return {begin, begin + set.GradientCount()};
  }

  Allocator allocator;
  Context context;
  ParameterSet set;
};

/// A group of two whose sums add 1, and are done when they are let through.
class ScriptedGroup : public Collective {
 public:
  ScriptedGroup() : Collective(0, 2, Device{}, "scripted", {0, 1}) {}
  Result<std::vector<std::string>> AllGather(std::string_view bytes) override {
    std::string other(bytes.size(), '\0');
    for (size_t i = 0; i < bytes.size() / sizeof(double); ++i) {
      const double value = 0.1;
      std::memcpy(other.data() + i * sizeof(double), &value, sizeof(double));
    }
    return std::vector<std::string>{std::string(bytes), other};
  }
  Status Broadcast(std::span<std::byte>, int) override { return InternalError("unused"); }
  Status Barrier() override { return InternalError("unused"); }
  Result<std::unique_ptr<Collective>> Split(int64_t, const std::string&) override {
    return InternalError("unused");
  }
  void Abort() override {}

  int started() const { return static_cast<int>(lengths_.size()); }
  void FailAt(int collective) { fail_at_ = collective; }
  const std::vector<int64_t>& lengths() const { return lengths_; }

 private:
  /// Done by whoever waits for it first.
  struct Sum : Work::State {
    Status Wait(const Stream&) override {
      if (fails) return UnavailableError("rank 1 is gone");
      if (!std::exchange(done, true)) {
        for (int64_t i = 0; i < values.shape.Elements(); ++i) values.As<float>()[i] += 1;
      }
      return OkStatus();
    }
    TensorView values;
    bool fails = false;
    bool done = false;
  };
  Work Start(const Stream&, CollectiveCall call) override {
    EXPECT_EQ(call.kind, CollectiveKind::kAllReduce);
    lengths_.push_back(call.input.shape.Elements());
    auto sum = std::make_shared<Sum>();
    sum->values = call.input;
    sum->fails = started() == fail_at_;
    return Work(sum);
  }

  int fail_at_ = 0;
  std::vector<int64_t> lengths_;
};

TEST(GradientBuckets, CoverTheBufferFromItsEndInWholeParameters) {
  Parameters parameters(5);
  for (int64_t bytes : {1, 1300, 3000, 1 << 20}) {
    const BucketLayout layout = CutBuckets(parameters.set, bytes);
    int64_t end = parameters.set.GradientCount();
    std::map<int64_t, int64_t> counted;
    for (int64_t bucket : layout.bucket_of) ++counted[bucket];
    for (size_t i = 0; i < layout.buckets.size(); ++i) {
      const GradientBucket& bucket = layout.buckets[i];
      EXPECT_EQ(bucket.end, end);
      EXPECT_EQ(bucket.parameters, counted[static_cast<int64_t>(i)]);
      const bool last = i + 1 == layout.buckets.size();
      EXPECT_TRUE(last || (bucket.end - bucket.begin) * 4 >= bytes);
      end = bucket.begin;
    }
    EXPECT_EQ(end, 0);
    for (int64_t p = 0; p < parameters.set.size(); ++p) {
      const GradientBucket& bucket =
          layout.buckets[static_cast<size_t>(layout.bucket_of[static_cast<size_t>(p)])];
      EXPECT_LE(bucket.begin, parameters.set.GradientRange(p).begin);
      EXPECT_GE(bucket.end, parameters.set.GradientRange(p).end);
    }
  }
  EXPECT_THAT(CutBuckets(parameters.set, 1).bucket_of, ElementsAre(4, 3, 2, 1, 0));
  EXPECT_THAT(CutBuckets(parameters.set, 1 << 20).bucket_of, ElementsAre(0, 0, 0, 0, 0));
}

// The second one of a stack of three matrices is derived: the stack is in a bucket of its own,
// behind what is registered after it, and the sources are behind both.
TEST(GradientBuckets, DerivedMatricesAndTheirSourcesAreApart) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ParameterSet set;
  set.Register("before", Shape{64}, ParameterRole::kNorm);
  const int64_t first = set.RegisterStack(
      {{.name = "up", .rows = 8}, {.name = "gate", .rows = 8}, {.name = "more", .rows = 8}},
      Shape{16});
  const int64_t behind = set.Register("behind", Shape{48}, ParameterRole::kNorm);
  set.Derive(first + 1, {{.name = "out", .shape = Shape{2, 8}, .initializer = {}},
                         {.name = "in", .shape = Shape{2, 16}, .initializer = {}}});
  set.ShareAmong(2);
  ASSERT_TRUE(set.Allocate(context, true).ok());
  EXPECT_THAT(set.GradientOrder(),
              ElementsAre(0, behind, first, first + 1, first + 2, behind + 1, behind + 2));
  EXPECT_EQ(set.gradient(first + 2).As<float>(), set.gradient(first).As<float>() + 256);
  EXPECT_EQ(set.differentiated_gradients().shape.Elements(), 64 + 64 + 384);

  const BucketLayout layout = CutBuckets(set, 1 << 20);
  EXPECT_THAT(layout.bucket_of, ElementsAre(2, 1, 1, 1, 2, 0, 0));
  ASSERT_EQ(layout.buckets.size(), 3u);
  int64_t end = set.GradientCount();
  for (const GradientBucket& bucket : layout.buckets) {
    EXPECT_EQ(bucket.end, end);
    end = bucket.begin;
    EXPECT_TRUE(bucket.updated);
  }
  EXPECT_EQ(end, 0);
  EXPECT_EQ(layout.buckets[0].parameters, 0) << "the backward pass computes no gradient of sources";
  EXPECT_EQ(layout.buckets[1].parameters, 3);
  EXPECT_EQ(layout.buckets[2].parameters, 2);
  EXPECT_FALSE(layout.buckets[0].of_derived);
  EXPECT_TRUE(layout.buckets[1].of_derived);
  EXPECT_FALSE(layout.buckets[2].of_derived);
}

TEST(DataParallel, TheFirstBucketIsOnTheWireBeforeTheBackwardPassEnds) {
  Parameters parameters(3);
  ScriptedGroup group;
  DataParallel reducer(&group, &parameters.set, 1);
  ASSERT_TRUE(reducer.Begin(false).ok());
  ASSERT_TRUE(reducer.Begin(true).ok());
  EXPECT_EQ(group.started(), 0);
  ASSERT_TRUE(reducer.OnGradientReady(2).ok());
  EXPECT_EQ(group.started(), 1) << "while gradients 1 and 0 are still to come";
  ASSERT_TRUE(reducer.OnGradientReady(1).ok());
  ASSERT_TRUE(reducer.OnGradientReady(0).ok());
  EXPECT_EQ(group.started(), 3);
  ASSERT_TRUE(reducer.Finish().ok());
  EXPECT_THAT(parameters.Gradients(), testing::Each(1.0f)) << "every element once";
}

TEST(DataParallel, ABucketWaitsForAllItsParameters) {
  Parameters parameters(3);
  ScriptedGroup group;
  DataParallel reducer(&group, &parameters.set, 1500);  // 2 alone has 1216
  ASSERT_THAT(reducer.layout().bucket_of, ElementsAre(1, 0, 0));
  for (int step = 0; step < 3; ++step) {
    ASSERT_TRUE(reducer.Begin(true).ok());
    ASSERT_TRUE(reducer.OnGradientReady(0).ok());
    ASSERT_TRUE(reducer.OnGradientReady(1).ok());
    ASSERT_TRUE(reducer.OnGradientReady(2).ok());
    ASSERT_TRUE(reducer.Finish().ok());
  }
  EXPECT_THAT(parameters.Gradients(), testing::Each(3.0f));
  const int64_t front = parameters.set.GradientRange(0).end;
  const int64_t rest = parameters.set.GradientCount() - front;
  EXPECT_THAT(group.lengths(), ElementsAre(front, rest, front, rest, front, rest));
}

TEST(DataParallel, ALostPeerFailsTheStepAndAllLaterOnes) {
  Parameters parameters(3);
  ScriptedGroup group;
  group.FailAt(2);
  DataParallel reducer(&group, &parameters.set, 1);
  ASSERT_TRUE(reducer.Begin(true).ok());
  for (int64_t index : {2, 1, 0}) (void)reducer.OnGradientReady(index);
  EXPECT_EQ(reducer.Finish().code(), StatusCode::kUnavailable);
  EXPECT_EQ(reducer.Begin(true).code(), StatusCode::kUnavailable);
  std::vector<double> values(1);
  EXPECT_EQ(reducer.SumScalars(values).code(), StatusCode::kUnavailable);
}

TEST(DataParallel, ScalarsAreAddedInRankOrder) {
  Parameters parameters(1);
  ScriptedGroup group;
  DataParallel reducer(&group, &parameters.set, 1);
  std::vector<double> values = {1.0, -0.1, 1e17};
  ASSERT_TRUE(reducer.SumScalars(values).ok());
  EXPECT_THAT(values, ElementsAre(1.0 + 0.1, 0.0, 1e17 + 0.1));
}

/// Gradients of three ranks after a reduction in buckets of `bucket_bytes`.
std::vector<std::vector<float>> ReducedOverGloo(int64_t bucket_bytes, bool in_bf16) {
  constexpr int kRanks = 3;
  std::vector<std::vector<float>> results(kRanks);
  RunRanks(kRanks, milliseconds(20000), [&](Collective& group) {
    Parameters parameters(6);
    DataParallel reducer(&group, &parameters.set, bucket_bytes);
    if (in_bf16) reducer.ReduceInBFloat16(parameters.context);
    for (int step = 0; step < 2; ++step) {
      parameters.Fill(group.rank());
      std::vector<double> count = {static_cast<double>(group.rank())};
      ASSERT_TRUE(reducer.SumScalars(count).ok());
      EXPECT_EQ(count[0], 3);
      ASSERT_TRUE(reducer.Begin(true).ok());
      for (int64_t index = 5; index >= 0; --index) {
        ASSERT_TRUE(reducer.OnGradientReady(index).ok());
      }
      ASSERT_TRUE(reducer.Finish().ok());
      results[static_cast<size_t>(group.rank())] = parameters.Gradients();
    }
    const CollectiveTotals totals = group.account().totals(CollectiveKind::kAllReduce);
    EXPECT_EQ(totals.calls, 2 * static_cast<int64_t>(reducer.layout().buckets.size()));
    EXPECT_EQ(totals.bytes,
              2.0 * (in_bf16 ? 2 : 4) * static_cast<double>(parameters.set.GradientCount()));
  });
  return results;
}

TEST(DataParallel, RanksGetTheSameSumWhateverTheBuckets) {
  for (const bool in_bf16 : {false, true}) {
    for (const int64_t bucket_bytes : {1, 1500, 1 << 20}) {
      const std::vector<std::vector<float>> results = ReducedOverGloo(bucket_bytes, in_bf16);
      const auto round = [&](float value) { return in_bf16 ? ToFloat(ToBFloat16(value)) : value; };
      for (size_t i = 0; i < results[0].size(); ++i) {
        float sum = 0;
        for (size_t rank = 0; rank < results.size(); ++rank) {
          sum += round(std::sin(static_cast<float>(i * 7 + rank)));
        }
        ASSERT_EQ(results[0][i], round(sum)) << i << " bf16 " << in_bf16;
      }
      EXPECT_EQ(results[1], results[0]);
      EXPECT_EQ(results[2], results[0]);
    }
  }
}

}  // namespace
}  // namespace weft::engine
