#include "kernels/moe_combine/moe_combine.h"

#include "kernels/moe_combine/moe_combine_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Sizes {
  int64_t tokens, k, width;
  bool drops = false;  ///< Every fifth place.
};

std::string NameOf(const char* op, const Sizes& sizes, DType dtype) {
  return std::string(op) + "/" + std::to_string(sizes.tokens) + "x" + std::to_string(sizes.k) +
         "x" + std::to_string(sizes.width) + (sizes.drops ? "/drops/" : "/") +
         std::string(DTypeName(dtype));
}

// Each place once, in an order that is not that of the tokens.
std::vector<double> Places(const Sizes& sizes) {
  const int64_t count = sizes.tokens * sizes.k;
  std::vector<double> places;
  for (int64_t i = 0; i < count; ++i) {
    const bool dropped = sizes.drops && i % 5 == 3;
    places.push_back(dropped ? -1 : static_cast<double>(count - 1 - i));
  }
  return places;
}

OpCase ForwardCase(const Sizes& sizes, DType dtype, bool weighted, CaseUse use) {
  const int64_t tokens = sizes.tokens, k = sizes.k, width = sizes.width;
  return {NameOf(weighted ? "moe_combine" : "moe_combine_sum", sizes, dtype), use, [=](OpRun& run) {
            const int64_t padding = use == CaseUse::kTest ? 3 : 0;
            TestTensor& x = run.Input(dtype, {tokens * k, width}, padding);
            TestTensor& weights = run.Input(DType::kF32, {tokens, k});
            TestTensor& places =
                run.tensors.emplace_back(DType::kI32, Shape{tokens, k}).Assign(Places(sizes));
            TestTensor& y = run.Output("y", dtype, {tokens, width}, padding, k, [=, &x, &weights] {
              const std::vector<double> ones(static_cast<size_t>(tokens * k), 1.0);
              return ref::Combine(x.InitialValues(), Places(sizes),
                                  weighted ? weights.InitialValues() : ones, k, width);
            });
            const MoeCombineArgs args = {x.view(), places.view(),
                                         weighted ? weights.view() : TensorView(), y.view()};
            run.run = [args](const Stream& stream) { return MoeCombine(stream, args); };
            run.bytes = static_cast<double>(x.view().Bytes() + y.view().Bytes());
          }};
}

OpCase BackwardCase(const Sizes& sizes, DType dtype, CaseUse use) {
  const int64_t tokens = sizes.tokens, k = sizes.k, width = sizes.width;
  return {NameOf("moe_combine_backward", sizes, dtype), use, [=](OpRun& run) {
            TestTensor& dy = run.Input(dtype, {tokens, width});
            TestTensor& x = run.Input(dtype, {tokens * k, width});
            TestTensor& weights = run.Input(DType::kF32, {tokens, k});
            TestTensor& places =
                run.tensors.emplace_back(DType::kI32, Shape{tokens, k}).Assign(Places(sizes));
            const auto gradients = [=, &dy, &x, &weights] {
              return ref::CombineBackward(dy.InitialValues(), x.InitialValues(), Places(sizes),
                                          weights.InitialValues(), k, width);
            };
            // Rows without a place keep what they have.
            TestTensor& dx = run.Input(dtype, {tokens * k, width});
            run.Check("dx", dx, 1, [=, &dx] {
              std::vector<double> values = dx.InitialValues();
              const std::vector<double> computed = gradients().dx;
              for (const double place : Places(sizes)) {
                if (place < 0) continue;
                const auto begin = static_cast<int64_t>(place) * width;
                std::copy(computed.begin() + begin, computed.begin() + begin + width,
                          values.begin() + begin);
              }
              return values;
            });
            TestTensor& dweights = run.Output("dweights", DType::kF32, {tokens, k}, 0, width,
                                              [=] { return gradients().dweights; });
            const MoeCombineBackwardArgs args = {dy.view(),      x.view(),  places.view(),
                                                 weights.view(), dx.view(), dweights.view()};
            run.run = [args](const Stream& stream) { return MoeCombineBackward(stream, args); };
            run.bytes = static_cast<double>(dy.view().Bytes() + 2 * x.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> MoeCombineCases() {
  std::vector<OpCase> cases;
  for (DType dtype : kFloatTypes) {
    const auto add = [&](const Sizes& sizes, CaseUse use) {
      cases.push_back(ForwardCase(sizes, dtype, true, use));
      cases.push_back(ForwardCase(sizes, dtype, false, use));
      cases.push_back(BackwardCase(sizes, dtype, use));
    };
    add({0, 2, 8}, CaseUse::kTest);
    add({1, 1, 1}, CaseUse::kTest);
    add({7, 2, 33}, CaseUse::kTest);
    add({9, 3, 40, true}, CaseUse::kTest);
    add({130, 2, 176, true}, CaseUse::kTest);
    add({4096, 2, 1024}, CaseUse::kSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
