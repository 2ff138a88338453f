// What tensors of grown models are made of, in float64.
#include "worker/engine/growth/growth_operator.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "worker/engine/growth/testing.h"

namespace weft::engine {
namespace {

ModelSpec Model(int64_t layers, int64_t width, const std::string& family = "gpt2") {
  ModelSpec model;
  model.family = family;
  model.layers = layers;
  model.width = width;
  model.heads = width / 8;
  model.vocab_size = 11;
  model.context = 6;
  model.classes = 3;
  model.image_size = 8;
  model.patch_size = 4;
  if (family == "llama") {
    model.kv_heads = width / 16;
    model.mlp_width = 3 * width;
  }
  return model;
}

std::vector<double> Rows(const std::vector<double>& matrix, int64_t columns, int64_t first,
                         int64_t last) {
  return {matrix.begin() + first * columns, matrix.begin() + last * columns};
}

TEST(GrowthOperator, CoalescingUndoesDecoalescingBitForBit) {
  for (const char* family : {"gpt2", "llama", "bert", "vit"}) {
    for (const char* order : {"adjacent", "stacked"}) {
      SCOPED_TRACE(std::string(family) + " " + order);
      const ModelSpec small = Model(2, 16, family), large = Model(4, 32, family);
      GrowthSpec down = Method("coalesce"), up = Method("decoalesce");
      down.depth_order = up.depth_order = order;
      up.alpha = 1;
      const TensorsByName before = RandomTensors(small, 1);
      const TensorsByName there = Grown(small, large, up, before);
      EXPECT_EQ(Grown(large, small, down, there), before);
    }
  }
}

TEST(GrowthOperator, CoalescingTakesMeansOfWhatIsWrittenAndSumsOfWhatIsRead) {
  const ModelSpec large = Model(2, 32), small = Model(2, 16);
  TensorsByName before = RandomTensors(large, 2);
  const TensorsByName after = Grown(large, small, Method("coalesce"), before);
  const auto& old = before.at("transformer.h.1.mlp.c_fc.weight");
  const auto& merged = after.at("transformer.h.1.mlp.c_fc.weight");
  const auto at = [&](int64_t i, int64_t j) { return old[static_cast<size_t>(i * 32 + j)]; };
  for (int64_t i = 0; i < 64; ++i) {
    for (int64_t j = 0; j < 16; ++j) {
      const double mean = (at(i, j) + at(i + 64, j) + at(i, j + 16) + at(i + 64, j + 16)) / 2;
      EXPECT_NEAR(merged[static_cast<size_t>(i * 16 + j)], mean, 1e-15);
    }
  }
}

TEST(GrowthOperator, BlocksOfAModelWithoutAnyAreRandom) {
  for (const char* family : {"gpt2", "llama"}) {
    const ModelSpec none = Model(0, 16, family), some = Model(3, 16, family);
    GrowthSpec growth = Method("stack");
    growth.new_blocks = "random";
    const TensorsByName before = RandomTensors(none, 4);
    EXPECT_EQ(Grown(none, some, growth, before), before) << "all else stays";
    const GrowthOperator grow(none, some, growth);
    for (const ParameterInfo& parameter : ParametersOf(some)) {
      EXPECT_EQ(grow.Of(parameter.name, GrownNumbers::kValues)->random, parameter.block >= 0)
          << parameter.name;
    }
  }
}

TEST(GrowthOperator, BlocksAreMergedByTheirOrder) {
  const ModelSpec large = Model(4, 16), small = Model(2, 16);
  const TensorsByName before = RandomTensors(large, 3);
  const auto bias = [&](const TensorsByName& tensors, int block) {
    return tensors.at("transformer.h." + std::to_string(block) + ".mlp.c_fc.bias");
  };
  const auto mean = [&](int a, int b) {
    std::vector<double> sum = bias(before, a);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] = (sum[i] + bias(before, b)[i]) / 2;
    return sum;
  };
  GrowthSpec growth = Method("coalesce");
  EXPECT_EQ(bias(Grown(large, small, growth, before), 1), mean(2, 3));
  growth.depth_order = "stacked";
  EXPECT_EQ(bias(Grown(large, small, growth, before), 1), mean(1, 3));
}

TEST(GrowthOperator, DecoalescingMixesTheLargerModelIn) {
  const ModelSpec small = Model(1, 16), large = Model(2, 32);
  const TensorsByName before = RandomTensors(small, 4), larger = RandomTensors(large, 5);
  GrowthSpec growth = Method("decoalesce");
  growth.alpha = 1;
  const TensorsByName copied = Grown(small, large, growth, before);
  growth.alpha = 0.25;
  for (const auto& [name, values] : Grown(small, large, growth, before, larger)) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], 0.75 * larger.at(name)[i] + 0.25 * copied.at(name)[i], 1e-15) << name;
    }
  }
}

