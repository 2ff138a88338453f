#include "kernels/moe_route/moe_route.h"

#include <algorithm>

#include "kernels/moe_route/moe_route_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Sizes {
  int64_t tokens, experts, k;
};

std::string NameOf(const char* op, const Sizes& sizes, DType dtype) {
  return std::string(op) + "/" + std::to_string(sizes.tokens) + "x" +
         std::to_string(sizes.experts) + "/k" + std::to_string(sizes.k) + "/" +
         std::string(DTypeName(dtype));
}

/// How tokens are routed, without their sizes.
struct RouteOptions {
  bool normalize = true;
  /// [sequences]: how many tokens of each are not padding; none: all.
  std::vector<int32_t> lengths = {};

  std::string Name() const {
    return std::string(normalize ? "" : "/probabilities") + (lengths.empty() ? "" : "/padded");
  }
  bool IsPadding(int64_t token, int64_t tokens) const {
    if (lengths.empty()) return false;
    const int64_t row = tokens / std::ssize(lengths);
    return token % row >= lengths[static_cast<size_t>(token / row)];
  }
};

std::vector<ref::Route> Routes(const std::vector<double>& logits, const Sizes& sizes,
                               const RouteOptions& options) {
  std::vector<ref::Route> routes;
  for (int64_t token = 0; token < sizes.tokens; ++token) {
    const auto begin = logits.begin() + token * sizes.experts;
    routes.push_back(
        options.IsPadding(token, sizes.tokens)
            ? ref::RoutePadding(sizes.experts, sizes.k)
            : ref::RouteToken({begin, begin + sizes.experts}, sizes.k, options.normalize));
  }
  return routes;
}

// One field of all routes, row by row.
template <class T>
std::vector<double> Joined(const std::vector<ref::Route>& routes,
                           std::vector<T> ref::Route::*field) {
  std::vector<double> all;
  for (const ref::Route& route : routes) {
    for (const T value : route.*field) all.push_back(static_cast<double>(value));
  }
  return all;
}

OpCase ForwardCase(const Sizes& sizes, DType dtype, CaseUse use, const RouteOptions& options = {}) {
  const int64_t tokens = sizes.tokens, experts = sizes.experts, k = sizes.k;
  return {
      NameOf("moe_route", sizes, dtype) + options.Name(), use, [=](OpRun& run) {
        TestTensor& logits = run.Input(dtype, {tokens, experts}, 0, 3.0);
        const auto routes = [=, &logits] { return Routes(logits.InitialValues(), sizes, options); };
        TestTensor& probabilities =
            run.Output("probabilities", DType::kF32, {tokens, experts}, 0, experts,
                       [=] { return Joined(routes(), &ref::Route::probabilities); });
        TestTensor& chosen = run.Output("chosen", DType::kI32, {tokens, k}, 0, 1,
                                        [=] { return Joined(routes(), &ref::Route::chosen); });
        TestTensor& weights = run.Output("weights", DType::kF32, {tokens, k}, 0, experts,
                                         [=] { return Joined(routes(), &ref::Route::weights); });
        MoeRouteArgs args = {logits.view(), probabilities.view(), chosen.view(), weights.view()};
        args.normalize = options.normalize;
        if (!options.lengths.empty()) {
          args.lengths =
              run.tensors.emplace_back(DType::kI32, Shape{std::ssize(options.lengths)})
                  .Assign(std::vector<double>(options.lengths.begin(), options.lengths.end()))
                  .view();
        }
        run.run = [args](const Stream& stream) { return MoeRoute(stream, args); };
        run.bytes = static_cast<double>(logits.view().Bytes() + probabilities.view().Bytes());
      }};
}

OpCase BackwardCase(const Sizes& sizes, DType dtype, CaseUse use,
                    const RouteOptions& options = {}) {
  const int64_t tokens = sizes.tokens, experts = sizes.experts, k = sizes.k;
  return {
      NameOf("moe_route_backward", sizes, dtype) + options.Name(), use, [=](OpRun& run) {
        TestTensor& logits = run.Input(DType::kF32, {tokens, experts}, 0, 3.0);
        const auto routes = Routes(logits.InitialValues(), sizes, options);
        TestTensor& probabilities = run.tensors.emplace_back(DType::kF32, Shape{tokens, experts})
                                        .Assign(Joined(routes, &ref::Route::probabilities));
        TestTensor& chosen = run.tensors.emplace_back(DType::kI32, Shape{tokens, k})
                                 .Assign(Joined(routes, &ref::Route::chosen));
        TestTensor& weights = run.tensors.emplace_back(DType::kF32, Shape{tokens, k})
                                  .Assign(Joined(routes, &ref::Route::weights));
        TestTensor& dweights = run.Input(DType::kF32, {tokens, k});
        TestTensor& balance = run.Input(DType::kF32, {experts});
        TestTensor& dlogits = run.Output(
            "dlogits", dtype, {tokens, experts}, 0, 4 * experts, [=, &dweights, &balance] {
              const std::vector<double> d = dweights.InitialValues();
              std::vector<double> all;
              for (int64_t token = 0; token < tokens; ++token) {
                const auto begin = d.begin() + token * k;
                const auto one = ref::RouteTokenGradient(
                    routes[token], {begin, begin + k}, balance.InitialValues(), options.normalize);
                all.insert(all.end(), one.begin(), one.end());
              }
              return all;
            });
        const MoeRouteBackwardArgs args = {probabilities.view(), chosen.view(),  weights.view(),
                                           dweights.view(),      balance.view(), dlogits.view(),
                                           options.normalize};
        run.run = [args](const Stream& stream) { return MoeRouteBackward(stream, args); };
        run.bytes = static_cast<double>(dlogits.view().Bytes() + probabilities.view().Bytes());
      }};
}

