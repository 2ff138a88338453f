#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/attention/attention_ref.h"
#include "kernels/testing/all_cases.h"

namespace weft::kernels::testing {
namespace {

struct Geometry {
  std::vector<int32_t> lengths;
  int64_t heads = 1;
  int64_t kv_heads = 1;
  int64_t head_dim = 64;
  bool causal = true;
  int64_t window = 0;
  int64_t padding = 0;  ///< Elements between the rows of the inputs, and more between outputs'.
  float dropout = 0;
};

// Both halves of the seed matter; tokens run over the border of 32 bits.
constexpr PhiloxKey kDropoutKey = {.seed = 0xfedcba9876543210u, .step = 12345, .site = 0x80000001u};
constexpr int64_t kFirstToken = (int64_t{1} << 32) - 20, kFirstHead = 700;

std::string NameOf(const Geometry& g, DType dtype) {
  std::string lengths;
  if (g.lengths.size() > 3) {
    lengths = std::to_string(g.lengths.size()) + "x" + std::to_string(g.lengths[0]);
  } else {
    for (int32_t length : g.lengths)
      lengths += (lengths.empty() ? "t" : "+") + std::to_string(length);
  }
  return lengths + "/h" + std::to_string(g.heads) + "k" + std::to_string(g.kv_heads) + "d" +
         std::to_string(g.head_dim) + (g.causal ? "/causal" : "/full") +
         (g.window > 0 ? "_w" + std::to_string(g.window) : "") +
         (g.padding > 0 ? "_p" + std::to_string(g.padding) : "") +
         (g.dropout > 0 ? "_drop" + std::to_string(std::lround(g.dropout * 100)) : "") + "/" +
         std::string(DTypeName(dtype));
}

std::vector<int32_t> Starts(const Geometry& g) {
  std::vector<int32_t> starts = {0};
  for (int32_t length : g.lengths) starts.push_back(starts.back() + length);
  return starts;
}

// The length of all sequences; 0 where they differ.
int64_t CommonLength(const Geometry& g) {
  const bool same = std::adjacent_find(g.lengths.begin(), g.lengths.end(), std::not_equal_to<>()) ==
                    g.lengths.end();
  return same && !g.lengths.empty() ? g.lengths[0] : 0;
}

// Query-key pairs that are seen, over all heads.
double Pairs(const Geometry& g) {
  double pairs = 0;
  for (double t : g.lengths) pairs += g.causal ? t * (t + 1) / 2 : t * t;
  return pairs * static_cast<double>(g.heads);
}

// Length of the sums behind a result: three over a head's columns, one over a row.
int64_t Terms(const Geometry& g) {
  int32_t longest = 0;
  for (int32_t length : g.lengths) longest = std::max(longest, length);
  return 3 * g.head_dim + longest;
}

// The inputs of a forward pass, q, k and v in one packed matrix, and their reference.
struct Inputs {
  TestTensor& qkv;
  TestTensor& sequence_starts;
  AttentionForwardArgs args;  // without outputs
  ref::Attention reference;
};

Inputs MakeInputs(OpRun& run, const Geometry& g, DType dtype, CaseUse use) {
  std::vector<int32_t> starts = Starts(g);
  int64_t tokens = starts.back();
  int64_t q_width = g.heads * g.head_dim, kv_width = g.kv_heads * g.head_dim;
  // Values up to 2, so that scores spread over several units.
  TestTensor& qkv = run.Input(dtype, {tokens, q_width + 2 * kv_width}, g.padding, 2.0);
  TestTensor& sequence_starts =
      run.tensors.emplace_back(DType::kI32, Shape{static_cast<int64_t>(starts.size())});
  sequence_starts.Assign({starts.begin(), starts.end()});
  auto part = [&](int64_t first, int64_t width) {
    TensorView view = qkv.view();
    view.data = static_cast<char*>(view.data) + first * DTypeSize(dtype);
    view.shape = {tokens, width};
    return view;
  };
  AttentionForwardArgs args = {.q = part(0, q_width),
                               .k = part(q_width, kv_width),
                               .v = part(q_width + kv_width, kv_width),
                               .sequence_starts = sequence_starts.view(),
                               .heads = g.heads,
                               .kv_heads = g.kv_heads,
                               .scale = 1.0f / std::sqrt(static_cast<float>(g.head_dim)),
                               .causal = g.causal,
                               .window = g.window,
                               .out = {},
                               .log_sum_exp = {},
                               .length = CommonLength(g),
                               .dropout = {.probability = g.dropout,
                                           .key = kDropoutKey,
                                           .first_token = kFirstToken,
                                           .first_head = kFirstHead}};
  ref::Attention reference = {.sequence_starts = starts,
                              .heads = g.heads,
                              .kv_heads = g.kv_heads,
                              .head_dim = g.head_dim,
                              .scale = args.scale,
                              .causal = g.causal,
                              .window = g.window,
                              .dropout = g.dropout,
                              .key = kDropoutKey,
                              .first_token = kFirstToken,
                              .first_head = kFirstHead,
                              .q = {},
                              .k = {},
                              .v = {}};
  if (use != CaseUse::kTest) return {qkv, sequence_starts, args, std::move(reference)};
  std::vector<double> values = qkv.InitialValues();
  int64_t row = q_width + 2 * kv_width;
  for (int64_t t = 0; t < tokens; ++t) {
    auto begin = values.begin() + t * row;
    reference.q.insert(reference.q.end(), begin, begin + q_width);
    reference.k.insert(reference.k.end(), begin + q_width, begin + q_width + kv_width);
    reference.v.insert(reference.v.end(), begin + q_width + kv_width, begin + row);
  }
  return {qkv, sequence_starts, args, std::move(reference)};
}

/// `compute`, which computes on the first call what all calls return.
template <class Compute>
auto Once(Compute compute) {
  auto result = std::make_shared<std::optional<decltype(compute())>>();
  return [=]() -> const decltype(compute())& {
    if (!*result) *result = compute();
    return **result;
  };
}

OpCase ForwardCase(const Geometry& g, DType dtype, CaseUse use) {
  return {"attention_forward/" + NameOf(g, dtype), use, [=](OpRun& run) {
            Inputs inputs = MakeInputs(run, g, dtype, use);
            int64_t tokens = inputs.reference.Tokens();
            auto reference = inputs.reference;
            const auto results = Once([reference] { return reference.Forward(); });
            TestTensor& out = run.Output("out", dtype, {tokens, g.heads * g.head_dim},
                                         8 + g.padding, Terms(g), [=] { return results().out; });
            TestTensor& lse = run.Output("log_sum_exp", DType::kF32, {g.heads, tokens}, 0, Terms(g),
                                         [=] { return results().log_sum_exp; });
            AttentionForwardArgs args = inputs.args;
            args.out = out.view();
            args.log_sum_exp = lse.view();
            run.run = [args](const Stream& stream) { return AttentionForward(stream, args); };
            run.flops = 4 * Pairs(g) * static_cast<double>(g.head_dim);
            // q and out, k and v; the row statistics.
            run.bytes = static_cast<double>(2 * tokens * (g.heads + g.kv_heads) * g.head_dim *
                                            DTypeSize(dtype)) +
                        static_cast<double>(lse.view().Bytes());
            run.compute = dtype;
          }};
}

OpCase BackwardCase(const Geometry& g, DType dtype, CaseUse use) {
  return {"attention_backward/" + NameOf(g, dtype), use, [=](OpRun& run) {
            Inputs inputs = MakeInputs(run, g, dtype, use);
            int64_t tokens = inputs.reference.Tokens(), width = g.heads * g.head_dim;
            int64_t kv_width = g.kv_heads * g.head_dim;
            TestTensor& dout = run.Input(dtype, {tokens, width}, 16);
            TestTensor& out = run.tensors.emplace_back(dtype, Shape{tokens, width});
            TestTensor& lse = run.tensors.emplace_back(DType::kF32, Shape{g.heads, tokens});
            auto reference = inputs.reference;
            if (use == CaseUse::kTest) {
              ref::Attention::Output forward = reference.Forward();
              out.Assign(forward.out);
              lse.Assign(forward.log_sum_exp);
            } else {
              out.Random(run.rng);
              lse.Random(run.rng);
            }
            const auto gradient = Once([reference, &dout, &out] {
              return reference.Backward(dout.InitialValues(), out.InitialValues());
            });
            TestTensor& dq = run.Output("dq", dtype, {tokens, width}, 0, Terms(g),
                                        [gradient] { return gradient().dq; });
            TestTensor& dk = run.Output("dk", dtype, {tokens, kv_width}, 8 + g.padding, Terms(g),
                                        [gradient] { return gradient().dk; });
            TestTensor& dv = run.Output("dv", dtype, {tokens, kv_width}, 8, Terms(g),
                                        [gradient] { return gradient().dv; });
            // Probabilities, their gradients, the products' operands and the result; and more since
            // in dS, which sums to 0 over a row, large terms may leave a small result.
            for (auto& output : run.outputs) output.roundings = 6;
            AttentionBackwardArgs args = {.forward = inputs.args,
                                          .dout = dout.view(),
                                          .dq = dq.view(),
                                          .dk = dk.view(),
                                          .dv = dv.view()};
            args.forward.out = out.view();
            args.forward.log_sum_exp = lse.view();
            run.run = [args](const Stream& stream) { return AttentionBackward(stream, args); };
            run.flops = 10 * Pairs(g) * static_cast<double>(g.head_dim);
            // q, out and their gradients, k and v and theirs.
            run.bytes = static_cast<double>(4 * tokens * (g.heads + g.kv_heads) * g.head_dim *
                                            DTypeSize(dtype)) +
                        static_cast<double>(lse.view().Bytes());
            run.compute = dtype;
          }};
}

}  // namespace

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> cases;
  auto add = [&cases](const Geometry& g, CaseUse use) {
    for (DType dtype : kFloatTypes) {
      cases.push_back(ForwardCase(g, dtype, use));
      cases.push_back(BackwardCase(g, dtype, use));
    }
  };
  for (int64_t head_dim : {8, 24, 40, 64, 72, 128, 256}) {
    add({.lengths = {65}, .head_dim = head_dim}, CaseUse::kTest);
  }
  for (int32_t length : {2, 7, 63, 200}) {
    add({.lengths = {length}, .heads = 2, .kv_heads = 1, .head_dim = 16}, CaseUse::kTest);
    add({.lengths = {length}, .heads = 2, .kv_heads = 2, .head_dim = 16, .causal = false},
        CaseUse::kTest);
  }
  add({.lengths = {1, 70, 1}, .heads = 6, .kv_heads = 2, .head_dim = 32}, CaseUse::kTest);
  add({.lengths = {33, 0, 270}, .heads = 3, .kv_heads = 1, .head_dim = 8, .causal = false},
      CaseUse::kTest);
  add({.lengths = {}}, CaseUse::kTest);
  add({.lengths = {1, 80, 20}, .heads = 4, .kv_heads = 1, .head_dim = 80, .causal = false},
      CaseUse::kTest);
  add({.lengths = {140}, .heads = 2, .kv_heads = 1, .head_dim = 128}, CaseUse::kTest);
  add({.lengths = {70, 3}, .heads = 2, .kv_heads = 1, .head_dim = 256, .causal = false},
      CaseUse::kTest);
  add({.lengths = {20, 180}, .head_dim = 96, .window = 70}, CaseUse::kTest);
  add({.lengths = {50, 50, 50},
       .heads = 4,
       .kv_heads = 2,
       .head_dim = 24,
       .window = 20,
       .padding = 8},
      CaseUse::kTest);
  // Rows that vector accesses of 16-bit elements cannot reach.
  for (int64_t head_dim : {24, 136}) {
    add({.lengths = {5, 50}, .heads = 2, .kv_heads = 1, .head_dim = head_dim, .padding = 1},
        CaseUse::kTest);
  }
  for (int64_t window : {2, 10, 64, 65, 129, 300}) {
    const int64_t heads = window == 65 ? 2 : 1;
    add({.lengths = {3, 300}, .heads = heads, .kv_heads = 1, .head_dim = 16, .window = window},
        CaseUse::kTest);
  }
  for (int64_t head_dim : {24, 64, 96, 128, 200}) {
    add({.lengths = {3, 150}, .heads = 2, .kv_heads = 1, .head_dim = head_dim, .dropout = 0.25f},
        CaseUse::kTest);
  }
  for (float dropout : {1e-6f, 0.1f, 0.9f}) {
    add({.lengths = {33, 0, 300}, .heads = 2, .head_dim = 16, .causal = false, .dropout = dropout},
        CaseUse::kTest);
  }
  add({.lengths = {5, 300}, .head_dim = 32, .window = 75, .padding = 1, .dropout = 0.5f},
      CaseUse::kTest);
  for (float dropout : {0.0f, 0.1f}) {
    add({.lengths = std::vector<int32_t>(8, 256), .heads = 6, .kv_heads = 6, .dropout = dropout},
        CaseUse::kSpeed);
    add({.lengths = std::vector<int32_t>(4, 512), .heads = 12, .kv_heads = 12, .dropout = dropout},
        CaseUse::kSpeed);
  }
  const auto add_device = [&cases](const Geometry& g) {
    cases.push_back(ForwardCase(g, DType::kBF16, CaseUse::kDeviceSpeed));
    cases.push_back(BackwardCase(g, DType::kBF16, CaseUse::kDeviceSpeed));
  };
  // 16384 tokens of width 2048, the shapes of the FlashAttention papers.
  for (int64_t head_dim : {64, 128}) {
    for (bool causal : {false, true}) {
      for (int32_t length : {512, 1024, 2048, 4096, 8192, 16384}) {
        add_device({.lengths = std::vector<int32_t>(16384 / length, length),
                    .heads = 2048 / head_dim,
                    .kv_heads = 2048 / head_dim,
                    .head_dim = head_dim,
                    .causal = causal});
      }
    }
  }
  // GPT-2 124M, with and without dropout, and a Llama with grouped queries.
  for (float dropout : {0.0f, 0.1f}) {
    add_device({.lengths = std::vector<int32_t>(64, 1024),
                .heads = 12,
                .kv_heads = 12,
                .dropout = dropout});
  }
  add_device({.lengths = std::vector<int32_t>(4, 4096), .heads = 32, .kv_heads = 8});
  return cases;
}

}  // namespace weft::kernels::testing
