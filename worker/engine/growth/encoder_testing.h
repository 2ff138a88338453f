#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/activation/activation_ref.h"
#include "worker/engine/data/batch.h"
#include "worker/engine/growth/float64_testing.h"

namespace weft::engine::float64 {

/// BERT (Devlin et al. 2019) or ViT (Dosovitskiy et al. 2021).
class Encoder : public Network {
 public:
  using Network::Network;

  /// Logits of the class of each sequence or image, or of the tokens that are to be predicted.
  Rows Logits(const Batch& batch) const {
    const Rows x = Blocks(vit() ? EmbedImages(batch) : EmbedTokens(batch),
                          [&](int64_t i, const Rows& in) { return Block(i, in, batch); });
    const bool classifies = vit() || model_.classes > 0;
    Rows logits = classifies ? Classes(x, batch) : Tokens(x, batch);
    for (Row& row : logits) {
      row.resize(static_cast<size_t>(classifies ? model_.classes : model_.vocab_size));
    }
    return logits;
  }

 private:
  bool vit() const { return model_.family == "vit"; }

  Rows EmbedTokens(const Batch& batch) const {
    const std::string in = "bert.embeddings.";
    const int64_t width = model_.width;
    Rows x;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      const Row position = TableRow(in + "position_embeddings.weight", batch.positions[t], width);
      const Row type = TableRow(in + "token_type_embeddings.weight", 0, width);
      Row& row = x.emplace_back(TableRow(in + "word_embeddings.weight", batch.tokens[t], width));
      for (size_t c = 0; c < row.size(); ++c) row[c] += position[c] + type[c];
    }
    return Norm(x, in + "LayerNorm");
  }

  /// The pixels of the patches of an image, channel after channel.
  Rows Patches(const Batch& batch, int64_t image) const {
    const int64_t patch = model_.patch_size, pixels = model_.image_size, side = pixels / patch;
    Rows patches;
    for (int64_t p = 0; p < side * side; ++p) {
      Row& row = patches.emplace_back();
      for (int64_t i = 0; i < model_.image_channels * patch * patch; ++i) {
        const int64_t channel = i / (patch * patch), y = i / patch % patch, column = i % patch;
        const int64_t line =
            (image * model_.image_channels + channel) * pixels + p / side * patch + y;
        row.push_back(batch.pixels[static_cast<size_t>(line * pixels + p % side * patch + column)]);
      }
    }
    return patches;
  }

  Rows EmbedImages(const Batch& batch) const {
    const std::string in = "vit.embeddings.";
    Rows x;
    for (int64_t image = 0; image < batch.sequences; ++image) {
      x.push_back(TableRow(in + "cls_token", 0, model_.width));
      for (Row& row : Linear(Patches(batch, image), in + "patch_embeddings.projection")) {
        x.push_back(std::move(row));
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Row position = TableRow(in + "position_embeddings", batch.positions[t], model_.width);
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += position[c];
    }
    Multiply(x, columns_);
    return x;
  }

  Rows Block(int64_t block, const Rows& x, const Batch& batch) const {
    const std::string name =
        std::string(vit() ? "vit" : "bert") + ".encoder.layer." + std::to_string(block) + ".";
    const std::string self = name + (vit() ? "attention.attention." : "attention.self.");
    const std::string attention = name + "attention.output.dense", mlp = name + "output.dense";
    const Rows middle =
        Branch(x, name + (vit() ? "layernorm_before" : "attention.output.LayerNorm"), attention,
               [&](const Rows& in) {
                 return Linear(Attend(Linear(in, self + "query"), Linear(in, self + "key"),
                                      Linear(in, self + "value"), batch.length, false),
                               attention);
               });
    return Branch(middle, name + (vit() ? "layernorm_after" : "output.LayerNorm"), mlp,
                  [&](const Rows& in) {
                    Rows inner = Linear(in, name + "intermediate.dense");
                    Apply(inner, kernels::ref::ErfGelu);
                    Multiply(inner, neurons_);
                    return Linear(inner, mlp);
                  });
  }

  Rows Classes(const Rows& x, const Batch& batch) const {
    Rows first;
    for (int64_t s = 0; s < batch.sequences; ++s) {
      first.push_back(x[static_cast<size_t>(s * batch.length)]);
    }
    if (vit()) return Linear(Norm(first, "vit.layernorm"), "classifier");
    Rows pooled = Linear(first, "bert.pooler.dense");
    Apply(pooled, std::tanh);
    Multiply(pooled, columns_);
    return Linear(pooled, "classifier");
  }

  Rows Tokens(const Rows& x, const Batch& batch) const {
    Rows picked;
    for (const int32_t row : batch.target_rows) picked.push_back(x[static_cast<size_t>(row)]);
    Rows hidden = Linear(picked, "cls.predictions.transform.dense");
    Apply(hidden, kernels::ref::ErfGelu);
    hidden = Norm(hidden, "cls.predictions.transform.LayerNorm");
    return Product(hidden, Tensor("bert.embeddings.word_embeddings.weight"),
                   Tensor("cls.predictions.bias"));
  }
};

}  // namespace weft::engine::float64
