#include "common/model/streamed_units.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace weft {
namespace {

auto NumbersOf(const StreamedUnit& unit) {
  return std::array{unit.vectors,           unit.looked_up,   unit.matrices,
                    unit.in_tiles,          unit.padding.f32, unit.of_first,
                    unit.of_first_in_tiles, unit.trained,     unit.padding.bf16,
                    unit.stored_trained,    unit.direct,      unit.frozen,
                    unit.frozen_in_tiles,   unit.mlp};
}

// Where something is frozen they are distinguished by their names.
TEST(StreamedUnits, OfBlocksThatAreAlikeAreThoseOfEachByItself) {
  for (const char* family : {"gpt2", "llama", "bert"}) {
    for (const int64_t distinct : {0, 3}) {
      for (const int64_t experts : {0, 4}) {
        ModelSpec model;
        model.family = family;
        if (experts > 0 && model.family != "llama") continue;
        model.layers = 6;
        model.distinct_blocks = distinct;
        model.width = 96;
        model.heads = 4;
        model.vocab_size = 130;
        model.embedding_width = model.family == "gpt2" ? 32 : 0;
        model.experts = experts;
        model.experts_per_token = experts > 0 ? 2 : 0;
        ModelSpec one_by_one = model;
        one_by_one.freeze = {"no parameter of this name"};
        for (const int64_t tensor : {1, 2}) {
          SCOPED_TRACE(std::string(family) + " " + std::to_string(distinct) + " " +
                       std::to_string(experts) + " " + std::to_string(tensor));
          const int64_t expert_ranks = experts > 0 ? 2 : 1;
          const std::vector<StreamedUnit> units = StreamedUnits(model, tensor, 1, expert_ranks);
          const std::vector<StreamedUnit> each = StreamedUnits(one_by_one, tensor, 1, expert_ranks);
          ASSERT_EQ(units.size(), static_cast<size_t>(distinct > 0 ? 5 : 8));
          ASSERT_EQ(units.size(), each.size());
          for (size_t u = 0; u < units.size(); ++u) {
            EXPECT_EQ(NumbersOf(units[u]), NumbersOf(each[u])) << u;
            EXPECT_GT(units[u].trained, 0) << u;
          }
        }
        EXPECT_EQ(FirstDifferentiatedUnit(model), FirstDifferentiatedUnit(one_by_one));
      }
    }
  }
}

TEST(SumOfUnits, LeavesOutWhatTheModelDoesNotHave) {
  ModelSpec model;
  model.vocab_size = 130;
  const std::vector<StreamedUnit> units = StreamedUnits(model);
  const auto past = static_cast<int64_t>(units.size());
  EXPECT_EQ(NumbersOf(SumOfUnits(units, {-1, 1, past})), NumbersOf(units[1]));
}

}  // namespace
}  // namespace weft
