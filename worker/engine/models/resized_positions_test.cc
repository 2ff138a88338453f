// A vit on images of several sizes against networks of each size with tables that were resized.
#include "worker/engine/models/resized_positions.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/engine/growth/axis_map.h"
#include "worker/engine/techniques/layer_sampling/elastic_network.h"
#include "worker/engine/testing/encoder_batches.h"
#include "worker/engine/testing/tiny_run.h"

namespace weft::engine {
namespace {

constexpr char kTable[] = "vit.embeddings.position_embeddings";
constexpr int64_t kPatch = 4;

ModelSpec Network(int64_t image_size) {
  ModelSpec spec = TinyModel();
  spec.family = "vit";
  spec.image_size = image_size;
  spec.patch_size = kPatch;
  spec.classes = 4;
  return spec;
}

Batch Images(int64_t image_size) {
  return *NoiseImages(Network(image_size)).Get(0, 0, 4);
}

int64_t TableOf(const TinyRun& run) {
  return run.model->parameters().Find(kTable).value();
}

/// The largest difference, as a share of the largest of `truth`, or of what is not just rounding.
double Difference(const std::vector<float>& values, const std::vector<double>& truth) {
  double difference = 0, largest = 0.01;
  for (size_t i = 0; i < truth.size(); ++i) {
    difference = std::max(difference, std::abs(values[i] - truth[i]));
    largest = std::max(largest, std::abs(truth[i]));
  }
  return difference / largest;
}

/// A network that reads images of 12 pixels and smaller ones, and what the smaller ones make of its
/// table.
struct ResizedPositionsTest : testing::Test {
  ElasticNetwork elastic{{TinyModel().layers}, {4, 8, 12}, 1};
  TinyRun whole{Network(12), Options()};

  ResizedPositionsTest() {
    const TensorView table = whole.model->parameters().value(TableOf(whole));
    for (int64_t i = 0; i < table.shape.Elements(); ++i) {
      table.As<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
    }
  }

  ModelOptions Options() const {
    ModelOptions options = ModelOptionsOf(TinyPlan("fp32"));
    options.elastic = &elastic;
    return options;
  }

  static AxisMap RowsOf(int64_t image_size) {
    AxisMap rows = AxisMap::Identity(1);
    rows.Append(AxisMap::Resized(12 / kPatch, image_size / kPatch));
    return rows;
  }

  /// Gives `run`, of smaller images, the values of the whole network.
  void Copy(TinyRun& run, int64_t image_size) const {
    const ParameterSet& from = whole.model->parameters();
    ParameterSet& to = run.model->parameters();
    for (int64_t p = 0; p < to.size(); ++p) {
      if (to[p].name == kTable) continue;
      std::memcpy(to.value(p).data, from.value(p).data, from.value(p).Bytes());
    }
    const AxisMap rows = RowsOf(image_size);
    const auto* table = from.value(TableOf(whole)).As<float>();
    auto* resized = to.value(TableOf(run)).As<float>();
    const int64_t width = TinyModel().width;
    for (int64_t i = 0; i < rows.size(); ++i) {
      for (int64_t c = 0; c < width; ++c) {
        double sum = 0;
        for (const AxisMap::Term& term : rows[i]) sum += term.factor * table[term.old * width + c];
        resized[i * width + c] = static_cast<float>(sum);
      }
    }
    ASSERT_TRUE(run.model->Pack(run.context).ok());
  }
};

TEST_F(ResizedPositionsTest, SmallerImagesHaveTheNetworkOfAResizedTable) {
  for (const int64_t size : {4, 8}) {
    SCOPED_TRACE(size);
    TinyRun plain(Network(size), ModelOptionsOf(TinyPlan("fp32")));
    Copy(plain, size);
    const Batch images = Images(size);
    // Sums of four products in f32, where the other table was made in float64.
    EXPECT_NEAR(whole.Loss(images), plain.Loss(images), 1e-5 * plain.Loss(images));
    EXPECT_NEAR(whole.Differentiate(images), plain.Differentiate(images),
                1e-5 * plain.Loss(images));
    ParameterSet &own = plain.model->parameters(), &shared = whole.model->parameters();
    for (int64_t p = 0; p < own.size(); ++p) {
      const std::vector<float> gradient = ValuesOf(own.gradient(p));
      std::vector<double> truth(gradient.begin(), gradient.end());
      if (own[p].name == kTable) {
        // Each row of the table gets what those made of it have, by their factors.
        const AxisMap rows = RowsOf(size);
        const auto width = static_cast<size_t>(TinyModel().width);
        truth.assign(static_cast<size_t>(rows.old_size()) * width, 0);
        for (int64_t i = 0; i < rows.size(); ++i) {
          for (const AxisMap::Term& term : rows[i]) {
            for (size_t c = 0; c < width; ++c) {
              truth[static_cast<size_t>(term.old) * width + c] +=
                  term.factor * gradient[static_cast<size_t>(i) * width + c];
            }
          }
        }
      }
      EXPECT_LT(Difference(ValuesOf(shared.gradient(p)), truth), 2e-4) << own[p].name;
    }
  }
}

TEST_F(ResizedPositionsTest, ImagesOfItsOwnSizeReadTheTableItself) {
  TinyRun plain(Network(12), ModelOptionsOf(TinyPlan("fp32")));
  Copy(plain, 12);
  EXPECT_EQ(whole.Loss(Images(12)), plain.Loss(Images(12)));
  EXPECT_EQ(whole.Differentiate(Images(12)), plain.Differentiate(Images(12)));
  EXPECT_EQ(whole.Gradients(), plain.Gradients());
}

TEST_F(ResizedPositionsTest, OtherSizesAreRefused) {
  const auto tokens = TokenBatch::New(whole.context, Images(16), 0);
  ASSERT_TRUE(tokens.ok());
  Tape tape(nullptr);
  BatchLoss loss;
  const Status status = whole.model->Loss(whole.context, tape, *tokens, 1.0f, &loss);
  EXPECT_EQ(status.code(), StatusCode::kInvalid);
  EXPECT_THAT(status.message(), testing::HasSubstr("does not hold images of 12 x 12 pixels"));
}

}  // namespace
}  // namespace weft::engine
