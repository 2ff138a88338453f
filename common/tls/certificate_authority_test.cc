#include "common/tls/certificate_authority.h"

#include <sys/stat.h>

#include <chrono>
#include <fstream>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/env.h"
#include "common/tls/certificate.h"
#include "common/tls/revocation_list.h"

namespace weft::tls {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::Property;
using ::testing::UnorderedElementsAre;

class CertificateAuthorityTest : public testing::Test {
 protected:
  CertificateAuthorityTest() : folder_(::testing::TempDir() + "weft-ca"), authority_(folder_) {
    EXPECT_TRUE(authority_.Init().ok());
  }
  ~CertificateAuthorityTest() override { EXPECT_TRUE(Env::Posix().RemoveTree(folder_).ok()); }

  std::string Issue(const Holder& holder) const {
    Result<std::string> path = authority_.Issue(holder);
    EXPECT_TRUE(path.ok()) << path.status().message();
    return path.ok() ? *path : "";
  }
  std::string Text(const std::string& path) const {
    Result<std::string> text = ReadFile(Env::Posix(), path);
    EXPECT_TRUE(text.ok()) << text.status().message();
    return text.ok() ? *text : "";
  }
  Files FilesOf(const std::string& certificate) const {
    return {certificate, "", folder_ + "/ca.pem"};
  }
  int ModeOf(const std::string& path) const {
    struct stat state {};
    EXPECT_EQ(stat(path.c_str(), &state), 0) << path;
    return static_cast<int>(state.st_mode & 0777);
  }

  std::string folder_;
  CertificateAuthority authority_;
};

TEST_F(CertificateAuthorityTest, CertificatesNameTheirHolderAndKeysAreOfTheirOwnerAlone) {
  const std::string path = Issue({"worker", "node-7", {}});
  EXPECT_EQ(path, folder_ + "/worker-node-7.pem");
  EXPECT_EQ(ModeOf(path), 0600);
  EXPECT_EQ(ModeOf(folder_ + "/ca-key.pem"), 0600);
  EXPECT_EQ(ModeOf(folder_), 0700);
  Result<Certificate> certificate = ReadCertificate(Text(path));
  ASSERT_TRUE(certificate.ok());
  EXPECT_EQ(certificate->subject, "node-7");
  EXPECT_THAT(certificate->uris, ElementsAre("spiffe://weft/worker/node-7"));
  EXPECT_EQ(NameIn(certificate->uris, "worker"), "node-7");
  EXPECT_EQ(NameIn(certificate->uris, "client"), "");
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  EXPECT_LT(certificate->not_before, now);
  EXPECT_NEAR(certificate->not_after, now + 365 * 86400, 60);
  Result<Credentials> credentials = ReadCredentials(FilesOf(path));
  ASSERT_TRUE(credentials.ok()) << credentials.status().message();
  EXPECT_EQ(authority_.Init().code(), StatusCode::kConflict);
}

TEST_F(CertificateAuthorityTest, WrongFilesAreRefusedWithTheReason) {
  const std::string one = Issue({"client", "ann", {}});
  const std::string other = Issue({"client", "bob", {}});
  const auto refusal = [&](const Files& files) {
    const Status status = ReadCredentials(files).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalid);
    return status.message();
  };
  EXPECT_THAT(refusal({one, other, folder_ + "/ca.pem"}), HasSubstr("is not that of the"));
  EXPECT_THAT(refusal({one, "", ""}), HasSubstr("--tls-ca"));
  EXPECT_THAT(refusal({one, "", folder_ + "/none.pem"}),
              AllOf(HasSubstr("none.pem"), HasSubstr("hint:")));
  const std::string stranger = folder_ + "/stranger";
  ASSERT_TRUE(CertificateAuthority(stranger).Init().ok());
  EXPECT_THAT(refusal({one, "", stranger + "/ca.pem"}), HasSubstr("is not good for the CA"));
  const CertificateAuthority stale(folder_, {3650, -1});
  ASSERT_TRUE(stale.Issue({"client", "old", {}}).ok());
  EXPECT_THAT(refusal(FilesOf(folder_ + "/client-old.pem")), HasSubstr("expired"));
  ASSERT_EQ(chmod(one.c_str(), 0640), 0);
  EXPECT_THAT(refusal(FilesOf(one)), HasSubstr("chmod 600"));
  std::ofstream(folder_ + "/noise.pem") << "noise";
  EXPECT_THAT(refusal({other, "", folder_ + "/noise.pem"}), HasSubstr("holds no certificate"));
}