TEST(GrowthOperator, StackingCopiesBlocks) {
  const ModelSpec small = Model(2, 16, "llama"), large = Model(5, 16, "llama");
  const TensorsByName before = RandomTensors(small, 6);
  for (const auto& [order, sources] :
       {std::pair{"adjacent", std::vector{0, 0, 0, 1, 1}}, {"stacked", {0, 1, 0, 1, 0}}}) {
    GrowthSpec growth = Method("stack");
    growth.depth_order = order;
    const TensorsByName after = Grown(small, large, growth, before);
    EXPECT_EQ(after.size(), ParametersOf(large).size());
    for (const ParameterInfo& parameter : ParametersOf(large)) {
      std::string source = parameter.name;
      if (parameter.block >= 0) {
        const std::string own = "layers." + std::to_string(parameter.block) + ".";
        source.replace(
            source.find(own), own.size(),
            "layers." + std::to_string(sources[static_cast<size_t>(parameter.block)]) + ".");
      }
      EXPECT_EQ(after.at(parameter.name), before.at(source)) << order << " " << parameter.name;
    }
  }
}

TEST(GrowthOperator, NewBlocksMayBeRandomOrEndInZeros) {
  const ModelSpec small = Model(1, 16), large = Model(3, 16);
  const TensorsByName before = RandomTensors(small, 7);
  GrowthSpec growth = Method("stack");
  growth.new_blocks = "random";
  TensorsByName after = Grown(small, large, growth, before);
  EXPECT_TRUE(after.contains("transformer.h.0.attn.c_attn.weight"));
  for (const auto& [name, values] : after) {
    EXPECT_FALSE(name.starts_with("transformer.h.1.") || name.starts_with("transformer.h.2."));
  }
  growth.new_blocks = "identity";
  after = Grown(small, large, growth, before);
  for (const ParameterInfo& parameter : ParametersOf(large)) {
    const std::vector<double>& values = after.at(parameter.name);
    const bool zero = std::all_of(values.begin(), values.end(), [](double x) { return x == 0; });
    EXPECT_EQ(zero, parameter.block > 0 && EndsSubLayer(parameter.role)) << parameter.name;
  }
}

TEST(GrowthOperator, NewBlocksMayCopyAverages) {
  const ModelSpec small = Model(2, 16), large = Model(4, 16);
  GrowthSpec growth = Method("stack");
  growth.new_blocks = "averaged";
  const GrowthOperator grow(small, large, growth);
  for (const ParameterInfo& parameter : ParametersOf(large)) {
    const auto tensor = grow.Of(parameter.name, GrownNumbers::kValues);
    ASSERT_TRUE(tensor.ok() && tensor->terms.size() == 1);
    const bool added = parameter.block == 1 || parameter.block == 3;
    EXPECT_EQ(tensor->terms[0].from, added ? GrownFrom::kAverages : GrownFrom::kPhaseBefore)
        << parameter.name;
    // There are no averages of moments.
    EXPECT_EQ(grow.Of(parameter.name, GrownNumbers::kGradients)->terms[0].from,
              GrownFrom::kPhaseBefore);
  }
}

TEST(GrowthOperator, PositionsOfOtherImagesAreResizedExceptThatOfTheClass) {
  const ModelSpec small = Model(2, 16, "vit");
  for (const int64_t size : {4, 12, 16}) {
    for (const char* method : {"none", "stack", "msg"}) {
      ModelSpec other = Model(method == std::string("none") ? 2 : 4, 16, "vit");
      other.image_size = size;
      const TensorsByName before = RandomTensors(small, 9);
      const TensorsByName after =
          Grown(small, other, Method(method), before, RandomTensors(other, 10));
      const std::string name = "vit.embeddings.position_embeddings";
      const std::vector<double>&old = before.at(name), &made = after.at(name);
      EXPECT_EQ(std::ssize(made), (size * size / 16 + 1) * 16);
      EXPECT_EQ(Rows(made, 16, 0, 1), Rows(old, 16, 0, 1));
      // The mean over all patches stays where the sizes are whole multiples.
      for (int64_t column = 0; column < 16 && size != 12; ++column) {
        const auto mean = [&](const std::vector<double>& table) {
          const int64_t rows = std::ssize(table) / 16;
          double sum = 0;
          for (int64_t row = 1; row < rows; ++row) {
            sum += table[static_cast<size_t>(16 * row + column)];
          }
          return sum / static_cast<double>(rows - 1);
        };
        EXPECT_NEAR(mean(made), mean(old), 1e-12);
      }
      EXPECT_EQ(after.at("vit.embeddings.cls_token"), before.at("vit.embeddings.cls_token"));
    }
  }
}

