#include "worker/engine/autograd/tape.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/autograd/add.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;

class TapeTest : public ::testing::Test {
 protected:
  TapeTest() { context_.allocator = &allocator_; }

  Tensor Vector(std::vector<float> values) {
    auto tensor = Tensor::New(context_, Component::kActivations, DType::kF32,
                              {static_cast<int64_t>(values.size())});
    WEFT_CHECK(tensor.ok(), "test tensor");
    std::copy(values.begin(), values.end(), tensor->As<float>());
    return *tensor;
  }
  static std::vector<float> Values(const Tensor& t) {
    return {t.As<float>(), t.As<float>() + t.shape().Elements()};
  }

  // x * factor, where factor is parameter 0: an operation with a saved tensor and a parameter.
  Value Multiply(Tape& tape, const Value& x, float factor) {
    ++multiplications_;
    std::vector<float> values = Values(x.tensor);
    for (float& value : values) value *= factor;
    tape.UseParameter(0);
    Value y = tape.NewValue(Vector(values), true);
    if (!tape.Records(y)) return y;
    tape.Record("multiply",
                [this, factor, x_node = x.node, y_node = y.node, saved = tape.Save(x.tensor)](
                    Context& ctx, Tape& t) -> Status {
                  std::vector<float> dy = Values(t.TakeGradient(y_node));
                  WEFT_ASSIGN_OR_RETURN(Tensor input, saved.Restore(ctx));
                  WEFT_ASSIGN_OR_RETURN(TensorView dfactor, t.parameters().Add(ctx, 0));
                  for (size_t i = 0; i < dy.size(); ++i)
                    dfactor.As<float>()[0] += dy[i] * Values(input)[i];
                  for (float& value : dy) value *= factor;
                  WEFT_RETURN_IF_ERROR(t.parameters().Done(0));
                  return t.AddGradient(ctx, x_node, Vector(dy));
                });
    return y;
  }

  Allocator allocator_;
  Context context_;
  int multiplications_ = 0;
  float gradient_[2] = {7, 7};  // left over from an earlier step
  ParameterGradients parameters_{
      {TensorView(&gradient_[0], DType::kF32, {1}), TensorView(&gradient_[1], DType::kF32, {1})}};
};

TEST_F(TapeTest, AValueUsedTwiceGetsTheSumOfItsGradients) {
  parameters_.StartStep();
  parameters_.StartPass({});
  Tape tape(&parameters_);
  const Value x = tape.NewValue(Vector({1, 2}), true);
  const Value twice = Multiply(tape, x, 2.0f);
  const Value thrice = Multiply(tape, x, 3.0f);
  auto y = Add(context_, tape, twice, thrice);
  ASSERT_TRUE(y.ok());
  EXPECT_THAT(Values(y->tensor), ElementsAre(5, 10));
  ASSERT_TRUE(tape.AddGradient(context_, y->node, Vector({1, 10})).ok());
  ASSERT_TRUE(tape.RunBackward(context_).ok());
  EXPECT_THAT(Values(tape.TakeGradient(x.node)), ElementsAre(5, 50));
  ASSERT_TRUE(parameters_.FinishPass(context_).ok());
  EXPECT_EQ(gradient_[0], 2 * (1 * 1 + 10 * 2)) << "both uses, nothing of the step before";
  EXPECT_EQ(gradient_[1], 0) << "a parameter without use has gradient zero";
}

TEST_F(TapeTest, DeferredWorkRunsDuringTheNextOperationOrRightAfterIt) {
  parameters_.StartStep();
  parameters_.StartPass({});
  Tape tape(&parameters_);
  std::vector<std::string> done;
  const auto note = [&done](std::string what) {
    return [&done, what = std::move(what)](Context&, Tape&) {
      done.push_back(what);
      return OkStatus();
    };
  };
  const auto deferred = [&note](std::string what) {
    return [&note, what = std::move(what)](Context&, Tape& t) {
      t.DeferForOverlap("deferred", note(what));
      return OkStatus();
    };
  };
  // Backwards: last first.
  tape.Record("first", deferred("at the end"));
  tape.Record("plain", note("plain"));
  tape.Record("second", deferred("after plain"));
  tape.Record("sum", [&](Context& ctx, Tape& t) -> Status {
    done.push_back("sum starts");
    WEFT_RETURN_IF_ERROR(t.RunOverlapped(ctx));
    done.push_back("sum ends");
    return OkStatus();
  });
  tape.Record("third", deferred("during the sum"));
  const Value x = tape.NewValue(Vector({1}), true);
  EXPECT_FALSE(tape.IsSummed(x.node));
  tape.SumsGradient(x.node);
  EXPECT_TRUE(tape.IsSummed(x.node));
  ASSERT_TRUE(tape.RunBackward(context_).ok());
  EXPECT_THAT(done, ElementsAre("sum starts", "during the sum", "sum ends", "plain", "after plain",
                                "at the end"));
}

