#include "common/formats/image.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>

#include <cmath>

#include "common/json.h"
#include "common/rng.h"

namespace weft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::string kTestData = std::string(WEFT_SOURCE_DIR) + "/common/formats/testdata/";

std::string Bytes(const std::string& path) {
  Result<std::string> bytes = ReadFile(Env::Posix(), path);
  EXPECT_TRUE(bytes.ok()) << bytes.status().ToString();
  return *bytes;
}

Result<Image> Decode(const std::string& bytes, int64_t channels) {
  return DecodeImage(std::as_bytes(std::span(bytes)), channels);
}

/// JPEG decoders may differ by rounding, and so may filters.
void ExpectNear(const std::vector<uint8_t>& actual, const std::vector<int>& expected, int most) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i) ASSERT_NEAR(actual[i], expected[i], most) << i;
}

TEST(DecodeImage, GivesThePixelsOfTheReferenceImplementation) {
  const Json golden = *ParseJson(Bytes(kTestData + "images.json"));
  ASSERT_EQ(golden.size(), 6u);
  for (const auto& [name, expected] : golden.items()) {
    SCOPED_TRACE(name);
    Result<Image> image = Decode(Bytes(kTestData + "images/" + name), 3);
    ASSERT_TRUE(image.ok()) << image.status().ToString();
    EXPECT_EQ(image->height, expected["shape"][0]);
    EXPECT_EQ(image->width, expected["shape"][1]);
    const bool jpeg = name.ends_with(".jpg");
    ExpectNear(image->pixels, expected["rgb"].get<std::vector<int>>(), jpeg ? 2 : 0);
    for (int64_t size : {5, 16}) {
      const Image small = ResizeSquare(*image, size);
      EXPECT_EQ(small.height, size);
      ExpectNear(small.pixels, expected[std::to_string(size)].get<std::vector<int>>(), 3);
    }
    Result<Image> gray = Decode(Bytes(kTestData + "images/" + name), 1);
    ASSERT_TRUE(gray.ok());
    EXPECT_EQ(gray->pixels.size() * 3, image->pixels.size());
    if (name.starts_with("gray")) {
      for (size_t i = 0; i < gray->pixels.size(); ++i) {
        EXPECT_EQ(gray->pixels[i], image->pixels[3 * i]);
      }
    }
  }
}

TEST(DecodeImage, BearsDamagedAndCutFiles) {
  PhiloxStream random({5, 5, 0});
  for (const char* name : {"smooth.jpg", "noise.png", "palette.png"}) {
    const std::string sound = Bytes(kTestData + "images/" + name);
    for (int round = 0; round < 600; ++round) {
      std::string bytes = sound;
      for (int flips = 0; flips < 3; ++flips) {
        bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
      }
      (void)Decode(bytes, 3);
    }
    EXPECT_FALSE(Decode(sound.substr(0, sound.size() / 2), 3).ok()) << name;
    EXPECT_FALSE(Decode(sound.substr(0, 30), 3).ok()) << name;
  }
  EXPECT_THAT(Decode("GIF89a", 3).status().message(), HasSubstr("neither PNG nor JPEG"));
  EXPECT_THAT(Decode("", 3).status().message(), HasSubstr("neither"));
  EXPECT_THAT(Decode("version https://git-lfs.github.com/spec/v1\n", 3).status().message(),
              HasSubstr("the image is a git-lfs pointer"));
  EXPECT_THAT(Decode("", 2).status().message(), HasSubstr("1 or 3 colours"));
  // A header that promises 60,000 x 60,000 pixels.
  std::string large = Bytes(kTestData + "images/noise.png");
  for (size_t at : {16, 20}) large.replace(at, 4, std::string("\0\0\xea\x60", 4));
  const auto* header = reinterpret_cast<const Bytef*>(large.data() + 12);
  const auto crc = static_cast<uint32_t>(crc32(0, header, 17));
  for (size_t i = 0; i < 4; ++i) large[29 + i] = static_cast<char>(crc >> (24 - 8 * i));
  EXPECT_THAT(Decode(large, 3).status().message(), HasSubstr("60000 x 60000"));
}

TEST(ReadIdx, ReadsPlainAndCompressedFiles) {
  const std::string plain("\0\0\x08\2\0\0\0\2\0\0\0\3abcdef", 18);
  std::string packed(200, '\0');
  z_stream stream{};
  ASSERT_EQ(deflateInit2(&stream, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(plain.data()));
  stream.avail_in = static_cast<uInt>(plain.size());
  stream.next_out = reinterpret_cast<Bytef*>(packed.data());
  stream.avail_out = static_cast<uInt>(packed.size());
  ASSERT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  for (const std::string& bytes : {plain, packed}) {
    Result<IdxFile> file = ReadIdx(std::as_bytes(std::span(bytes)));
    ASSERT_TRUE(file.ok()) << file.status().ToString();
    EXPECT_THAT(file->shape, ElementsAre(2, 3));
    EXPECT_THAT(file->values, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
    EXPECT_THAT(*ReadIdxShape(std::as_bytes(std::span(bytes))), ElementsAre(2, 3));
    EXPECT_FALSE(ReadIdxShape(std::as_bytes(std::span(bytes).first(11))).ok());
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(ReadIdx(std::as_bytes(std::span(bytes).first(size))).ok()) << size;
    }
  }
  auto refusal = [](std::string bytes) {
    return ReadIdx(std::as_bytes(std::span(bytes))).status().message();
  };
  EXPECT_THAT(refusal(plain + "g"), HasSubstr("7 values"));
  EXPECT_THAT(refusal("version https://git-lfs.github.com/spec/v1\n"),
              HasSubstr("the IDX file is a git-lfs pointer"));
  const std::string longer = plain + "g";
  EXPECT_THAT(ReadIdxShape(std::as_bytes(std::span(longer))).status().message(),
              HasSubstr("7 values"));
  EXPECT_THAT(refusal(std::string("\0\0\x0d\1\0\0\0\0", 8)), HasSubstr("no IDX"));
  EXPECT_THAT(refusal(std::string("\0\0\x08\3\xff\xff\xff\xff\xff\xff\xff\xff\0\0\1\1", 16)),
              HasSubstr("too large"));
  PhiloxStream random({5, 6, 0});
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = packed;
    bytes[random.Below(bytes.size())] = static_cast<char>(random.Below(256));
    (void)ReadIdx(std::as_bytes(std::span(bytes)));
    (void)ReadIdxShape(std::as_bytes(std::span(bytes)));
  }
}

TEST(ReadIdx, LabelsAreFoundByTheNameOfTheImages) {
  EXPECT_EQ(*IdxLabelsPath("/data/train-images-idx3-ubyte.gz"), "/data/train-labels-idx1-ubyte.gz");
  EXPECT_THAT(IdxLabelsPath("/images/a.idx").status().message(), HasSubstr("is not named like"));
  EXPECT_TRUE(CheckIdxPair("x", {20, 4, 4}, {20}).ok());
  EXPECT_THAT(CheckIdxPair("x", {20, 4, 4}, {21}).message(), HasSubstr("[20, 4, 4] and [21]"));
  EXPECT_FALSE(CheckIdxPair("x", {20, 16}, {20}).ok());
  EXPECT_FALSE(CheckIdxPair("x", {20, 4, 0}, {20}).ok());
}

}  // namespace
}  // namespace weft
