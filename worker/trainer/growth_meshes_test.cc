// Growth on every mesh: what each method makes of a network on the ranks of each spread is what it
// makes on one rank, in weights and moments.
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "common/spec/phase_spec.h"
#include "common/spec/phases.h"
#include "worker/trainer/phases_testing.h"

namespace weft::trainer {
namespace {

/// The columns of the table. Encoders have the first six alone.
constexpr const char* kSpreadColumns[] = {"data",   "zero-1",     "zero-2",
                                          "zero-3", "recomputed", "offloaded",
                                          "tensor", "pipeline",   "tensor-zero-1"};
constexpr size_t kColumnsOfEncoders = 6;

/// A growth, and the family that it grows on each spread, by its first letter: gpt2, llama, bert
/// or vit; -: none, because the growth is of encoders alone, or refuses the spread.
struct GrowthRow {
  const char* growth;
  const char* method;
  const char* families;
  bool trained = false;  ///< Ranks train on, from the checkpoint after growth.
};
void PrintTo(const GrowthRow& row, std::ostream* out) {
  *out << row.growth;
}
constexpr GrowthRow kGrowthRows[] = {
    {"fpi", "fpi", "glbvgl glg", true},
    {"decoalesce_mixed", "decoalesce", "lbvglb lgl", true},
    {"msg", "msg", "bvglbv glg", true},
    {"stack", "stack", "vglbvg lgl", true},
    {"decoalesce", "decoalesce", "bvglbv glg"},
    {"coalesce", "coalesce", "glbvgl lgl"},
    {"aki", "aki", "vglbvg lgl"},
    {"sparkling", "sparkling", "glbvgl glg"},
    {"rewarmed", "sparkling", "glbvg- glg", true},
    {"one_block_identity", "stack", "lgvlgv lgl"},
    {"averaged", "stack", "lbvglb lgl"},
    {"frozen", "stack", "bvglbv lgl"},
    {"no_blocks", "stack", "glglgl glg"},
    {"larger_images", "none", "vvvvvv ---"},
    {"sampled_layers", "stack", "lglglg lgl"},
};

char LetterAt(const GrowthRow& row, size_t column) {
  return row.families[column < kColumnsOfEncoders ? column : column + 1];
}

/// Whether the growth has no such spread: encoders have no meshes of decoders, and updates on the
/// host are not re-warmed.
bool HasNone(const GrowthRow& row, size_t column) {
  if (row.method == std::string_view("none")) return column >= kColumnsOfEncoders;
  return row.growth == std::string_view("rewarmed") &&
         kSpreadColumns[column] == std::string_view("offloaded");
}

std::string FamilyOf(char letter) {
  switch (letter) {
    case 'g':
      return "gpt2";
    case 'l':
      return "llama";
    case 'b':
      return "bert";
    default:
      return "vit";
  }
}

class GrowthOnMeshes : public PhasesTest, public testing::WithParamInterface<GrowthRow> {
 protected:
  /// A network of four blocks and three times the columns of a small one of two: no half of a
  /// repeated side is like the other, so that a part of another rank differs.
  JobSpec Large(const std::string& family) const {
    JobSpec job = VCycleOf(family);
    job.model.layers = 4;
    job.model.width = 48;
    job.model.heads = 6;
    if (family == "llama") {  // a head of keys for each of two ranks, in the small one, too
      job.model.width = 96;
      job.model.heads = 12;
      job.model.kv_heads = 6;
      job.model.mlp_width = 288;
    }
    return job;
  }

  JobSpec Wider(const std::string& family, const std::string& method, int64_t layers = 2) const {
    JobSpec job = Large(family);
    job.phases = {Phase(2), Phase(3, method)};
    job.phases[0].layers = layers;
    job.phases[0].width = job.model.width / 3;
    if (method != "sparkling") job.phases[1].growth.optimizer_state = "kept";
    return job;
  }

  JobSpec Deeper(const std::string& family, int64_t layers, const std::string& blocks,
                 const std::string& state) const {
    JobSpec job = Large(family);
    job.phases = {Phase(2), Phase(3, "stack")};
    job.phases[0].layers = layers;
    job.phases[1].growth.new_blocks = blocks;
    job.phases[1].growth.optimizer_state = state;
    return job;
  }

  /// From the large network to the small one, which has a head and a block for each of two ranks.
  JobSpec Coalesced(const std::string& family) const {
    JobSpec job = Large(family);
    job.phases = {Phase(2), Phase(3, "coalesce")};
    job.phases[0].layers = job.model.layers;
    job.phases[0].width = job.model.width;
    job.phases[1].growth.optimizer_state = "kept";
    job.model.layers = 2;
    job.model.width /= 3;
    job.model.heads /= 3;
    job.model.kv_heads /= 3;
    job.model.mlp_width /= 3;
    return job;
  }

