// Parts of an elastic network against networks of their own that have copies of its blocks.
#include "worker/engine/techniques/layer_sampling/elastic_network.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/parameter_list.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"
#include "worker/engine/testing/token_streams.h"

namespace weft::engine {
namespace {

constexpr int64_t kBlocks = 5;

ModelSpec Network(const std::string& family) {
  ModelSpec spec = TinyModel();
  spec.layers = kBlocks;
  spec.family = family;
  if (family == "llama") spec.kv_heads = 1;
  if (family == "vit") {
    spec.image_size = 16;
    spec.patch_size = 8;
    spec.classes = 4;
  }
  return spec;
}

Batch BatchOf(const ModelSpec& spec) {
  if (spec.family == "vit") return *NoiseImages(spec).Get(0, 0, 4);
  return *RandomTokens(spec.vocab_size, spec.context).Get(0, 0, 4);
}

/// The names of the parameters of each block, and of those outside of blocks, in their order.
std::map<int64_t, std::vector<std::string>> NamesOf(const ModelSpec& spec) {
  std::map<int64_t, std::vector<std::string>> names;
  for (const ParameterInfo& parameter : ParametersOf(spec)) {
    names[parameter.block].push_back(parameter.name);
  }
  return names;
}

/// From each parameter of a network of `layers` to that of the whole which it shares.
std::map<std::string, std::string> Shared(const ModelSpec& whole, int64_t layers) {
  ModelSpec part = whole;
  part.layers = layers;
  const auto from = NamesOf(whole), to = NamesOf(part);
  std::map<std::string, std::string> shared;
  for (const auto& [block, names] : to) {
    const std::vector<std::string>& sources = from.at(block < 0 ? block : block * kBlocks / layers);
    for (size_t i = 0; i < names.size(); ++i) shared[names[i]] = sources[i];
  }
  return shared;
}

TEST(ElasticNetwork, PartsAreNetworksOfTheirOwn) {
  for (const char* family : {"gpt2", "llama", "vit"}) {
    const ModelSpec spec = Network(family);
    const Batch batch = BatchOf(spec);
    ElasticNetwork depth{{1, 2, 3, kBlocks}, {}, 7};
    ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
    options.elastic = &depth;
    TinyRun elastic(spec, options);
    const ParameterSet& whole = elastic.model->parameters();
    // The deepest first, so that blocks have gradients which others leave out.
    for (const int64_t layers : {kBlocks, int64_t{3}, int64_t{2}, int64_t{1}}) {
      SCOPED_TRACE(std::string(family) + " " + std::to_string(layers));
      ModelSpec part = spec;
      part.layers = layers;
      TinyRun plain(part, ModelOptionsOf(TinyPlan("fp32")));
      const auto shared = Shared(spec, layers);
      ParameterSet& own = plain.model->parameters();
      std::set<std::string> used;
      for (int64_t p = 0; p < own.size(); ++p) {
        const std::string& source = shared.at(own[p].name);
        used.insert(source);
        const TensorView from = whole.value(*whole.Find(source));
        std::memcpy(own.value(p).data, from.data, from.Bytes());
      }
      ASSERT_TRUE(plain.model->Pack(plain.context).ok());

      elastic.context.step = 0;
      while (depth.LayersOfStep(elastic.context.step) != layers) ++elastic.context.step;
      plain.context.step = elastic.context.step;
      EXPECT_EQ(elastic.Differentiate(batch), plain.Differentiate(batch));
      for (int64_t p = 0; p < own.size(); ++p) {
        EXPECT_EQ(ValuesOf(whole.gradient(*whole.Find(shared.at(own[p].name)))),
                  ValuesOf(own.gradient(p)))
            << own[p].name;
      }
      for (int64_t p = 0; p < whole.size(); ++p) {
        if (used.contains(whole[p].name)) continue;
        const std::vector<float> gradient = ValuesOf(whole.gradient(p));
        EXPECT_TRUE(std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0; }))
            << whole[p].name;
      }

      depth.evaluated = layers;
      EXPECT_EQ(elastic.Loss(batch), plain.Loss(batch));
      EXPECT_EQ(elastic.Logits(batch), plain.Logits(batch));
      depth.evaluated = 0;
    }
    TinyRun plain(spec, ModelOptionsOf(TinyPlan("fp32")));
    EXPECT_EQ(elastic.Loss(batch), plain.Loss(batch)) << "evaluation is of the deepest";
  }
}

TEST(ElasticNetwork, DrawsEachDepthEquallyOften) {
  const ElasticNetwork depth{{2, 3, 6, 8}, {}, 11}, other{{2, 3, 6, 8}, {}, 12};
  std::map<int64_t, int64_t> count;
  int64_t same = 0;
  for (int64_t step = 0; step < 40000; ++step) {
    ++count[depth.LayersOfStep(step)];
    same += depth.LayersOfStep(step) == other.LayersOfStep(step) ? 1 : 0;
  }
  ASSERT_EQ(count.size(), 4u);
  for (const auto& [layers, times] : count) EXPECT_NEAR(times, 10000, 400) << layers;
  EXPECT_NEAR(static_cast<double>(same), 10000, 400) << "another seed draws others";
}

}  // namespace
}  // namespace weft::engine