// Uneven: every seventh token has no choice, and of the first choices of tokens half want expert 0.
// `each`: expert e takes as many as its capacity, less e.
OpCase DispatchCase(const Sizes& sizes, int64_t capacity, CaseUse use, bool each = false) {
  const int64_t tokens = sizes.tokens, experts = sizes.experts, k = sizes.k;
  const std::string name = NameOf("moe_dispatch", sizes, DType::kI32);
  return {
      name + (capacity > 0 ? "/capacity" + std::to_string(capacity) : "") + (each ? "/each" : ""),
      use, [=](OpRun& run) {
        std::vector<double> wishes;
        for (int64_t token = 0; token < tokens; ++token) {
          const int64_t first = token % 2 == 0 ? 0 : token * token % experts;
          for (int64_t i = 0; i < k; ++i) {
            wishes.push_back(token % 7 == 3 ? -1 : static_cast<double>((first + i) % experts));
          }
        }
        std::vector<double> capacities;
        for (int64_t e = 0; e < experts && capacity > 0; ++e) {
          capacities.push_back(
              static_cast<double>(each ? std::max<int64_t>(capacity - e, 0) : capacity));
        }
        const ref::Dispatch want = ref::DispatchChoices(wishes, experts, k, capacities);
        TestTensor& chosen = run.tensors.emplace_back(DType::kI32, Shape{tokens, k}).Assign(wishes);
        const auto output = [&](const char* field, const Shape& shape,
                                const std::vector<double>& values) {
          return run.Output(field, DType::kI32, shape, 0, 1, [values] { return values; }).view();
        };
        MoeDispatchArgs args;
        args.chosen = chosen.view();
        if (each) {
          args.capacities =
              run.tensors.emplace_back(DType::kI32, Shape{experts}).Assign(capacities).view();
        } else {
          args.capacity = capacity;
        }
        args.rows = output("rows", {tokens * k}, want.rows);
        args.places = output("places", {tokens, k}, want.places);
        args.wanted_count = output("wanted_count", {experts}, want.wanted);
        args.taken_count = output("taken_count", {experts}, want.taken);
        run.run = [args](const Stream& stream) { return MoeDispatch(stream, args); };
        run.bytes = static_cast<double>(3 * args.chosen.Bytes());
      }};
}

}  // namespace

std::vector<OpCase> MoeRouteCases() {
  std::vector<OpCase> cases;
  const Sizes several = {1300, 40, 3};  // parts
  for (const int64_t capacity : {0, 3}) {
    cases.push_back(DispatchCase({0, 4, 2}, capacity, CaseUse::kTest));
    cases.push_back(DispatchCase({5, 3, 3}, capacity, CaseUse::kTest));
    cases.push_back(DispatchCase({700, 8, 2}, capacity, CaseUse::kTest));
  }
  cases.push_back(DispatchCase(several, 0, CaseUse::kTest));
  cases.push_back(DispatchCase(several, 100, CaseUse::kTest));
  cases.push_back(DispatchCase(several, 30, CaseUse::kTest, true));
  cases.push_back(DispatchCase({16384, 8, 2}, 0, CaseUse::kSpeed));
  for (DType dtype : kFloatTypes) {
    const auto add = [&](const Sizes& sizes, CaseUse use) {
      cases.push_back(ForwardCase(sizes, dtype, use));
      cases.push_back(BackwardCase(sizes, dtype, use));
    };
    add({0, 4, 2}, CaseUse::kTest);
    add({1, 1, 1}, CaseUse::kTest);
    add({5, 3, 3}, CaseUse::kTest);
    add({700, 8, 2}, CaseUse::kTest);
    add({33, 64, 6}, CaseUse::kTest);
    const auto add_options = [&](const Sizes& sizes, const RouteOptions& options) {
      cases.push_back(ForwardCase(sizes, dtype, CaseUse::kTest, options));
      cases.push_back(BackwardCase(sizes, dtype, CaseUse::kTest, options));
    };
    add_options({33, 64, 6}, {.normalize = false});
    add_options({33, 5, 1}, {.normalize = false});
    add_options({700, 8, 2}, {.lengths = {100, 0, 7, 175}});
    add_options({6, 40, 3}, {.normalize = false, .lengths = {2, 1, 1}});
    add({16384, 8, 2}, CaseUse::kSpeed);
  }
  return cases;
}

}  // namespace weft::kernels::testing
