#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/activation/activation_ref.h"
#include "kernels/moe_route/moe_route_ref.h"
#include "kernels/rope/rope_ref.h"
#include "worker/engine/data/batch.h"
#include "worker/engine/growth/float64_testing.h"
#include "worker/engine/nn/rotary.h"

namespace weft::engine::float64 {

/// GPT-2 (Radford et al. 2019) or Llama (Touvron et al. 2023, arXiv 2302.13971), whose MLPs may be
/// experts (Jiang et al. 2024, arXiv 2401.04088), without windows, dropout and muP.
class Decoder : public Network {
 public:
  using Network::Network;

  /// Logits of the token after each row.
  Rows Logits(const Batch& batch) const {
    Rows x = Blocks(Embed(batch), [&](int64_t i, const Rows& in) { return Block(i, in, batch); });
    if (NormPositionOf(model_) == "pre") x = Norm(x, llama() ? "model.norm" : "transformer.ln_f");
    if (Has("embedding_out.weight")) x = Linear(x, "embedding_out");
    return Product(x, Tensor(model_.untied_classifier ? "lm_head.weight" : TokenTable()),
                   Row(static_cast<size_t>(model_.vocab_size)));
  }

 private:
  bool llama() const { return model_.family == "llama"; }
  std::string TokenTable() const {
    return llama() ? "model.embed_tokens.weight" : "transformer.wte.weight";
  }

  Rows Embed(const Batch& batch) const {
    const int64_t width = EmbeddingWidth(model_);
    Rows x;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      Row& row = x.emplace_back(TableRow(TokenTable(), batch.tokens[t], width));
      if (llama()) continue;
      const Row position = TableRow("transformer.wpe.weight", batch.positions[t], width);
      for (size_t c = 0; c < row.size(); ++c) row[c] += position[c];
    }
    if (Has("embedding_in.weight")) x = Linear(x, "embedding_in");
    Multiply(x, columns_);
    return x;
  }

  Rows Block(int64_t block, const Rows& x, const Batch& batch) const {
    const std::string name =
        (llama() ? "model.layers." : "transformer.h.") + std::to_string(block) + ".";
    const std::string attention = name + (llama() ? "self_attn.o_proj" : "attn.c_proj");
    const std::string mlp = name + (llama() ? "mlp.down_proj" : "mlp.c_proj");
    const Rows middle =
        Branch(x, name + (llama() ? "input_layernorm" : "ln_1"), attention, [&](const Rows& in) {
          return Linear(llama() ? AttendRotated(in, name + "self_attn.", batch)
                                : AttendStacked(in, name + "attn.c_attn", batch),
                        attention);
        });
    return Branch(middle, name + (llama() ? "post_attention_layernorm" : "ln_2"), mlp,
                  [&](const Rows& in) {
                    if (model_.experts > 0) return Experts(in, name + "block_sparse_moe.");
                    if (!llama()) return Linear(Activated(in, name + "mlp.c_fc"), mlp);
                    return Gated(in, name + "mlp.gate_proj", name + "mlp.up_proj", mlp);
                  });
  }

  /// Queries, keys and values of one matrix.
  Rows AttendStacked(const Rows& x, const std::string& name, const Batch& batch) const {
    const int64_t queries = QueryWidth(model_), shared = KvWidth(model_);
    Rows q, k, v;
    for (const Row& row : Linear(x, name)) {
      const auto keys = row.begin() + queries, values = keys + shared;
      q.emplace_back(row.begin(), keys);
      k.emplace_back(keys, values);
      v.emplace_back(values, row.end());
    }
    return Attend(q, k, v, batch.length, true);
  }

  Rows AttendRotated(const Rows& x, const std::string& name, const Batch& batch) const {
    Rows q = Linear(x, name + "q_proj"), k = Linear(x, name + "k_proj");
    const Row frequencies =
        RotaryFrequencies(HeadWidth(model_), model_.rope_theta, model_.rope_scaling);
    for (size_t t = 0; t < x.size(); ++t) {
      Row cosines, sines;
      for (const double frequency : frequencies) {
        cosines.push_back(std::cos(batch.positions[t] * frequency));
        sines.push_back(std::sin(batch.positions[t] * frequency));
      }
      q[t] = kernels::ref::Rope(std::move(q[t]), cosines, sines, false);
      k[t] = kernels::ref::Rope(std::move(k[t]), cosines, sines, false);
    }
    return Attend(q, k, Linear(x, name + "v_proj"), batch.length, true);
  }

  Rows Activated(const Rows& x, const std::string& up) const {
    Rows inner = Linear(x, up);
    if (model_.activation == "squared_relu") {
      Apply(inner, [](double z) { return z > 0 ? z * z : 0; });
    } else {
      Apply(inner, kernels::ref::Gelu);
    }
    Multiply(inner, neurons_);
    return inner;
  }

  /// SwiGLU (Shazeer 2020, arXiv 2002.05202).
  Rows Gated(const Rows& x, const std::string& gate, const std::string& up,
             const std::string& down) const {
    Rows inner = Linear(x, gate);
    Apply(inner, kernels::ref::Silu);
    const Rows factors = Linear(x, up);
    for (size_t t = 0; t < inner.size(); ++t) {
      for (size_t c = 0; c < inner[t].size(); ++c) inner[t][c] *= factors[t][c];
    }
    Multiply(inner, neurons_);
    return Linear(inner, down);
  }

  Rows Experts(const Rows& x, const std::string& name) const {
    const Rows logits = Linear(x, name + "gate");
    Rows y;
    for (size_t t = 0; t < x.size(); ++t) {
      const kernels::ref::Route route = kernels::ref::RouteToken(
          logits[t], model_.experts_per_token, model_.normalize_expert_weights);
      Row& out = y.emplace_back(x[t].size());
      for (size_t i = 0; i < route.chosen.size(); ++i) {
        const std::string expert = name + "experts." + std::to_string(route.chosen[i]);
        const Rows made = Gated({x[t]}, expert + ".w1", expert + ".w3", expert + ".w2");
        for (size_t c = 0; c < out.size(); ++c) out[c] += route.weights[i] * made.front()[c];
      }
    }
    return y;
  }
};

}  // namespace weft::engine::float64