TEST_F(CertificateAuthorityTest, NamesCannotLeaveTheFolderOrSpeakToOpenssl) {
  for (const char* name : {"", "../x", "a/b", "a,DNS:evil", "a b", ".hidden", "a\nb"}) {
    EXPECT_EQ(authority_.Issue({"worker", name, {}}).status().code(), StatusCode::kInvalid) << name;
    EXPECT_EQ(authority_.Issue({"server", "host", {name}}).status().code(), StatusCode::kInvalid);
  }
}

TEST_F(CertificateAuthorityTest, AnotherCaTakesOverWithoutAMomentOfDistrust) {
  const std::string server = Issue({"server", "host", {"host", "127.0.0.1", "::1"}});
  const std::string worker = Issue({"worker", "a", {}});
  const std::string old_ca = folder_ + "/old.crt";
  ASSERT_TRUE(WriteFileAtomic(Env::Posix(), old_ca, Text(folder_ + "/ca.pem")).ok());
  const std::string old_worker = Text(worker);
  EXPECT_EQ(authority_.SwitchAuthority().status().code(), StatusCode::kConflict);

  ASSERT_TRUE(authority_.AddAuthority().ok());
  EXPECT_TRUE(ReadCredentials(FilesOf(worker)).ok()) << "issued before, trusted still";
  EXPECT_EQ(authority_.AddAuthority().code(), StatusCode::kConflict);
  EXPECT_EQ(authority_.DropOldAuthority().code(), StatusCode::kConflict);

  Result<std::vector<std::string>> issued = authority_.SwitchAuthority();
  ASSERT_TRUE(issued.ok()) << issued.status().message();
  EXPECT_THAT(*issued, ElementsAre(server, worker, folder_ + "/ca-crl.pem"));
  EXPECT_NE(Text(worker), old_worker);
  EXPECT_TRUE(ReadCredentials(FilesOf(worker)).ok());
  EXPECT_FALSE(ReadCredentials({worker, "", old_ca}).ok()) << "the new CA signed it";
  Result<Certificate> renewed = ReadCertificate(Text(server));
  ASSERT_TRUE(renewed.ok());
  EXPECT_EQ(NameIn(renewed->uris, "server"), "host");

  ASSERT_TRUE(authority_.DropOldAuthority().ok());
  EXPECT_TRUE(ReadCredentials(FilesOf(server)).ok());
}

TEST_F(CertificateAuthorityTest, RevokesAllThatAHolderHasSoFar) {
  const std::string ca = folder_ + "/ca.pem";
  const std::string list = folder_ + "/ca-crl.pem";
  const auto serial = [&](const std::string& path) { return ReadCertificate(Text(path))->serial; };
  const std::string node = Issue({"worker", "node", {}});
  const std::string first = serial(node);
  Issue({"worker", "node", {}});
  const std::string second = serial(node);
  const std::string client = serial(Issue({"client", "node", {}}));
  EXPECT_NE(first, second);
  EXPECT_THAT(*ReadRevokedSerials(Text(list), Text(ca)), IsEmpty());

  Result<std::string> revoked = authority_.Revoke({"worker", "node", {}});
  ASSERT_TRUE(revoked.ok()) << revoked.status().message();
  EXPECT_EQ(*revoked, list);
  EXPECT_THAT(*ReadRevokedSerials(Text(list), Text(ca)), UnorderedElementsAre(first, second))
      << "also the one that was renewed; not " << client;
  EXPECT_FALSE(Env::Posix().FileExists(node));
  const std::string third = serial(Issue({"worker", "node", {}}));
  EXPECT_THAT(*ReadRevokedSerials(Text(list), Text(ca)), Not(Contains(third)));
  EXPECT_EQ(authority_.Revoke({"worker", "nobody", {}}).status().code(), StatusCode::kNotFound);

  // A new CA keeps the list, and one of strangers does not count.
  ASSERT_TRUE(authority_.AddAuthority().ok());
  ASSERT_TRUE(authority_.SwitchAuthority().ok());
  ASSERT_TRUE(authority_.DropOldAuthority().ok());
  EXPECT_THAT(*ReadRevokedSerials(Text(list), Text(ca)), UnorderedElementsAre(first, second));
  const CertificateAuthority stranger(folder_ + "/stranger");
  ASSERT_TRUE(stranger.Init().ok());
  EXPECT_THAT(ReadRevokedSerials(Text(folder_ + "/stranger/ca-crl.pem"), Text(ca)).status(),
              Property(&Status::message, HasSubstr("no CA that is trusted")));
  EXPECT_EQ(ReadRevokedSerials("noise", Text(ca)).status().code(), StatusCode::kInvalid);
}

}  // namespace
}  // namespace weft::tls
