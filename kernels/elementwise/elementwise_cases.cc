#include "kernels/elementwise/elementwise.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The operations are one line of arithmetic each, so the references are here.

OpCase CastCase(DType from, DType to, int64_t count, CaseUse use) {
  std::string name = "cast/" + std::to_string(count) + "/" + std::string(DTypeName(from)) + "-" +
                     std::string(DTypeName(to));
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(from, {count});
            TestTensor& y = run.Output("y", to, {count}, 0, 1, [&x] { return x.Values(); });
            run.run = [&x, &y](const Stream& stream) {
              return Cast(stream, {.x = x.view(), .y = y.view()});
            };
            run.bytes = static_cast<double>(x.view().Bytes() + y.view().Bytes());
          }};
}

OpCase AddCase(DType dtype, int64_t count, bool in_place, CaseUse use) {
  std::string name = (in_place ? "add_in_place/" : "add/") + std::to_string(count) + "/" +
                     std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            TestTensor& a = run.Input(dtype, {count});
            TestTensor& b = run.Input(dtype, {count});
            auto reference = [&a, &b] {
              std::vector<double> sum = a.InitialValues(), other = b.InitialValues();
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += other[i];
              return sum;
            };
            TestTensor& y = in_place ? a : run.Output("y", dtype, {count}, 0, 1, reference);
            if (in_place) run.Check("a", a, 1, reference);
            run.run = [&a, &b, &y](const Stream& stream) {
              return Add(stream, {.a = a.view(), .b = b.view(), .y = y.view()});
            };
            run.bytes = static_cast<double>(3 * a.view().Bytes());
          }};
}

OpCase ScaleCase(DType dtype, int64_t count, CaseUse use) {
  std::string name = "scale/" + std::to_string(count) + "/" + std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count});
            run.Check("x", x, 1, [&x] {
              std::vector<double> scaled = x.InitialValues();
              for (double& value : scaled) value *= 0.37f;
              return scaled;
            });
            run.run = [&x](const Stream& stream) {
              return Scale(stream, {.x = x.view(), .factor = 0.37f});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes());
          }};
}

OpCase AddScaledCase(DType dtype, int64_t count, float keep, CaseUse use) {
  std::string name = (keep == 0 ? "scaled/" : "add_scaled/") + std::to_string(count) + "/" +
                     std::string(DTypeName(dtype));
  return {
      name, use, [=](OpRun& run) {
        TestTensor& x = run.Input(dtype, {count});
        auto reference = [&x, keep](const std::vector<double>& before) {
          std::vector<double> sum = x.InitialValues();
          for (size_t i = 0; i < sum.size(); ++i) {
            sum[i] = 0.37f * sum[i] + (keep == 0 ? 0.0 : keep * before[i]);
          }
          return sum;
        };
        TestTensor& y = keep == 0 ? run.Output("y", DType::kF32, {count}, 0, 2,
                                               [reference] { return reference({}); })
                                  : run.Input(DType::kF32, {count});
        if (keep != 0) {
          run.Check("y", y, 2, [reference, &y] { return reference(y.InitialValues()); });
        }
        run.run = [&x, &y, keep](const Stream& stream) {
          return AddScaled(stream, {.x = x.view(), .y = y.view(), .factor = 0.37f, .keep = keep});
        };
        run.bytes = static_cast<double>(x.view().Bytes() + (keep == 0 ? 1 : 2) * y.view().Bytes());
      }};
}

OpCase FillCase(DType dtype, int64_t count, CaseUse use) {
  std::string name = "fill/" + std::to_string(count) + "/" + std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Output("x", dtype, {count}, 0, 1, [count] {
              return std::vector<double>(static_cast<size_t>(count), 3.0);
            });
            run.run = [&x](const Stream& stream) {
              return Fill(stream, {.x = x.view(), .value = 3.0f});
            };
            run.bytes = static_cast<double>(x.view().Bytes());
          }};
}

OpCase AddSignCase(int64_t count, CaseUse use) {
  return {"add_sign/" + std::to_string(count) + "/f32", use, [=](OpRun& run) {
            TestTensor& x =
                run.tensors.emplace_back(DType::kF32, Shape{count}).RandomIntegers(run.rng, -1, 2);
            TestTensor& y = run.Input(DType::kF32, {count});
            run.Check("y", y, 2, [&x, &y] {
              const std::vector<double> signs = x.Values();
              std::vector<double> sum = y.InitialValues();
              for (size_t i = 0; i < sum.size(); ++i) sum[i] += 0.37f * signs[i];
              return sum;
            });
            run.run = [&x, &y](const Stream& stream) {
              return AddSign(stream, {.x = x.view(), .y = y.view(), .factor = 0.37f});
            };
            run.bytes = static_cast<double>(3 * y.view().Bytes());
          }};
}

// Two of three elements are kept.
OpCase ApplyMaskCase(DType dtype, int64_t count, CaseUse use) {
  std::string name = "apply_mask/" + std::to_string(count) + "/" + std::string(DTypeName(dtype));
  return {name, use, [=](OpRun& run) {
            TestTensor& x = run.Input(dtype, {count});
            TestTensor& mask =
                run.tensors.emplace_back(DType::kU8, Shape{count}).RandomIntegers(run.rng, 0, 3);
            run.Check("x", x, 1, [&x, &mask] {
              const std::vector<double> keep = mask.Values();
              std::vector<double> masked = x.InitialValues();
              for (size_t i = 0; i < masked.size(); ++i) masked[i] = keep[i] != 0 ? masked[i] : 0;
              return masked;
            });
            run.run = [&x, &mask](const Stream& stream) {
              return ApplyMask(stream, {.x = x.view(), .mask = mask.view()});
            };
            run.bytes = static_cast<double>(2 * x.view().Bytes() + mask.view().Bytes());
          }};
}

}  // namespace

std::vector<OpCase> ElementwiseCases() {
  std::vector<OpCase> cases;
  auto add_all = [&cases](int64_t count, CaseUse use) {
    for (DType dtype : kFloatTypes) {
      if (use == CaseUse::kDeviceSpeed && dtype == DType::kF16) continue;
      cases.push_back(CastCase(dtype, DType::kF32, count, use));
      if (dtype != DType::kF32) cases.push_back(CastCase(DType::kF32, dtype, count, use));
      cases.push_back(AddCase(dtype, count, false, use));
      cases.push_back(AddCase(dtype, count, true, use));
      cases.push_back(ScaleCase(dtype, count, use));
      cases.push_back(AddScaledCase(dtype, count, 0, use));
      cases.push_back(AddScaledCase(dtype, count, -1.25f, use));
      cases.push_back(FillCase(dtype, count, use));
      cases.push_back(ApplyMaskCase(dtype, count, use));
    }
  };
  for (int64_t count : {0, 1, 3, 16, 17, 63, 100001}) {
    add_all(count, CaseUse::kTest);
    cases.push_back(FillCase(DType::kI32, count, CaseUse::kTest));
    cases.push_back(AddSignCase(count, CaseUse::kTest));
  }
  add_all(int64_t{2048} * 768, CaseUse::kSpeed);
  add_all(int64_t{1} << 24, CaseUse::kSpeed);
  add_all(int64_t{65536} * 2048, CaseUse::kDeviceSpeed);
  return cases;
}

}  // namespace weft::kernels::testing
