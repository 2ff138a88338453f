// The axes of the matrix cover every registered technique.
#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "common/json.h"
#include "common/model/technique_cost.h"
#include "common/spec/field.h"
#include "common/spec/spec_json.h"
#include "tests/matrix/combinations.h"
#include "tests/matrix/covering_set_file.h"
#include "tests/matrix/techniques.h"

namespace weft::testing {
namespace {

const std::vector<Combination>& Trained() {
  static const auto* const all = new std::vector<Combination>(ReadCombinations(WEFT_COVERING_SET));
  return *all;
}

TEST(MatrixAxes, EveryRegisteredTechniqueIsTrained) {
  for (const TechniqueCost* technique : TechniqueCosts()) {
    EXPECT_TRUE(std::any_of(
        Trained().begin(), Trained().end(),
        [&](const Combination& combination) { return technique->Asked(JobOf(combination)); }))
        << "no job of the matrix asks for " << technique->name()
        << "; hint: add a choice that asks for it, and that a small job can have, to "
           "TechniqueAxes() of "
           "tests/matrix/techniques.cc";
  }
}

/// The choices of a field of `Spec`.
template <class Spec>
std::vector<std::string> ChoicesOf(std::string_view field) {
  std::vector<std::string> choices;
  Spec spec;
  Spec::Fields(spec, [&](const Field& each, auto&) {
    if (each.name == field) choices.assign(each.choices.begin(), each.choices.end());
  });
  return choices;
}

// A method that is added to a technique needs a choice of its axis.
TEST(MatrixAxes, EveryMethodOfATechniqueIsTrained) {
  const std::map<std::string, std::vector<std::string>> fields = {
      {"/model/over_parameterization/kind", ChoicesOf<OverParameterizationSpec>("kind")},
      {"/model/peft/init", ChoicesOf<PeftSpec>("init")},
      {"/model/peft/method", ChoicesOf<PeftSpec>("method")},
      {"/model/stochastic_depth/decay", ChoicesOf<StochasticDepthSpec>("decay")},
      {"/model/stochastic_depth/mode", ChoicesOf<StochasticDepthSpec>("mode")},
      {"/model/stochastic_depth/unit", ChoicesOf<StochasticDepthSpec>("unit")},
      {"/model/structured_matrices/kind", ChoicesOf<StructuredMatricesSpec>("kind")},
      {"/model/structured_pruning/method", ChoicesOf<StructuredPruningSpec>("method")},
      {"/model/weight_quantization/type", ChoicesOf<WeightQuantizationSpec>("type")},
      {"/train/averaging/kind", ChoicesOf<AveragingSpec>("kind")},
      {"/train/fp8/formats", ChoicesOf<Fp8Spec>("formats")},
      {"/train/fp8/scaling", ChoicesOf<Fp8Spec>("scaling")},
      {"/train/preference/method", ChoicesOf<PreferenceSpec>("method")},
      {"/train/pruning/distribution", ChoicesOf<PruningSpec>("distribution")},
      {"/train/pruning/method", ChoicesOf<PruningSpec>("method")},
      {"/train/pruning/products", ChoicesOf<PruningSpec>("products")},
      {"/train/sparsity/gradient_estimate", ChoicesOf<SparsitySpec>("gradient_estimate")},
      {"/train/sparsity/method", ChoicesOf<SparsitySpec>("method")},
  };
  std::map<std::string, std::set<std::string>> trained;
  for (const Combination& combination : Trained()) {
    const JobSpec job = JobOf(combination);
    const Json json = {{"model", ToJson(job.model)}, {"train", ToJson(job.train)}};
    for (const auto& [field, choices] : fields) {
      trained[field].insert(json.at(Json::json_pointer(field)).get<std::string>());
    }
  }
  for (const auto& [field, choices] : fields) {
    EXPECT_FALSE(choices.empty()) << field;
    for (const std::string& choice : choices) {
      EXPECT_TRUE(trained[field].contains(choice))
          << "no job of the matrix has " << field << " " << choice;
    }
  }
}

// What makes a choice reach its technique is checked nowhere else.
TEST(MatrixAxes, EachChoiceChangesTheJob) {
  for (size_t axis = 0; axis < Axes().size(); ++axis) {
    for (size_t choice = 1; choice < Axes()[axis].size(); ++choice) {
      Combination combination(Axes().size(), 0);
      const Json plain = ToJson(JobOf(combination));
      combination[axis] = choice;
      EXPECT_NE(ToJson(JobOf(combination)), plain) << Axes()[axis][choice].name;
    }
  }
}

}  // namespace
}  // namespace weft::testing