  JobSpec JobOf(std::string_view growth, const std::string& family) const {
    if (growth == "fpi" || growth == "aki") return Wider(family, std::string(growth));
    if (growth == "coalesce") return Coalesced(family);
    if (growth == "sparkling") return Wider(family, "sparkling", 4);
    if (growth == "rewarmed") {
      JobSpec job = Wider(family, "sparkling", 4);
      job.phases[1].growth.rewarm_steps = 2;
      job.phases[1].growth.rewarm_peak = 2;
      return job;
    }
    if (growth == "stack") return Deeper(family, 2, "copy", "kept");
    if (growth == "one_block_identity") return Deeper(family, 1, "identity", "kept");
    if (growth == "no_blocks") return Deeper(family, 0, "random", "kept");
    JobSpec job = Deeper(family, 2, "copy", "new");
    if (growth == "frozen") {
      job.phases[1].growth.freeze_old = true;
    } else if (growth == "averaged") {
      job.phases[1].growth.new_blocks = "averaged";
      job.train.averaging.kind = "ema";
      job.train.averaging.decay = 0.5;
    } else if (growth == "sampled_layers") {
      job.train.sampled_layers = 4;
    } else if (growth == "larger_images") {
      job.phases = {Phase(2), Phase(3)};
      job.phases[0].image_size = 6;
      job.phases[1].growth.optimizer_state = "kept";
    } else if (growth == "msg") {
      job = Wider(family, "msg");
      job.phases[1].growth.ramp_steps = 2;
      job.phases[1].growth.new_blocks = "random";
    } else if (growth == "decoalesce") {
      job = Wider(family, "decoalesce");
      job.phases[1].growth.alpha = 1;
    } else if (growth == "decoalesce_mixed") {
      job = Large(family);
      job.phases = {Phase(2), Phase(2, "coalesce"), Phase(3, "decoalesce")};
      job.phases[1].layers = 2;
      job.phases[1].width = job.model.width / 3;
      job.phases[2].growth.alpha = 0.5;
      job.phases[2].growth.optimizer_state = "kept";
    } else {
      ADD_FAILURE() << "no growth " << growth;
    }
    return job;
  }
};

TEST_P(GrowthOnMeshes, RanksGrowWhatOneRankGrows) {
  const GrowthRow& row = GetParam();
  std::set<std::string> begun;
  for (size_t column = 0; column < std::size(kSpreadColumns); ++column) {
    const char letter = LetterAt(row, column);
    if (letter == '-') continue;
    const std::string family = FamilyOf(letter), name = family + "-" + kSpreadColumns[column];
    SCOPED_TRACE(std::string(row.growth) + " of " + family + " on " + kSpreadColumns[column]);
    const JobSpec job = JobOf(row.growth, family);
    if (begun.insert(family).second) {
      EXPECT_EQ(job.phases.back().growth.method, row.method);
      ASSERT_TRUE(ValidateJob(job).ok()) << ValidateJob(job).message();
      for (size_t i = 0; i + 1 < PhaseCount(job); ++i) RunRanks(family, job, i, kOneRank);
    }
    CompareGrownStates(family, job, name, SpreadOf(kSpreadColumns[column]));
    const bool kept = OptimizerStateOf(job.phases.back().growth) != "new";
    EXPECT_EQ(Manifest(name).updates, kept ? 3 : 1) << "2 before growth, and 1 after it";
    if (row.trained) CompareGrownTrainings(family, job, name, SpreadOf(kSpreadColumns[column]));
  }
}

INSTANTIATE_TEST_SUITE_P(Methods, GrowthOnMeshes, testing::ValuesIn(kGrowthRows),
                         [](const auto& row) { return std::string(row.param.growth); });

TEST(GrowthMeshesTable, HasEachFamilyAndEachMethodOnEachSpread) {
  std::set<std::string_view> spreads, methods = {"ligo"};  // in learned_start_test.cc
  for (const Spread& spread : kSpreads) spreads.insert(spread.name);
  EXPECT_EQ(spreads,
            std::set<std::string_view>(std::begin(kSpreadColumns), std::end(kSpreadColumns)));
  for (size_t column = 0; column < std::size(kSpreadColumns); ++column) {
    SCOPED_TRACE(kSpreadColumns[column]);
    std::set<char> trained;
    for (const GrowthRow& row : kGrowthRows) {
      const char letter = LetterAt(row, column);
      if (row.trained && letter != '-') trained.insert(letter);
      EXPECT_EQ(letter == '-', HasNone(row, column)) << row.growth;
    }
    const bool encoders = column < kColumnsOfEncoders;
    EXPECT_EQ(trained,
              encoders ? std::set<char>({'g', 'l', 'b', 'v'}) : std::set<char>({'g', 'l'}));
  }
  for (const GrowthRow& row : kGrowthRows) methods.insert(row.method);
  const auto all = GrowthMethods();
  EXPECT_EQ(methods, std::set<std::string_view>(all.begin(), all.end()));
}

}  // namespace
}  // namespace weft::trainer
