// Growth by msg of encoders in float64: the function stays to rounding, and the engine follows.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/model/model_sizes.h"
#include "common/spec/phases.h"
#include "worker/engine/growth/testing.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

constexpr int64_t kRamp = 4;

/// A mask of `size` numbers: 1 for the first `kept`, `share` for all others.
Row MaskOf(int64_t kept, int64_t size, double share) {
  Row mask(static_cast<size_t>(size), share);
  std::fill_n(mask.begin(), std::min(kept, size), 1.0);
  return mask;
}

void Multiply(Rows& x, const Row& by) {
  for (Row& row : x) {
    for (size_t c = 0; c < row.size(); ++c) row[c] *= by[c];
  }
}

/// share of `b`, the rest of `a`.
Rows Mixed(Rows a, const Rows& b, double share) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t c = 0; c < a[r].size(); ++c) a[r][c] = (1 - share) * a[r][c] + share * b[r][c];
  }
  return a;
}

Rows Sum(Rows a, const Rows& b) {
  for (size_t r = 0; r < a.size(); ++r) {
    for (size_t c = 0; c < a[r].size(); ++c) a[r][c] += b[r][c];
  }
  return a;
}

void Apply(Rows& x, double (*function)(double)) {
  for (Row& row : x) std::transform(row.begin(), row.end(), row.begin(), function);
}

double Gelu(double x) {
  return 0.5 * x * (1 + std::erf(x / std::sqrt(2.0)));
}

/// BERT (Devlin et al. 2019) or ViT (Dosovitskiy et al. 2021) with the masks of Yao et al. 2024
/// (arXiv 2305.02869, section 3): of the residual stream after each layer norm, whose statistics
/// weigh the columns, and of what is added to it; of heads and neurons before the products that
/// read them; of blocks, which pass on a share.
class Encoder {
 public:
  /// `growth`: what the masks are of; none: all is 1.
  Encoder(ModelSpec model, const TensorsByName& tensors,
          const std::optional<MaskedGrowth>& growth = std::nullopt, int64_t step = 0)
      : model_(std::move(model)), tensors_(tensors), growth_(growth) {
    const ModelSpec& before = growth ? growth->before : model_;
    share_ = growth ? ShareOfGrowth(growth->growth, step) : 1;
    columns_ = MaskOf(before.width, model_.width, share_);
    heads_ = MaskOf(before.width, model_.width, share_);
    neurons_ = MaskOf(MlpWidth(before), MlpWidth(model_), share_);
  }

  Rows Logits(const Batch& batch) const {
    const bool vit = model_.family == "vit";
    Rows x = vit ? EmbedImages(batch) : EmbedTokens(batch);
    for (int64_t block = 0; block < model_.layers; ++block) {
      const Rows y = Block(block, x, batch);
      const bool added =
          growth_ && IsAddedBlock(growth_->growth, growth_->before.layers, model_.layers, block);
      x = added ? Mixed(std::move(x), y, share_) : y;
    }
    const bool classifies = vit || model_.classes > 0;
    Rows logits = classifies ? Classes(x, batch) : Tokens(x, batch);
    for (Row& row : logits) {
      row.resize(static_cast<size_t>(classifies ? model_.classes : model_.vocab_size));
    }
    return logits;
  }

 private:
  const Row& Tensor(const std::string& name) const { return tensors_.at(name); }

  Row TableRow(const std::string& name, int64_t row) const {
    const Row& table = Tensor(name);
    const auto begin = table.begin() + row * model_.width;
    return {begin, begin + model_.width};
  }

  Rows Linear(const Rows& x, const std::string& name) const {
    return Product(x, name + ".weight", name + ".bias");
  }
  Rows Product(const Rows& x, const std::string& weight, const std::string& bias) const {
    const Row &w = Tensor(weight), &b = Tensor(bias);
    Rows y;
    for (const Row& row : x) {
      Row& out = y.emplace_back(b);
      for (size_t o = 0; o < out.size(); ++o) {
        for (size_t i = 0; i < row.size(); ++i) out[o] += w[o * row.size() + i] * row[i];
      }
    }
    return y;
  }