TEST(GrowthOperator, PositionsOfOtherImagesStayInTheFirstColumnsOfMaskedGrowth) {
  const ModelSpec small = Model(2, 16, "vit");
  ModelSpec other = Model(2, 32, "vit"), resized = small;
  other.image_size = resized.image_size = 12;
  const TensorsByName before = RandomTensors(small, 9), drawn = RandomTensors(other, 10);
  const std::string name = "vit.embeddings.position_embeddings";
  const auto narrow = Grown(small, resized, Method("none"), before).at(name);
  const auto wide = Grown(small, other, Method("msg"), before, drawn).at(name);
  ASSERT_EQ(std::ssize(wide), (3 * 3 + 1) * 32);
  for (size_t row = 0; row < 10; ++row) {
    for (size_t column = 0; column < 32; ++column) {
      const double expected =
          column < 16 ? narrow[16 * row + column] : drawn.at(name)[32 * row + column];
      EXPECT_DOUBLE_EQ(wide[32 * row + column], expected) << row << ", " << column;
    }
  }
}

TEST(GrowthOperator, PositionsOfALargerModelWithOtherImagesAreResized) {
  const ModelSpec small = Model(1, 16, "vit"), larger = Model(2, 32, "vit");
  ModelSpec other = larger;
  other.image_size = 16;
  const TensorsByName before = RandomTensors(small, 4), mixed = RandomTensors(larger, 5);
  GrowthSpec growth = Method("decoalesce");
  growth.alpha = 1;
  const TensorsByName copied = Grown(small, other, growth, before);
  const TensorsByName resized = Grown(larger, other, Method("none"), mixed);
  growth.alpha = 0.25;
  for (const auto& [name, values] :
       Grown(small, other, growth, before, mixed, GrownNumbers::kValues, &larger)) {
    for (size_t i = 0; i < values.size(); ++i) {
      EXPECT_NEAR(values[i], 0.75 * resized.at(name)[i] + 0.25 * copied.at(name)[i], 1e-14) << name;
    }
  }
}

TEST(GrowthOperator, AkiTakesRepeatedRowsOfTheNextBlock) {
  const ModelSpec small = Model(2, 16), large = Model(2, 32);
  const TensorsByName before = RandomTensors(small, 8);
  const TensorsByName fpi = Grown(small, large, Method("fpi"), before);
  const TensorsByName aki = Grown(small, large, Method("aki"), before);
  const std::string up = ".mlp.c_fc.weight", attention = ".attn.c_attn.weight";
  const std::string first = "transformer.h.0", second = "transformer.h.1";
  EXPECT_EQ(Rows(aki.at(first + up), 32, 0, 64), Rows(fpi.at(first + up), 32, 0, 64));
  EXPECT_EQ(Rows(aki.at(first + up), 32, 64, 128), Rows(fpi.at(second + up), 32, 64, 128));
  // Queries, keys and values each have rows of their own, and rows of the next block.
  for (int64_t part = 0; part < 3; ++part) {
    const int64_t begin = 32 * part;
    EXPECT_EQ(Rows(aki.at(first + attention), 32, begin, begin + 16),
              Rows(fpi.at(first + attention), 32, begin, begin + 16));
    EXPECT_EQ(Rows(aki.at(first + attention), 32, begin + 16, begin + 32),
              Rows(fpi.at(second + attention), 32, begin + 16, begin + 32));
  }
  EXPECT_EQ(aki.at(second + up), fpi.at(second + up)) << "the last block has no next one";
  EXPECT_EQ(aki.at("transformer.wte.weight"), fpi.at("transformer.wte.weight"));
}

TEST(GrowthOperator, NoneLeavesBlocksOut) {
  const ModelSpec large = Model(5, 16), small = Model(3, 16);
  const TensorsByName before = RandomTensors(large, 12);
  const TensorsByName after = Grown(large, small, Method("none"), before);
  const std::string weight = ".mlp.c_fc.weight";
  for (const auto& [block, source] : {std::pair{0, 0}, {1, 1}, {2, 3}}) {
    EXPECT_EQ(after.at("transformer.h." + std::to_string(block) + weight),
              before.at("transformer.h." + std::to_string(source) + weight));
  }
  EXPECT_EQ(after.at("transformer.wte.weight"), before.at("transformer.wte.weight"));
  EXPECT_EQ(Grown(large, small, Method("none"), before, {}, GrownNumbers::kSquaredGradients),
            after);
}