TEST_F(TapeTest, AGradientIsReportedOnceAfterItsLastUse) {
  std::vector<int64_t> ready;
  std::vector<float> seen;
  parameters_.StartStep();
  parameters_.StartPass([&](int64_t index) {
    ready.push_back(index);
    seen.push_back(gradient_[index]);
    return OkStatus();
  });
  Tape tape(&parameters_);
  const Value x = tape.NewValue(Vector({1}), true);
  const Value y = Multiply(tape, Multiply(tape, x, 2.0f), 3.0f);
  ASSERT_TRUE(tape.AddGradient(context_, y.node, Vector({1})).ok());
  EXPECT_TRUE(ready.empty());
  ASSERT_TRUE(tape.RunBackward(context_).ok());
  EXPECT_THAT(ready, ElementsAre(0));
  ASSERT_TRUE(parameters_.FinishPass(context_).ok());
  EXPECT_THAT(ready, ElementsAre(0, 1));
  EXPECT_THAT(seen, ElementsAre(2 + 3, 0));
}

TEST_F(TapeTest, ASecondPassOfTheStepAddsToTheFirst) {
  parameters_.StartStep();
  for (int pass = 0; pass < 3; ++pass) {
    parameters_.StartPass({});
    Tape tape(&parameters_);
    const Value x = tape.NewValue(Vector({4}), true);
    const Value y = Multiply(tape, x, 2.0f);
    ASSERT_TRUE(tape.AddGradient(context_, y.node, Vector({1})).ok());
    ASSERT_TRUE(tape.RunBackward(context_).ok());
    ASSERT_TRUE(parameters_.FinishPass(context_).ok());
  }
  EXPECT_EQ(gradient_[0], 12);
}

TEST_F(TapeTest, ARecomputedSegmentRunsTwiceAndKeepsItsInputOnly) {
  const Segment segment = [this](Context&, Tape& tape,
                                 const std::vector<Value>& inputs) -> Result<std::vector<Value>> {
    return std::vector<Value>{Multiply(tape, Multiply(tape, inputs[0], 2.0f), 3.0f)};
  };
  parameters_.StartStep();
  int reports = 0;
  parameters_.StartPass([&](int64_t index) {
    reports += index == 0 ? 1 : 0;
    return OkStatus();
  });
  Tape tape(&parameters_);
  Value x = tape.NewValue(Vector(std::vector<float>(1000, 1.0f)), true);
  auto outputs = Recompute(context_, tape, segment, {x});
  ASSERT_TRUE(outputs.ok());
  EXPECT_EQ(multiplications_, 2);
  const int32_t y_node = (*outputs)[0].node;
  EXPECT_EQ(Values((*outputs)[0].tensor)[0], 6);
  outputs->clear();
  EXPECT_LT(allocator_.live_bytes(Component::kActivations), 2 * 4096) << "x and nothing else";
  ASSERT_TRUE(tape.AddGradient(context_, y_node, Vector(std::vector<float>(1000, 1.0f))).ok());
  ASSERT_TRUE(tape.RunBackward(context_).ok());
  EXPECT_EQ(multiplications_, 4);
  EXPECT_EQ(Values(tape.TakeGradient(x.node))[999], 6);
  EXPECT_EQ(gradient_[0], 1000 * (2 + 3));
  EXPECT_EQ(reports, 1);
}

TEST_F(TapeTest, WithoutParametersNothingIsRecorded) {
  Tape tape(nullptr);
  EXPECT_FALSE(tape.recording());
  EXPECT_EQ(tape.component(), Component::kWorkspace);
  const Value y = Multiply(tape, tape.NewValue(Vector({2}), true), 3.0f);
  EXPECT_EQ(y.node, Value::kNoNode);
  EXPECT_TRUE(tape.RunBackward(context_).ok());
}

TEST_F(TapeTest, AnErrorInTheBackwardPassComesOut) {
  parameters_.StartStep();
  parameters_.StartPass([](int64_t) { return UnavailableError("peer is gone"); });
  Tape tape(&parameters_);
  const Value x = tape.NewValue(Vector({1}), true);
  const Value y = Multiply(tape, x, 2.0f);
  ASSERT_TRUE(tape.AddGradient(context_, y.node, Vector({1})).ok());
  EXPECT_EQ(tape.RunBackward(context_).code(), StatusCode::kUnavailable);
}

}  // namespace
}  // namespace weft::engine