  Rows Norm(const Rows& x, const std::string& name) const {
    const Row &gain = Tensor(name + ".weight"), &bias = Tensor(name + ".bias");
    Rows y = x;
    for (Row& row : y) {
      double mean = 0, variance = 0, sum = 0;
      for (size_t c = 0; c < row.size(); ++c) {
        mean += columns_[c] * row[c];
        sum += columns_[c];
      }
      mean /= sum;
      for (size_t c = 0; c < row.size(); ++c) {
        variance += columns_[c] * (row[c] - mean) * (row[c] - mean);
      }
      const double scale = 1 / std::sqrt(variance / sum + model_.norm_epsilon);
      for (size_t c = 0; c < row.size(); ++c) {
        row[c] = columns_[c] * ((row[c] - mean) * scale * gain[c] + bias[c]);
      }
    }
    return y;
  }

  Rows EmbedTokens(const Batch& batch) const {
    const std::string in = "bert.embeddings.";
    Rows x;
    for (size_t t = 0; t < batch.tokens.size(); ++t) {
      const Row position = TableRow(in + "position_embeddings.weight", batch.positions[t]);
      const Row type = TableRow(in + "token_type_embeddings.weight", 0);
      Row& row = x.emplace_back(TableRow(in + "word_embeddings.weight", batch.tokens[t]));
      for (size_t c = 0; c < row.size(); ++c) row[c] += position[c] + type[c];
    }
    return Norm(x, in + "LayerNorm");
  }

  Rows EmbedImages(const Batch& batch) const {
    const std::string in = "vit.embeddings.";
    const int64_t patch = model_.patch_size, side = model_.image_size / patch;
    const int64_t channels = model_.image_channels, pixels = model_.image_size;
    Rows x;
    for (int64_t image = 0; image < batch.sequences; ++image) {
      Rows patches;
      for (int64_t p = 0; p < side * side; ++p) {
        Row& row = patches.emplace_back();
        for (int64_t i = 0; i < channels * patch * patch; ++i) {
          const int64_t channel = i / (patch * patch), y = i / patch % patch, column = i % patch;
          const int64_t line = p / side * patch + y;
          row.push_back(batch.pixels[static_cast<size_t>(
              ((image * channels + channel) * pixels + line) * pixels + p % side * patch +
              column)]);
        }
      }
      x.push_back(TableRow(in + "cls_token", 0));
      for (Row& row : Linear(patches, in + "patch_embeddings.projection")) {
        x.push_back(std::move(row));
      }
    }
    for (size_t t = 0; t < x.size(); ++t) {
      const Row position = TableRow(in + "position_embeddings", batch.positions[t]);
      for (size_t c = 0; c < x[t].size(); ++c) x[t][c] += position[c];
    }
    Multiply(x, columns_);
    return x;
  }

  Rows Attention(const Rows& x, const std::string& in, const std::string& output,
                 const Batch& batch) const {
    const Rows q = Linear(x, in + "query"), k = Linear(x, in + "key"), v = Linear(x, in + "value");
    const auto width = static_cast<size_t>(HeadWidth(model_));
    const auto length = static_cast<size_t>(batch.length);
    Rows attended(x.size(), Row(static_cast<size_t>(model_.width)));
    for (size_t t = 0; t < x.size(); ++t) {
      const size_t first = t / length * length;
      for (size_t column = 0; column < attended[t].size(); column += width) {
        Row weights;
        for (size_t s = first; s < first + length; ++s) {
          double score = 0;
          for (size_t c = column; c < column + width; ++c) score += q[t][c] * k[s][c];
          weights.push_back(score / std::sqrt(static_cast<double>(width)));
        }
        const double most = *std::max_element(weights.begin(), weights.end());
        double sum = 0;
        for (double& weight : weights) sum += weight = std::exp(weight - most);
        for (size_t s = 0; s < length; ++s) {
          for (size_t c = column; c < column + width; ++c) {
            attended[t][c] += weights[s] / sum * v[first + s][c];
          }
        }
      }
    }
    Multiply(attended, heads_);
    return Linear(attended, output);
  }

