#include "common/model/parameter_groups.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/gradient_bytes.h"
#include "common/model/parameter_list.h"
#include "common/model/sharded_parameters.h"

namespace weft {
namespace {

struct Network {
  std::string name;
  ModelSpec model;
  int64_t tensor = 1;
  int64_t rows = 1;
  int64_t expert_ranks = 1;
};

std::vector<Network> Networks() {
  std::vector<Network> networks;
  for (const char* family : {"gpt2", "llama", "bert"}) {
    for (const int64_t distinct : {0, 3}) {
      ModelSpec model;
      model.family = family;
      model.layers = 6;
      model.distinct_blocks = distinct;
      model.width = 96;
      model.heads = 4;
      model.vocab_size = 130;
      model.embedding_width = model.family == "gpt2" ? 32 : 0;
      const std::string name = std::string(family) + " " + std::to_string(distinct);
      networks.push_back({name, model});
      networks.push_back({name + ", tensor parallel", model, 4, 2});
      if (model.family != "llama") continue;
      model.experts = 4;
      model.experts_per_token = 2;
      networks.push_back({name + ", experts", model, 1, 1, 2});
    }
  }
  return networks;
}

/// The same network, all of whose parameters are listed.
ModelSpec OneByOne(ModelSpec model) {
  model.freeze = {"no parameter of this name"};
  return model;
}

TEST(RepeatedBlockOfRank, StandsForTheList) {
  for (const Network& network : Networks()) {
    SCOPED_TRACE(network.name);
    const std::vector<ParameterInfo> list =
        ParametersOfRank(network.model, network.tensor, network.rows);
    const RepeatedBlock repeated = RepeatedBlockOfRank(network.model, network.tensor, network.rows);
    size_t next = 0;
    const auto compare = [&](size_t begin, size_t end, int64_t block) {
      for (size_t i = begin; i < end; ++i) {
        ASSERT_LT(next, list.size());
        const ParameterInfo& listed = list[next++];
        ParameterInfo own = repeated.parameters[i];
        if (own.block >= 0) own.block += block, own.unit += block;
        const ParameterAttributes& attributes = listed;
        EXPECT_TRUE(own == attributes) << listed.name;
        EXPECT_EQ(own.shape, listed.shape) << listed.name;
        EXPECT_EQ(own.unit, listed.unit) << listed.name;
        EXPECT_EQ(own.stacked, listed.stacked) << listed.name;
        EXPECT_EQ(own.product_rows, listed.product_rows) << listed.name;
        EXPECT_EQ(own.StoredElements(), listed.StoredElements());
      }
    };
    compare(0, repeated.begin, 0);
    for (int64_t block = 0; block < repeated.blocks; ++block) {
      compare(repeated.begin, repeated.end, block);
    }
    compare(repeated.end, repeated.parameters.size(), 0);
    EXPECT_EQ(next, list.size());
    EXPECT_EQ(repeated.blocks, network.model.distinct_blocks == 0 ? 6 : 3);
  }
}

TEST(RepeatedBlockOfRank, CountsGradientsAndFlatParametersAsOneByOne) {
  constexpr int64_t kBucket = 50'000;
  const auto open = [](const Network& network, const ModelSpec& model,
                       const std::vector<int64_t>& kept) {
    const OpenGradients bytes = OpenGradientBytes(model, kBucket, network.tensor, network.rows,
                                                  network.expert_ranks, kept.empty(), kept);
    return std::array{bytes.bytes, bytes.in_transfer};
  };
  const auto filed = [](const Network& network, const ModelSpec& model) {
    const ModelShape shape =
        network.expert_ranks > 1
            ? ModelShape::OfExpertRank(model, network.expert_ranks)
            : ModelShape(model, network.tensor, /*sequence=*/false, network.rows);
    const FiledGradients bytes = FiledGradientBytes(shape, kBucket, 2, true);
    return std::array{bytes.host, bytes.file, bytes.numbers};
  };
  const auto sharded = [](const Network& network, const ModelSpec& model) {
    const ShardedParameters all = ShardParameters(
        model, kBf16Precision, DType::kBF16, 4, network.tensor, network.rows, network.expert_ranks);
    return std::array{all.held,
                      all.gathered,
                      all.gathered_from_host,
                      all.packed,
                      all.packed_padding.bf16,
                      all.gradients,
                      all.open_gradients.bytes,
                      all.filed.values.host,
                      all.filed.gradients.file,
                      all.forward_payload,
                      all.backward_payload,
                      all.backward_gathers,
                      all.reductions,
                      all.experts.reduced_payload};
  };
  for (const Network& network : Networks()) {
    SCOPED_TRACE(network.name);
    const ModelSpec one_by_one = OneByOne(network.model);
    EXPECT_EQ(open(network, network.model, {}), open(network, one_by_one, {}));
    EXPECT_EQ(open(network, network.model, {0, 2}), open(network, one_by_one, {0, 2}));
    EXPECT_EQ(filed(network, network.model), filed(network, one_by_one));
    EXPECT_EQ(sharded(network, network.model), sharded(network, one_by_one));
    EXPECT_GT(open(network, network.model, {})[0], 0);
  }
}

}  // namespace
}  // namespace weft
