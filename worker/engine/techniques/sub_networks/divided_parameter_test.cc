#include "worker/engine/techniques/sub_networks/divided_parameter.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/rng.h"
#include "worker/engine/techniques/sub_networks/testing.h"
#include "worker/engine/testing/context_run.h"

namespace weft::engine {
namespace {

std::vector<float> Drawn(int64_t count, uint64_t seed) {
  PhiloxStream random(PhiloxKey{seed});
  std::vector<float> numbers(static_cast<size_t>(count));
  for (float& number : numbers) number = static_cast<float>(random.Normal());
  return numbers;
}

TEST(DividedParameter, TellsTheNumbersOfItsUnitsFromThoseOfOthers) {
  for (const ModelSpec& model : {Gpt2Model(), LlamaModel()}) {
    for (const char* precision : {"fp32", "bf16_pure"}) {
      SCOPED_TRACE(model.family + ", " + precision);
      TinyRun run(model, ModelOptionsOf(TinyPlan(precision)));
      const ParameterSet& parameters = run.model->parameters();
      int divided = 0;
      for (int64_t p = 0; p < parameters.size(); ++p) {
        const Parameter& parameter = parameters[p];
        SCOPED_TRACE(parameter.name);
        ASSERT_EQ(DividedParameter::Divides(parameters, p), UnitOf(model, parameter, 0) >= 0);
        if (!DividedParameter::Divides(parameters, p)) continue;
        ++divided;
        const int64_t units = IsAttention(parameter.role) ? KvHeads(model) : MlpWidth(model);
        const int64_t count = parameter.shape.Elements();
        const TensorView value = parameters.value(p), gradient = parameters.gradient(p);
        DividedParameter own(&parameters, p, units);
        for (const int64_t round : {0, 1}) {
          const OwnUnits of_rank = UnitsOfRank(1, round, parameter.name, units, 1, 2);
          ASSERT_TRUE(own.SetOwn(run.context, of_rank).ok());
          const auto is_own = [&](int64_t i) {
            return of_rank.own[static_cast<size_t>(UnitOf(model, parameter, i))] != 0;
          };

          const std::vector<float> learned = Drawn(count, 2);
          std::copy(learned.begin(), learned.end(), gradient.As<float>());
          ASSERT_TRUE(own.KeepOwn(run.context, 3).ok());
          for (int64_t i = 0; i < count; ++i) {
            const float expected = is_own(i) ? 3 * learned[static_cast<size_t>(i)] : 0;
            ASSERT_EQ(gradient.As<float>()[i], expected) << i;
          }

          std::vector<float> before = Drawn(count, 3);
          const std::vector<float> now = ValuesOf(value);
          ASSERT_TRUE(
              own.Restore(run.context, TensorView(before.data(), DType::kF32, parameter.shape))
                  .ok());
          const std::vector<float> restored = ValuesOf(value);
          for (int64_t i = 0; i < count; ++i) {
            const auto at = static_cast<size_t>(i);
            const float others =
                value.dtype == DType::kF32 ? before[at] : ToFloat(ToBFloat16(before[at]));
            ASSERT_EQ(restored[at], is_own(i) ? now[at] : others) << i;
          }
        }
      }
      const int kinds = model.family == "llama" ? 7 : 6;
      EXPECT_EQ(divided, kinds * static_cast<int>(model.layers));
    }
  }
}

}  // namespace
}  // namespace weft::engine
