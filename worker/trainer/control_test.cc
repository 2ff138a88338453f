#include "worker/trainer/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/json.h"
#include "common/spec/spec_json.h"

namespace weft::trainer {
namespace {

using testing::HasSubstr;

TEST(Control, EveryMessageComesBackFromItsLine) {
  ProgressMessage progress;
  progress.step = 7;
  progress.loss = 0.1 + 0.2;
  progress.phases.backward = 1.5;
  progress.memory_peak.gradients_bytes = int64_t{5} << 32;
  FinishedMessage finished;
  finished.summary.validation_loss_nats = 3.25;
  ProfiledMessage profiled;
  profiled.report.steps = 2;
  profiled.report.trace_path = "/run/profiles/p.json";
  profiled.report.operations = {{"phase", "data", 1, 0.1, 0.2, 1e9, {}}};
  profiled.report.collectives = {{"tensor", "all_gather", 4, 1e6, 5e5, 0.25, 0.125}};
  profiled.report.tiers = {1 << 20, 2 << 20, 3 << 20, 0.5};
  const std::vector<RankMessage> messages = {
      HelloMessage{1, 2, 3, "0.1.0"},
      StartedMessage{5, "/run/checkpoints/step-00000005", 1000, 0.5},
      progress,
      EvaluationMessage{7, 2.5},
      CheckpointMessage{"failed", 7, "/p", 10, 0.1, 0.2, 0.3, "No space left"},
      ActivityMessage{"saving", 1 << 20},
      ActivityMessage{"evaluating", 0, 512},
      ActivityMessage{"exchanging"},
      AliveMessage{},
      EventMessage{"warning", "line\nbreak and \"quotes\" and é"},
      profiled,
      StoreSetMessage{1, "rank/0", ToHex(std::string("\0\xff\n", 3))},
      StoreGetMessage{2, "rank/1", 30},
      finished,
      StoppedMessage{7, "/p"},
      ToFailed(UnavailableError("rank 1 is gone"))};
  for (const RankMessage& message : messages) {
    const std::string line = ToLine(message);
    EXPECT_EQ(line.find('\n'), std::string::npos);
    Result<RankMessage> read = ParseRankMessage(line);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(ToLine(*read), line);
  }
  for (const DaemonMessage& message :
       {DaemonMessage(StoreReplyMessage{2, "not set", "00"}), DaemonMessage(StopMessage{}),
        DaemonMessage(ProfileMessage{7}), DaemonMessage(MembershipMessage{3, {0, 2, 5}, {1}}),
        DaemonMessage(AbortMessage{})}) {
    Result<DaemonMessage> read = ParseDaemonMessage(ToLine(message));
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->index(), message.index());
    EXPECT_EQ(ToLine(*read), ToLine(message));
  }
  EXPECT_EQ(*std::get<ProgressMessage>(*ParseRankMessage(ToLine(messages[2]))).loss, 0.1 + 0.2);
}

TEST(Control, AnotherProgramsLinesAreRefused) {
  for (const char* line :
       {"", "hello", "[]", "{}", "{\"hello\":{},\"event\":{}}", "{\"reboot\":{}}",
        "{\"event\":{\"text\":3}}", "{\"event\":{\"level\":\"fatal\"}}", "{\"event\":{\"more\":1}}",
        "{\"event\":null}", "{\"stop\":{}}"}) {
    EXPECT_EQ(ParseRankMessage(line).status().code(), StatusCode::kInvalid) << line;
  }
  EXPECT_THAT(ParseDaemonMessage("{\"hello\":{}}").status().message(), HasSubstr("'hello'"));
  EXPECT_FALSE(ParseDaemonMessage("{\"profile\":{\"steps\":0}}").ok());
  EXPECT_FALSE(ParseDaemonMessage("{\"profile\":{\"steps\":101}}").ok());
}

TEST(Control, TextThatIsNotUtf8StillGoesThrough) {
  const std::string line = ToLine(RankMessage(EventMessage{"error", "caf\xe9"}));
  Result<RankMessage> read = ParseRankMessage(line);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_THAT(std::get<EventMessage>(*read).text, HasSubstr("caf"));
}

TEST(Control, AFailureKeepsItsStatus) {
  for (const Status& status :
       {InvalidError("a"), NotFoundError("b"), ConflictError("c"), UnavailableError("d"),
        ExhaustedError("e"), AbortedError("f"), CorruptError("g"), InternalError("h"),
        DiskFullError("i"), Status(StatusCode::kInternal, "j", FailureKind::kDiverged),
        Status(StatusCode::kInternal, "k", FailureKind::kSilentCorruption)}) {
    EXPECT_EQ(ToStatus(ToFailed(status)), status);
  }
}

TEST(Control, HexIsStrict) {
  EXPECT_EQ(ToHex("\x01\xab"), "01ab");
  EXPECT_EQ(*FromHex("01ab"), "\x01\xab");
  for (const char* bad : {"0", "0g", "0A", " 1", "-1"}) EXPECT_FALSE(FromHex(bad).ok()) << bad;
}

}  // namespace
}  // namespace weft::trainer
