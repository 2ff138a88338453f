#include "cli/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/command_words.h"

namespace weft::cli {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// A tree of commands with one of each kind of thing.
class CommandTree : public ::testing::Test {
 protected:
  CommandTree() : app_("", "weft") {
    app_.add_option("-o,--output", output_)->check(CLI::IsMember({"json", "name"}));
    app_.add_option("--server", server_);
    app_.add_flag("-q,--quiet", quiet_);
    CLI::App* job = app_.add_subcommand("job", "");
    CLI::App* wait = job->add_subcommand("wait", "");
    wait->add_option("job", id_);
    wait->add_option("--for", state_)->transform(CLI::IsMember({"RUNNING", "FAILED"}));
    CLI::App* cancel = job->add_subcommand("cancel", "");
    cancel->add_option("job", ids_);
    CLI::App* plan = app_.add_subcommand("plan", "");
    plan->add_option_group("what")->add_option("file", file_);
    app_.add_subcommand("completion", "")
        ->add_option("shell", shell_)
        ->check(CLI::IsMember({"bash", "zsh"}));
  }

  std::vector<std::string> Complete(const std::vector<std::string>& words) {
    return Completions(app_, words, [this] {
      ++asked_;
      return std::vector<std::string>{"a-1", "a-2", "b-1"};
    });
  }

  CLI::App app_;
  std::string output_, server_, id_, state_, file_, shell_;
  std::vector<std::string> ids_;
  bool quiet_ = false;
  int asked_ = 0;
};

TEST_F(CommandTree, OffersCommandsOptionsAndTheirValues) {
  EXPECT_THAT(Complete({""}), ElementsAre("completion", "job", "plan"));
  EXPECT_THAT(Complete({}), ElementsAre("completion", "job", "plan"));
  EXPECT_THAT(Complete({"job", ""}), ElementsAre("cancel", "wait"));
  EXPECT_THAT(Complete({"-o", ""}), ElementsAre("json", "name"));
  EXPECT_THAT(Complete({"--output", "=", "j"}), ElementsAre("json"));
  EXPECT_THAT(Complete({"--output", "="}), ElementsAre("json", "name"));
  EXPECT_THAT(Complete({"--output=n"}), ElementsAre("--output=name"));
  EXPECT_THAT(Complete({"job", "wait", "--for", "R"}), ElementsAre("RUNNING"));
  EXPECT_THAT(Complete({"job", "wait", "--"}), Contains("--server"));
  EXPECT_THAT(Complete({"completion", ""}), ElementsAre("bash", "zsh"));
  EXPECT_EQ(asked_, 0);
}

TEST_F(CommandTree, ValuesOfOptionsAreNoCommands) {
  EXPECT_THAT(Complete({"-o", "json", "job", ""}), ElementsAre("cancel", "wait"));
  EXPECT_THAT(Complete({"--server", "plan", "job", "w"}), ElementsAre("wait"));
  EXPECT_THAT(Complete({"-q", "job", "w"}), ElementsAre("wait"));
  EXPECT_THAT(Complete({"-ojson", "job", "w"}), ElementsAre("wait"));
}

TEST_F(CommandTree, OffersJobsWhereOneBelongs) {
  EXPECT_THAT(Complete({"job", "wait", "a"}), ElementsAre("a-1", "a-2"));
  EXPECT_THAT(Complete({"job", "wait", "a-1", ""}), IsEmpty());
  EXPECT_THAT(Complete({"job", "cancel", "a-1", "b"}), ElementsAre("b-1"));
  EXPECT_EQ(asked_, 2);
}

TEST_F(CommandTree, SaysNothingWhereItKnowsNothing) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"nonsense", ""},
                                             {"plan", ""},
                                             {"--server", ""},
                                             {"--no-such", ""},
                                             {"job", "nonsense", ""}}) {
    const std::vector<std::string> found = Complete(words);
    if (words[0] != "--no-such") {
      EXPECT_THAT(found, IsEmpty()) << words[0];
    }
  }
}

TEST_F(CommandTree, FindsTheFirstWordThatIsUnknown) {
  CommandWords read = ReadWords(app_, {"-o", "json", "jbo", "--what"});
  EXPECT_EQ(read.unknown_command, "jbo");
  EXPECT_EQ(PathOf(*read.of_unknown), "weft");
  read = ReadWords(app_, {"job", "wait", "x", "--fro=RUNNING"});
  EXPECT_EQ(read.unknown_command, "");
  EXPECT_EQ(read.unknown_option, "--fro");
  EXPECT_EQ(PathOf(*read.of_unknown), "weft job wait");
  EXPECT_EQ(ReadWords(app_, {"job", "wait", "--", "--x"}).of_unknown, nullptr);
  EXPECT_EQ(ReadWords(app_, {"job", "cancel", "a", "-", "b"}).of_unknown, nullptr);
}

}  // namespace
}  // namespace weft::cli
