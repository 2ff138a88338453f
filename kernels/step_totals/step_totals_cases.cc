#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/step_totals/step_totals.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

// The numbers of both operations, in the memory of a tensor.
struct Totals {
  double sum = 0;
  int64_t right = 0;
  double squares = 0;
  int64_t non_finite = 0;
  float factor = 0;
  int32_t made = 0;
};

TestTensor& MemoryOf(OpRun& run, const Totals& totals) {
  constexpr auto kBytes = static_cast<int64_t>(sizeof(Totals));
  TestTensor& memory = run.tensors.emplace_back(DType::kU8, Shape{kBytes});
  std::vector<double> bytes(sizeof(Totals));
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = reinterpret_cast<const uint8_t*>(&totals)[i];
  }
  return memory.Assign(bytes);
}

Result<Totals> Read(const Stream& stream, TestTensor& memory) {
  if (stream.cuda != nullptr) WEFT_RETURN_IF_ERROR(stream.cuda->Synchronize());
  memory.Fetch();
  Totals totals;
  std::memcpy(&totals, memory.bytes().data(), sizeof totals);
  return totals;
}

OpCase AddLossesCase(int64_t rows, bool counts) {
  return {"add_losses/" + std::to_string(rows) + (counts ? "/counted" : ""), CaseUse::kTest,
          [=](OpRun& run) {
            TestTensor& losses = run.Input(DType::kF32, {rows});
            TestTensor& predictions = run.tensors.emplace_back(DType::kI32, Shape{rows});
            TestTensor& targets = run.tensors.emplace_back(DType::kI32, Shape{rows});
            predictions.RandomIntegers(run.rng, 0, 3);
            targets.RandomIntegers(run.rng, 0, 3);
            TestTensor& memory = MemoryOf(run, {.sum = 0.5, .right = 7});
            TestTensor& result = run.Output(
                "totals", DType::kF32, {2}, 0, 1, [&losses, &predictions, &targets, counts] {
                  double sum = 0.5, right = 7;
                  for (double loss : losses.InitialValues()) sum += loss;
                  const std::vector<double> p = predictions.InitialValues();
                  const std::vector<double> t = targets.InitialValues();
                  for (size_t i = 0; counts && i < p.size(); ++i) right += p[i] == t[i] ? 1 : 0;
                  return std::vector<double>{sum, right};
                });
            run.run = [&losses, &predictions, &targets, &memory, &result,
                       counts](const Stream& stream) -> Status {
              auto* to = static_cast<Totals*>(memory.view().data);
              WEFT_RETURN_IF_ERROR(
                  AddLosses(stream, {.losses = losses.view(),
                                     .predictions = counts ? predictions.view() : TensorView(),
                                     .targets = counts ? targets.view() : TensorView(),
                                     .sum = &to->sum,
                                     .right = counts ? &to->right : nullptr}));
              WEFT_ASSIGN_OR_RETURN(const Totals totals, Read(stream, memory));
              result.Assign({totals.sum, static_cast<double>(totals.right)}).Reset();
              return OkStatus();
            };
          }};
}

struct Decision {
  const char* name;
  Totals totals;
  double loss_scale;
  double loss_limit;
  double clip_norm;
  bool made;
  double factor;
};

OpCase DecideUpdateCase(const Decision& d) {
  return {std::string("decide_update/") + d.name, CaseUse::kTest, [=](OpRun& run) {
            TestTensor& memory = MemoryOf(run, d.totals);
            TestTensor& result = run.Output("decision", DType::kF32, {2}, 0, 1, [d] {
              return std::vector<double>{d.factor, d.made ? 1.0 : 0.0};
            });
            run.run = [&memory, &result, d](const Stream& stream) -> Status {
              auto* to = static_cast<Totals*>(memory.view().data);
              WEFT_RETURN_IF_ERROR(DecideUpdate(stream, {.loss_sum = &to->sum,
                                                         .square_sum = &to->squares,
                                                         .non_finite = &to->non_finite,
                                                         .targets = 4,
                                                         .loss_scale = d.loss_scale,
                                                         .loss_limit = d.loss_limit,
                                                         .clip_norm = d.clip_norm,
                                                         .factor = &to->factor,
                                                         .made = &to->made}));
              WEFT_ASSIGN_OR_RETURN(const Totals totals, Read(stream, memory));
              result.Assign({totals.factor, static_cast<double>(totals.made)}).Reset();
              return OkStatus();
            };
          }};
}

}  // namespace

std::vector<OpCase> StepTotalsCases() {
  std::vector<OpCase> cases;
  for (int64_t rows : {0, 1, 257, 5000}) {
    for (bool counts : {false, true}) cases.push_back(AddLossesCase(rows, counts));
  }
  const double infinity = INFINITY;
  for (const Decision& decision : std::vector<Decision>{
           {"plain", {.sum = 8, .squares = 9}, 1, infinity, 0, true, 1},
           {"clipped", {.sum = 8, .squares = 9}, 1, infinity, 1.5, true, 1.5 / (3 + 1e-6)},
           {"not_clipped", {.sum = 8, .squares = 9}, 1, infinity, 3, true, 1},
           {"scaled_and_clipped",
            {.sum = 8, .squares = 9},
            2,
            infinity,
            1,
            true,
            1 / (1.5 + 1e-6) / 2},
           {"at_the_limit", {.sum = 8, .squares = 9}, 1, 2, 0, true, 1},
           {"past_the_limit", {.sum = 8, .squares = 9}, 1, 1.999, 0, false, 1},
           {"loss_not_a_number", {.sum = NAN, .squares = 9}, 1, infinity, 0, false, 1},
           {"loss_infinite", {.sum = infinity, .squares = 9}, 1, infinity, 0, false, 1},
           {"gradient_not_finite",
            {.sum = 8, .squares = 9, .non_finite = 1},
            1,
            infinity,
            0,
            false,
            1}}) {
    cases.push_back(DecideUpdateCase(decision));
  }
  return cases;
}

}  // namespace weft::kernels::testing
