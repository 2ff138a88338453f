#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "kernels/adamw/adamw.h"
#include "kernels/adamw/adamw_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

OpCase AdamWCase(const std::vector<int64_t>& counts, int64_t step, CaseUse use) {
  std::string name = "adamw/step" + std::to_string(step);
  for (int64_t count : counts) name += "/" + std::to_string(count);
  return {name, use, [=](OpRun& run) {
            AdamWArgs args = {.tensors = {},
                              .learning_rate = 0.02f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .epsilon = 1e-6f,
                              .step = step,
                              .gradient_scale = 0.5f};
            auto tensors = std::make_shared<std::vector<AdamWTensor>>();
            for (int64_t count : counts) {
              TestTensor& p = run.Input(DType::kF32, {count});
              TestTensor& g = run.Input(DType::kF32, {count});
              TestTensor& m = run.Input(DType::kF32, {count});
              TestTensor& v = run.Input(DType::kF32, {count});
              std::vector<double> squares = v.Values();
              for (double& value : squares) value = std::abs(value);
              v.Assign(squares);
              float decay = tensors->size() % 2 == 0 ? 0.1f : 0.0f;
              tensors->push_back({.parameter = p.view().As<float>(),
                                  .gradient = g.view().As<float>(),
                                  .first_moment = m.view().As<float>(),
                                  .second_moment = v.view().As<float>(),
                                  .count = count,
                                  .weight_decay = decay});
              auto reference = [=, &p, &g, &m, &v] {
                return AdamWRef({p.InitialValues(), m.InitialValues(), v.InitialValues()},
                                g.InitialValues(), args.gradient_scale, args.learning_rate,
                                args.beta1, args.beta2, args.epsilon, decay, step);
              };
              run.Check("parameter", p, 1, [reference] { return reference().parameter; });
              run.Check("first moment", m, 1, [reference] { return reference().first_moment; });
              run.Check("second moment", v, 1, [reference] { return reference().second_moment; });
              // Reads p, g, m and v; writes p, m and v.
              run.bytes += 7.0 * static_cast<double>(p.view().Bytes());
            }
            run.run = [args, tensors](const Stream& stream) {
              AdamWArgs call = args;
              call.tensors = *tensors;
              return AdamW(stream, call);
            };
          }};
}

}  // namespace

std::vector<OpCase> AdamWCases() {
  return {
      AdamWCase({1}, 1, CaseUse::kTest),
      AdamWCase({17, 0, 40000, 3}, 1, CaseUse::kTest),
      AdamWCase({16384, 16385}, 1000, CaseUse::kTest),
      AdamWCase({int64_t{1} << 24, int64_t{1} << 20}, 10, CaseUse::kSpeed),
  };
}

}  // namespace weft::kernels::testing
