// What layers pass to those who make their products, and what these are asked for.
#include "worker/engine/nn/products.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "worker/engine/nn/block_stack.h"
#include "worker/engine/nn/dense_products.h"

namespace weft::engine {
namespace {

/// DenseProducts that notes what it is asked for.
class NotingProducts : public DenseProducts {
 public:
  struct Notes {
    std::vector<LinearLayer> layers;
    std::vector<WeightGradientTarget> targets;  ///< Of the last gradient.
    std::vector<std::pair<bool, bool>> prepared;
  };

  NotingProducts(const LinearLayer& layer, Notes* notes) : DenseProducts(layer), notes_(notes) {}

  Result<OutputGradient> Prepare(Context& context, Tensor dy,
                                 const GradientUse& use) const override {
    notes_->prepared.emplace_back(use.for_input, use.for_weight);
    return DenseProducts::Prepare(context, std::move(dy), use);
  }
  Status WeightGradient(Context& context, const Tensor& x, const OutputGradient& dy,
                        std::span<const WeightGradientTarget> targets) const override {
    notes_->targets.assign(targets.begin(), targets.end());
    return DenseProducts::WeightGradient(context, x, dy, targets);
  }

 private:
  Notes* notes_;
};

class NotingFactory : public ProductsFactory {
 public:
  std::unique_ptr<WeightProducts> Make(const LinearLayer& layer) override {
    notes.layers.push_back(layer);
    return std::make_unique<NotingProducts>(layer, &notes);
  }
  void SetStage(const std::vector<Shard::Range>&, int64_t) override {}
  Status Allocate(Context&) override { return OkStatus(); }
  Status StartPack(Context&, Repack) override { return OkStatus(); }

  NotingProducts::Notes notes;
};

TransformerBlockOptions Block(int64_t index) {
  const std::string name = std::to_string(index);
  TransformerBlockOptions block{
      .attention_norm = {.name = name + ".norm", .width = 16},
      .attention = {.qkv = {name + ".q", name + ".k", name + ".v"},
                    .output = name + ".out",
                    .width = 16,
                    .head_dim = 16},
      .mlp_norm = {.name = name + ".mlp_norm", .width = 16},
      .mlp = {.up = {name + ".up"}, .down = name + ".down", .width = 16, .inner = 32},
      .attention_dropout = {},
      .mlp_dropout = {}};
  if (index == 3) {
    block.experts = MixtureOfExpertsOptions{.name = "moe", .width = 16, .inner = 32, .experts = 2};
  }
  return block;
}

TEST(Products, AreMadeForTheLayersOfBlocksAndNotForRouters) {
  ParameterSet parameters;
  NotingFactory factory;
  const BlockStack blocks(&parameters,
                          {.first = 2,
                           .layers = 2,
                           .distinct = 2,
                           .network_blocks = 7,
                           .block = Block,
                           .remat = [](int64_t layers) { return RematOfPolicies({}, layers, 1); }},
                          {DType::kBF16, &factory});
  const Linear outside(&parameters, {{{"outside", 8}}, 16}, DType::kBF16);
  std::vector<std::string> made;
  for (const LinearLayer& layer : factory.notes.layers) {
    EXPECT_EQ(layer.compute, DType::kBF16);
    EXPECT_EQ(layer.block.blocks, 7);
    made.push_back(std::to_string(layer.block.index) + " " + parameters[layer.weight].name + " " +
                   std::to_string(layer.outputs) + (layer.bias < 0 ? "" : " biased ") +
                   layer.group);
  }
  EXPECT_EQ(made, (std::vector<std::string>{"2 2.q.weight 3 biased ", "2 2.out.weight 1 biased ",
                                            "2 2.up.weight 1 biased ", "2 2.down.weight 1 biased ",
                                            "3 3.q.weight 3 biased ", "3 3.out.weight 1 biased ",
                                            "3 moe.experts.0.w1.weight 2moe.experts.up",
                                            "3 moe.experts.0.w2.weight 1moe.experts.down",
                                            "3 moe.experts.1.w1.weight 2moe.experts.up",
                                            "3 moe.experts.1.w2.weight 1moe.experts.down"}));
}

TEST(Products, GetNeighbouringOutputsThatAreTrainedAlikeTogether) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  ParameterSet parameters;
  NotingFactory factory;
  Linear linear(&parameters, {{{"a", 2}, {"b", 3}, {"c", 4}, {"d", 5}, {"e", 6}}, 8},
                {DType::kF32, &factory});
  ASSERT_TRUE(parameters.Freeze({"c.weight", "d.*"}).ok());
  ASSERT_TRUE(parameters.Allocate(context, true).ok());
  ASSERT_TRUE(linear.Pack(context, Repack::kAll).ok());
  ParameterGradients gradients(parameters.DifferentiatedGradients());
  gradients.StartStep();
  for (const bool again : {false, true}) {
    SCOPED_TRACE(again);
    gradients.StartPass({});
    Tape tape(&gradients);
    auto x = Tensor::New(context, Component::kActivations, DType::kF32, {3, 8});
    ASSERT_TRUE(x.ok());
    std::fill_n(x->view().As<float>(), 24, 1.0F);
    auto y = linear.Forward(context, tape, {*x, Value::kNoNode});
    ASSERT_TRUE(y.ok());
    auto dy = Tensor::New(context, Component::kWorkspace, DType::kF32, {3, 20});
    ASSERT_TRUE(dy.ok());
    std::fill_n(dy->view().As<float>(), 60, 0.5F);
    ASSERT_TRUE(tape.AddGradient(context, y->node, *dy).ok());
    ASSERT_TRUE(tape.RunBackward(context).ok());
    ASSERT_TRUE(gradients.FinishPass(context).ok());

    const std::vector<WeightGradientTarget>& targets = factory.notes.targets;
    ASSERT_EQ(targets.size(), 3);
    const auto expect = [&](const WeightGradientTarget& target, int64_t column, int64_t columns,
                            const Shape& weight) {
      EXPECT_EQ(target.column, column);
      EXPECT_EQ(target.columns, columns);
      EXPECT_EQ(target.accumulate, again);
      EXPECT_EQ(target.dweight ? target.dweight.shape : Shape{}, weight);
      EXPECT_EQ(target.dbias.shape, Shape{columns});
    };
    expect(targets[0], 0, 5, {5, 8});
    expect(targets[1], 5, 4, {});
    expect(targets[2], 14, 6, {6, 8});
    EXPECT_EQ(factory.notes.prepared.back(), std::pair(false, true)) << "x has no gradient";
    EXPECT_EQ(*targets[2].dweight.As<float>(), again ? 3 : 1.5) << "3 rows of 0.5 x 1 a pass";
  }
}

TEST(Products, DeferredWeightGradientsKeepNothingForTheInput) {
  Allocator allocator;
  Context context;
  context.allocator = &allocator;
  const auto tensor = [&](int64_t size) {
    return *Tensor::New(context, Component::kWorkspace, DType::kF32, {size});
  };
  const OutputGradient all{tensor(1), {tensor(2), tensor(3)}, {tensor(4), tensor(5)}};
  const OutputGradient waits = all.ForWeight();
  EXPECT_EQ(waits.dy.shape(), Shape{1});
  EXPECT_FALSE(waits.for_input.values);
  EXPECT_FALSE(waits.for_input.scales);
  EXPECT_EQ(waits.for_weight.values.shape(), Shape{4});
  EXPECT_EQ(waits.for_weight.scales.shape(), Shape{5});
}

}  // namespace
}  // namespace weft::engine
