#include "worker/engine/data/image_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "worker/engine/data/testing.h"

namespace weft::engine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr ImageLoaderOptions kTiny = {
    .size = 2, .channels = 2, .length = 5, .global_batch = 3, .seed = 1};

/// Image p of 2 x 2 pixels in 2 colours has the bytes 10 p, 10 p + 1, ...
TokenSpan Images(int32_t count) {
  std::vector<std::vector<int32_t>> images;
  std::vector<int32_t> labels;
  for (int32_t p = 0; p < count; ++p) {
    images.emplace_back();
    for (int32_t i = 0; i < 8; ++i) images.back().push_back(10 * p + i);
    labels.push_back(p % 4);
  }
  return MakeLabelledSpan(images, labels, 4, 256);
}

TEST(ImageLoader, GivesColoursOneAfterAnotherAndScaled) {
  ImageLoaderOptions options = kTiny;
  options.shuffle = false;
  options.mean = 0.5;
  options.deviation = 0.25;
  TokenSpan span = Images(3);
  span.first = 8;  // held out from the second on
  span.count = 16;
  auto loader = ImageLoader::Create(span, options);
  ASSERT_TRUE(loader.ok()) << loader.status().ToString();
  ASSERT_EQ((*loader)->Sequences(), 2);
  Result<Batch> batch = (*loader)->Get(0, 0, 2);
  ASSERT_TRUE(batch.ok());
  std::vector<float> expected;
  for (int32_t value : {10, 12, 14, 16, 11, 13, 15, 17, 20, 22, 24, 26, 21, 23, 25, 27}) {
    expected.push_back(static_cast<float>((value / 255.0 - 0.5) / 0.25));
  }
  EXPECT_EQ(batch->pixels, expected);
  EXPECT_THAT(batch->labels, ElementsAre(1, 2));
  EXPECT_EQ(batch->length, 5);
  EXPECT_THAT(batch->sequence_starts, ElementsAre(0, 5, 10));
  EXPECT_THAT(batch->positions, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4));
  EXPECT_EQ(batch->target_count, 2);
}

TEST(ImageLoader, ShowsEveryImageOnceInEachEpochToAnyRank) {
  auto loader = ImageLoader::Create(Images(12), kTiny);
  ASSERT_TRUE(loader.ok());
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<float> seen;
    for (int64_t step = epoch * 4; step < epoch * 4 + 4; ++step) {
      const Batch whole = *(*loader)->Get(step, 0, 3);
      for (int64_t s = 0; s < 3; ++s) {
        const Batch one = *(*loader)->Get(step, s, 1);
        EXPECT_EQ(one.pixels[0], whole.pixels[static_cast<size_t>(s * 8)]);
        EXPECT_EQ(one.labels[0], whole.labels[static_cast<size_t>(s)]);
        seen.insert(one.pixels[0]);
      }
    }
    EXPECT_EQ(seen.size(), 12u);
  }
}

TEST(ImageLoader, RefusesImagesOfAnotherSize) {
  TokenSpan span = Images(1);
  ImageLoaderOptions options = kTiny;
  options.size = 3;
  EXPECT_THAT(ImageLoader::Create(span, options).status().message(), HasSubstr("3 x 3 pixels"));
  span.labels = nullptr;
  EXPECT_THAT(ImageLoader::Create(span, kTiny).status().message(), HasSubstr("no labels"));
  EXPECT_THAT(ImageLoader::Create(MakeSpan({}), kTiny).status().message(), HasSubstr("no images"));
}

}  // namespace
}  // namespace weft::engine
