#include "common/secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/sha256.h"

namespace weft {
namespace {

using ::testing::HasSubstr;

// FIPS 180-4, examples of NIST: one block, two blocks, many blocks.
TEST(Sha256, MatchesTheExamplesOfItsStandard) {
  EXPECT_EQ(Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha256Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha256Hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 31 + i / 7);
  Sha256 pieces;
  for (size_t begin = 0, size = 0; begin < text.size(); begin += size++) {
    pieces.Update(std::string_view(text).substr(begin, size));
  }
  EXPECT_EQ(pieces.Digest(), Sha256Of(text));
}

// RFC 4231, test cases 1, 2 and 6 (a key longer than a block).
TEST(HmacSha256, MatchesTheExamplesOfItsStandard) {
  EXPECT_EQ(HexOf(HmacSha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(HexOf(HmacSha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(HexOf(HmacSha256(std::string(131, '\xaa'),
                             "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Secret, RandomBytesDifferAndSecretsAreCompared) {
  const std::string one = RandomBytes(32);
  EXPECT_EQ(one.size(), 32u);
  EXPECT_NE(one, RandomBytes(32));
  EXPECT_TRUE(SameSecret(one, std::string(one)));
  std::string other = one;
  other.back() = static_cast<char>(other.back() ^ 1);
  EXPECT_FALSE(SameSecret(one, other));
  EXPECT_FALSE(SameSecret(one, one.substr(1)));
}

TEST(Secret, FilesOfSecretsAreOfTheirOwnerAlone) {
  const std::string path = ::testing::TempDir() + "secret";
  std::ofstream(path) << "older, and open to all";
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  const Result<std::string> open_to_all = ReadSecretFile(path);
  EXPECT_EQ(open_to_all.status().code(), StatusCode::kInvalid);
  EXPECT_THAT(open_to_all.status().message(), HasSubstr("hint: chmod 600 " + path));

  ASSERT_TRUE(WriteSecretFile(path, "mine").ok());
  struct stat state {};
  ASSERT_EQ(stat(path.c_str(), &state), 0);
  EXPECT_EQ(state.st_mode & 0777, 0600u);
  const Result<std::string> read = ReadSecretFile(path);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(*read, "mine");
  unlink(path.c_str());
  EXPECT_EQ(ReadSecretFile(path).status().code(), StatusCode::kNotFound);
}

}  // namespace
}  // namespace weft