  Rows Mlp(const Rows& x, const std::string& up, const std::string& down) const {
    Rows inner = Linear(x, up);
    Apply(inner, Gelu);
    Multiply(inner, neurons_);
    return Linear(inner, down);
  }

  Rows Block(int64_t block, const Rows& x, const Batch& batch) const {
    const bool vit = model_.family == "vit";
    const std::string name =
        std::string(vit ? "vit" : "bert") + ".encoder.layer." + std::to_string(block) + ".";
    const std::string self = name + (vit ? "attention.attention." : "attention.self.");
    const auto attend = [&](const Rows& in) {
      Rows branch = Attention(in, self, name + "attention.output.dense", batch);
      Multiply(branch, columns_);
      return branch;
    };
    const auto transform = [&](const Rows& in) {
      Rows branch = Mlp(in, name + "intermediate.dense", name + "output.dense");
      Multiply(branch, columns_);
      return branch;
    };
    if (vit) {
      const Rows middle = Sum(attend(Norm(x, name + "layernorm_before")), x);
      return Sum(transform(Norm(middle, name + "layernorm_after")), middle);
    }
    const Rows middle = Norm(Sum(attend(x), x), name + "attention.output.LayerNorm");
    return Norm(Sum(transform(middle), middle), name + "output.LayerNorm");
  }

  Rows Classes(const Rows& x, const Batch& batch) const {
    Rows first;
    for (int64_t s = 0; s < batch.sequences; ++s) {
      first.push_back(x[static_cast<size_t>(s * batch.length)]);
    }
    if (model_.family == "vit") return Linear(Norm(first, "vit.layernorm"), "classifier");
    Rows pooled = Linear(first, "bert.pooler.dense");
    Apply(pooled, std::tanh);
    Multiply(pooled, columns_);
    return Linear(pooled, "classifier");
  }

  Rows Tokens(const Rows& x, const Batch& batch) const {
    Rows picked;
    for (const int32_t row : batch.target_rows) picked.push_back(x[static_cast<size_t>(row)]);
    Rows hidden = Linear(picked, "cls.predictions.transform.dense");
    Apply(hidden, Gelu);
    hidden = Norm(hidden, "cls.predictions.transform.LayerNorm");
    return Product(hidden, "bert.embeddings.word_embeddings.weight", "cls.predictions.bias");
  }

  ModelSpec model_;
  const TensorsByName& tensors_;
  std::optional<MaskedGrowth> growth_;
  double share_ = 1;
  Row columns_, heads_, neurons_;
};

Row Flat(const Rows& rows) {
  Row flat;
  for (const Row& row : rows) flat.insert(flat.end(), row.begin(), row.end());
  return flat;
}

/// The largest difference, as a share of the largest number of `truth`.
template <class Numbers>
double Distance(const Numbers& numbers, const Row& truth) {
  EXPECT_EQ(numbers.size(), truth.size());
  double difference = 0, largest = 0;
  for (size_t i = 0; i < truth.size(); ++i) {
    difference = std::max(difference, std::abs(numbers[i] - truth[i]));
    largest = std::max(largest, std::abs(truth[i]));
  }
  return difference / largest;
}

/// Of two blocks, four heads of 8 columns and an MLP of 48.
ModelSpec Small(const std::string& kind) {
  ModelSpec model = TinyModel();
  model.width = 32;
  model.heads = 4;
  model.mlp_width = 48;
  model.family = kind == "vit" ? "vit" : "bert";
  if (kind == "vit") {
    model.classes = 4;
    model.image_size = 16;
    model.patch_size = 8;
  }
  if (kind == "bert, classes") {
    model.head = "classification";
    model.classes = 5;
  }
  return model;
}