TEST(GrowthOperator, SparklingHasOneFactorForAllThatIsRead) {
  const ModelSpec small = Model(1, 16), large = Model(1, 24);
  const TensorsByName before = RandomTensors(small, 10);
  const TensorsByName grown = Grown(small, large, Method("sparkling"), before);
  const std::vector<double>&old = before.at("transformer.h.0.mlp.c_fc.weight"),
        &wide = grown.at("transformer.h.0.mlp.c_fc.weight");
  const double factor = 1 / std::sqrt(2.5);
  for (size_t i = 0; i < 96; ++i) {
    for (size_t j = 0; j < 24; ++j) {
      EXPECT_DOUBLE_EQ(wide[24 * i + j], factor * old[16 * (i % 64) + j % 16]);
    }
  }
  // Norms and tables are copied, and the norm before the tied classifier has the factor of the
  // logits.
  const auto ratio = [&](const std::string& name, size_t i, size_t j) {
    return grown.at(name)[i] / before.at(name)[j];
  };
  EXPECT_EQ(ratio("transformer.h.0.ln_1.weight", 23, 7), 1);
  EXPECT_EQ(ratio("transformer.h.0.mlp.c_fc.bias", 95, 31), 1);
  EXPECT_EQ(ratio("transformer.wte.weight", 24 + 17, 16 + 1), 1);
  EXPECT_DOUBLE_EQ(ratio("transformer.ln_f.weight", 23, 7), factor);
  EXPECT_DOUBLE_EQ(ratio("transformer.ln_f.bias", 3, 3), factor);
}

TEST(GrowthOperator, SparklingIsFpiWhereAllColumnsAreRepeatedEquallyOften) {
  const ModelSpec small = Model(2, 16), large = Model(2, 48);
  const TensorsByName before = RandomTensors(small, 11);
  EXPECT_EQ(Grown(small, large, Method("sparkling"), before),
            Grown(small, large, Method("fpi"), before));
}

TEST(GrowthOperator, GradientsFollowTheChainRule) {
  // For any loss of the grown model, d loss / d small = sum of d loss / d large x d large / d
  // small. Gradients that are repeated and divided as kGradients says give the small one's again.
  const ModelSpec small = Model(2, 16), large = Model(2, 32);
  const TensorsByName gradients = RandomTensors(small, 9);
  const TensorsByName grown =
      Grown(small, large, Method("fpi"), gradients, {}, GrownNumbers::kGradients);
  const GrowthOperator grow(small, large, Method("fpi"));
  for (const ParameterInfo& parameter : ParametersOf(small)) {
    const auto tensor = grow.Of(parameter.name, GrownNumbers::kValues);
    ASSERT_TRUE(tensor.ok());
    const GrownTerm& term = tensor->terms.front();
    std::vector<double> sum(static_cast<size_t>(parameter.Elements()));
    const std::vector<double>& of_large = grown.at(parameter.name);
    for (int64_t i = 0; i < term.rows.size(); ++i) {
      for (int64_t j = 0; j < term.columns.size(); ++j) {
        for (const AxisMap::Term& row : term.rows[i]) {
          for (const AxisMap::Term& column : term.columns[j]) {
            sum[static_cast<size_t>(row.old * term.columns.old_size() + column.old)] +=
                row.factor * column.factor *
                of_large[static_cast<size_t>(i * term.columns.size() + j)];
          }
        }
      }
    }
    for (size_t i = 0; i < sum.size(); ++i) {
      EXPECT_NEAR(sum[i], gradients.at(parameter.name)[i], 1e-13) << parameter.name;
    }
  }
}

TEST(GrowthOperator, RefusesTensorsOfAnotherSize) {
  const GrowthOperator grow(Model(1, 16), Model(2, 16), Method("stack"));
  EXPECT_FALSE(grow.Of("no.such.weight", GrownNumbers::kValues).ok());
  const auto tensor = grow.Of("transformer.wte.weight", GrownNumbers::kValues);
  ASSERT_TRUE(tensor.ok());
  const auto values = Evaluate(*tensor, [](GrownFrom, const std::string&) {
    return Result<std::vector<double>>(std::vector<double>(5));
  });
  EXPECT_EQ(values.status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::engine
