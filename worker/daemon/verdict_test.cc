#include "worker/daemon/verdict.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>

#include <cerrno>

namespace weft::daemon {
namespace {

int Exit(int status) {
  return W_EXITCODE(status, 0);
}
int Signal(int number) {
  return W_EXITCODE(0, number);
}

TEST(JudgeFailures, NamesTheRankThatDiedAlthoughItsPeerSpokeFirst) {
  Verdict verdict = JudgeFailures({{0, UnavailableError("rank 2 closed the connection"), Exit(1)},
                                   {3, std::nullopt, Exit(1)},
                                   {2, std::nullopt, Signal(SIGSEGV)}},
                                  false);
  EXPECT_EQ(verdict.rank, 2);
  EXPECT_EQ(verdict.signal, SIGSEGV);
  EXPECT_EQ(verdict.reason, v1::RANK_DIED);
  EXPECT_NE(verdict.message.find("Segmentation fault"), std::string::npos) << verdict.message;
}

TEST(JudgeFailures, PrefersAnErrorOfItsOwnToALostPeer) {
  Verdict verdict = JudgeFailures({{1, AbortedError("peer lost"), Exit(1)},
                                   {0, InvalidError("data.train[0]: no such file"), Exit(3)}},
                                  false);
  EXPECT_EQ(verdict.rank, 0);
  EXPECT_EQ(verdict.exit_status, 3);
  EXPECT_EQ(verdict.reason, v1::USER_ERROR);
  EXPECT_NE(verdict.message.find("no such file"), std::string::npos);
}

TEST(JudgeFailures, MapsErrorsToReasons) {
  struct Case {
    Status status;
    v1::Reason reason;
  };
  for (const Case& c : {Case{InvalidError("x"), v1::USER_ERROR},
                        {NotFoundError("x"), v1::USER_ERROR},
                        {ExhaustedError("cannot allocate 5 GB"), v1::OUT_OF_MEMORY},
                        {ErrnoError("write a", ENOSPC), v1::RANK_DIED},
                        {Status(StatusCode::kInternal, "x", FailureKind::kDiverged), v1::NUMERICS},
                        {UnavailableError("x"), v1::RANK_DIED},
                        {CorruptError("x"), v1::RANK_DIED},
                        {InternalError("x"), v1::RANK_DIED}}) {
    EXPECT_EQ(JudgeFailures({{0, c.status, Exit(1)}}, false).reason, c.reason)
        << c.status.ToString();
  }
}

TEST(JudgeFailures, NamesTheRankThatComputedWrong) {
  const RankFailure wrong{
      2, Status(StatusCode::kInternal, "rank 2", FailureKind::kSilentCorruption), Exit(5)};
  const Verdict verdict =
      JudgeFailures({{1, AbortedError("rank 2 computed wrong"), Exit(5)}, wrong}, false);
  EXPECT_EQ(verdict.reason, v1::SILENT_CORRUPTION);
  EXPECT_EQ(verdict.rank, 2);
}

TEST(JudgeFailures, TellsTheOutOfMemoryKillerFromAPlainKill) {
  std::vector<RankFailure> killed{{0, std::nullopt, Signal(SIGKILL)}};
  EXPECT_EQ(JudgeFailures(killed, true).reason, v1::OUT_OF_MEMORY);
  EXPECT_EQ(JudgeFailures(killed, false).reason, v1::RANK_DIED);
  std::vector<RankFailure> crashed{{0, std::nullopt, Signal(SIGABRT)}};
  EXPECT_EQ(JudgeFailures(crashed, true).reason, v1::RANK_DIED);
}

TEST(JudgeFailures, SaysWhenARankLeftWithoutAWord) {
  Verdict verdict = JudgeFailures({{4, std::nullopt, Exit(127)}}, false);
  EXPECT_EQ(verdict.exit_status, 127);
  EXPECT_NE(verdict.message.find("exit status 127"), std::string::npos);
}

}  // namespace
}  // namespace weft::daemon