Batch BatchOf(const ModelSpec& model) {
  if (model.family == "vit") return *NoiseImages(model).Get(0, 0, 3);
  if (model.classes > 0) return *RandomLabelled(model.vocab_size, 16, model.classes).Get(0, 0, 3);
  return *RandomMasked(model.vocab_size, 16, 0.5).Get(0, 0, 2);
}

using Change = void (*)(ModelSpec&);
constexpr std::pair<const char*, Change> kDimensions[] = {
    {"width and heads", [](ModelSpec& m) { m.width = 48, m.heads = 6; }},
    {"mlp_width", [](ModelSpec& m) { m.mlp_width = 100; }},
    {"layers", [](ModelSpec& m) { m.layers = 5; }},
    {"all", [](ModelSpec& m) { m.width = 64, m.heads = 8, m.mlp_width = 160, m.layers = 3; }},
};

/// Calls check(growth, now, tensors of before, tensors of now), whose new numbers are `factor`
/// times as large, for all encoders and dimensions.
void ForEachGrowth(double factor,
                   const std::function<void(const MaskedGrowth&, const ModelSpec&,
                                            const TensorsByName&, const TensorsByName&)>& check) {
  for (const char* kind : {"bert", "bert, classes", "vit"}) {
    for (const auto& [dimension, change] : kDimensions) {
      SCOPED_TRACE(std::string(kind) + ", " + dimension);
      MaskedGrowth growth{Small(kind), Method("msg")};
      growth.growth.ramp_steps = kRamp;
      growth.growth.new_blocks = "random";
      ModelSpec now = growth.before;
      change(now);
      const TensorsByName tensors = RandomTensors(growth.before, 31);
      TensorsByName large = RandomTensors(now, 32);
      for (auto& [name, values] : large) {
        for (double& value : values) value *= factor;
      }
      check(growth, now, tensors, Grown(growth.before, now, growth.growth, tensors, large));
    }
  }
}

TEST(MaskedEncoders, KeepTheFunctionToRoundingInFloat64) {
  ForEachGrowth(10, [](const MaskedGrowth& growth, const ModelSpec& now,
                       const TensorsByName& tensors, const TensorsByName& grown) {
    const Batch batch = BatchOf(now);
    const Row before = Flat(Encoder(growth.before, tensors).Logits(batch));
    EXPECT_LT(Distance(Flat(Encoder(now, grown, growth).Logits(batch)), before), 1e-12);
    EXPECT_GT(Distance(Flat(Encoder(now, grown).Logits(batch)), before), 0.01)
        << "what is added would be seen";
  });
}

TEST(MaskedEncoders, TheEngineFollowsTheFormulas) {
  ForEachGrowth(1, [](const MaskedGrowth& growth, const ModelSpec& now, const TensorsByName&,
                      const TensorsByName& grown) {
    ModelOptions options;
    options.precision = &kFp32Precision;
    options.growth = growth;
    TinyRun run(now, options);
    ParameterSet& parameters = run.model->parameters();
    for (int64_t i = 0; i < parameters.size(); ++i) {
      const std::vector<double>& values = grown.at(parameters[i].name);
      std::copy(values.begin(), values.end(), parameters.value(i).As<float>());
    }
    ASSERT_TRUE(run.model->Pack(run.context).ok());
    const Batch batch = BatchOf(now);
    for (const int64_t step : {0, 1, 3, 4}) {
      for (const auto& technique : run.model->techniques()) {
        ASSERT_TRUE(technique->BeforeForward(run.context, step).ok());
      }
      // Attention scores of up to 50 in f32, of sums of 64 products.
      EXPECT_LT(Distance(run.Logits(batch), Flat(Encoder(now, grown, growth, step).Logits(batch))),
                1e-4)
          << "step " << step;
    }
  });
}

}  // namespace
}  // namespace weft::engine
