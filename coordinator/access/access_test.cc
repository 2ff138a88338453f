#include <sys/stat.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/sha256.h"
#include "coordinator/access/people.h"
#include "coordinator/access/rate_limit.h"
#include "coordinator/access/role.h"

namespace weft::coordinator {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

TEST(Roles, HaveNamesThatReadBack) {
  for (const Role role : kRoles) {
    if (role == Role::kNobody) continue;
    EXPECT_EQ(RoleFromName(Name(role)), role);
  }
  EXPECT_EQ(RoleFromName("nobody"), std::nullopt);
  EXPECT_EQ(RoleFromName("root"), std::nullopt);
}

TEST(Roles, EachMayWhatThoseBeforeItMayAndNobodyMayNothing) {
  for (const Verb& verb : kVerbs) {
    EXPECT_LE(verb.needs, verb.needs_other) << verb.method;
    for (const bool own : {false, true}) {
      EXPECT_FALSE(May(Role::kNobody, verb, own)) << verb.method;
      EXPECT_TRUE(May(Role::kAdmin, verb, own)) << verb.method;
      for (size_t i = 1; i < kRoles.size(); ++i) {
        EXPECT_LE(May(kRoles[i - 1], verb, own), May(kRoles[i], verb, own)) << verb.method;
      }
    }
    // Who only looks changes nothing.
    EXPECT_EQ(May(Role::kViewer, verb, true) && verb.changes, false) << verb.method;
  }
}

class PeopleTest : public testing::Test {
 protected:
  PeopleTest() : path_(::testing::TempDir() + "people.yaml") {}
  ~PeopleTest() override { unlink(path_.c_str()); }

  void Write(const std::string& text, mode_t mode = 0600) {
    const std::string part = path_ + ".part";
    std::ofstream(part) << text;
    ASSERT_EQ(chmod(part.c_str(), mode), 0);
    ASSERT_EQ(rename(part.c_str(), path_.c_str()), 0);
  }
  std::string WhyNot(const std::string& text, mode_t mode = 0600) {
    Write(text, mode);
    Result<std::unique_ptr<People>> people = People::Open(path_, clock_);
    EXPECT_FALSE(people.ok()) << text;
    return people.ok() ? "" : people.status().message();
  }

  const std::string path_;
  ManualClock clock_;
};

TEST_F(PeopleTest, AreFoundByTokenAndByName) {
  Write("people:\n- name: ann\n  role: user\n  token_sha256: " + Sha256Hex("her token") +
        "\n  queues: [research]\n- {name: robot, role: viewer}\n");
  Result<std::unique_ptr<People>> people = People::Open(path_, clock_);
  ASSERT_TRUE(people.ok()) << people.status().message();
  const Person ann{"ann", Role::kUser, {"research"}};
  EXPECT_EQ((*people)->WithToken("her token"), ann);
  EXPECT_EQ((*people)->WithName("ann"), ann);
  EXPECT_EQ((*people)->WithToken("her toke"), std::nullopt);
  EXPECT_EQ((*people)->WithToken(""), std::nullopt);
  EXPECT_EQ((*people)->WithToken(Sha256Hex("her token")), std::nullopt);
  EXPECT_EQ((*people)->WithName("robot"), (Person{"robot", Role::kViewer, {}}));
  EXPECT_EQ((*people)->WithName("bob"), std::nullopt);
}

TEST_F(PeopleTest, FilesThatMakeNoSenseAreRefusedWithTheReason) {
  const std::string hash = Sha256Hex("x");
  EXPECT_THAT(WhyNot("people:\n- {name: ann, role: root}\n"), HasSubstr("role"));
  EXPECT_THAT(WhyNot("people:\n- {name: ann, rle: user}\n"), HasSubstr("role"));
  EXPECT_THAT(WhyNot("people:\n- {name: ann, role: user, token_sha256: abc}\n"),
              HasSubstr("64 lower-case hexadecimal digits"));
  EXPECT_THAT(WhyNot("people:\n- {name: a, role: user}\n- {name: a, role: admin}\n"),
              HasSubstr("'a' is there twice"));
  EXPECT_THAT(WhyNot("people:\n- {name: a, role: user, token_sha256: " + hash +
                     "}\n- {name: b, role: admin, token_sha256: " + hash + "}\n"),
              HasSubstr("'b' has the token of another person"));
  EXPECT_THAT(WhyNot("people: []\n", 0666), HasSubstr("others may change"));
}

TEST_F(PeopleTest, AChangeOfTheFileCountsSoonAndABrokenOneChangesNothing) {
  Write("people:\n- {name: ann, role: user}\n");
  Result<std::unique_ptr<People>> people = People::Open(path_, clock_);
  ASSERT_TRUE(people.ok());
  Write("people:\n- {name: ann, role: admin}\n");
  clock_.Advance(seconds(1));
  EXPECT_EQ((*people)->WithName("ann")->role, Role::kAdmin);
  Write("people: {");
  clock_.Advance(seconds(1));
  EXPECT_EQ((*people)->WithName("ann")->role, Role::kAdmin);
  Write("people: []\n");
  clock_.Advance(seconds(1));
  EXPECT_EQ((*people)->WithName("ann"), std::nullopt);
}

TEST(RateLimit, GivesABurstAndThenTheRateToEachByItself) {
  ManualClock clock;
  RateLimit limit(clock, 10, 3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Take("ann"));
  EXPECT_FALSE(limit.Take("ann"));
  EXPECT_TRUE(limit.Take("bob"));
  clock.Advance(milliseconds(100));
  EXPECT_TRUE(limit.Take("ann"));
  EXPECT_FALSE(limit.Take("ann"));
  clock.Advance(seconds(100));
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(limit.Take("ann"));
  EXPECT_FALSE(limit.Take("ann")) << "no more than the burst is saved up";
}

}  // namespace
}  // namespace weft::coordinator
