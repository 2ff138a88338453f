#include "cli/output.h"

#include <gtest/gtest.h>

#include <iostream>
#include <sstream>
#include <string>

#include "cli/command.h"
#include "cli/terminal_text.h"
#include "common/yaml.h"

namespace weft::cli {
namespace {

TEST(TerminalText, KeepsTextAndReplacesWhatCommandsATerminal) {
  EXPECT_EQ(ForTerminal("step 1\tloss 2\nGr\xc3\xb6\xc3\x9f"
                        "e, 3 \xc2\xb5s"),
            "step 1\tloss 2\nGr\xc3\xb6\xc3\x9f"
            "e, 3 \xc2\xb5s");
  EXPECT_EQ(ForTerminal("\x1b[2J\x1b]0;title\x07 100 %\r"),
            "\xef\xbf\xbd[2J\xef\xbf\xbd]0;title\xef\xbf\xbd 100 %\xef\xbf\xbd");
  EXPECT_EQ(ForTerminal("\x7f|\xc2\x9b"
                        "31m|\xc2"),
            "\xef\xbf\xbd|\xef\xbf\xbd"
            "31m|\xc2");
}

TEST(TerminalText, OfOthersStaysOnItsLine) {
  EXPECT_EQ(ForOneLine("x\nweft-2\tSUCCEEDED\x1b"), "x weft-2 SUCCEEDED\xef\xbf\xbd");
}

TEST(Output, TablesAlignAndProgramsGetStableKeys) {
  Listing listing{"Job", {{{"id", "a-1"}}}, {"job/a-1"}, Table({"ID", "STATE"}), Table({"ID"}),
                  false};
  listing.table.Add({"a-1", "RUNNING"});
  listing.table.Add({"\x1b[2J", "QUEUED"});  // of others, who may not clear the screen
  listing.table.Add({"a\nb", "R\tS"});       // nor make rows and columns
  std::ostringstream table, json, yaml, name;
  Print(listing, OutputFormat::kTable, table);
  EXPECT_EQ(table.str(), "ID    STATE\na-1   RUNNING\n\xef\xbf\xbd[2J  QUEUED\na b   R S\n");
  Print(listing, OutputFormat::kName, name);
  EXPECT_EQ(name.str(), "job/a-1\n");
  Print(listing, OutputFormat::kJson, json);
  Json list = Json::parse(json.str());
  EXPECT_EQ(list["kind"], "JobList");
  EXPECT_EQ(list["apiVersion"], "weft/v1");
  EXPECT_EQ(list["items"][0]["id"], "a-1");
  Print(listing, OutputFormat::kYaml, yaml);
  EXPECT_EQ(ParseYaml(yaml.str(), "yaml")->value, list);
  listing.single = true;
  std::ostringstream one;
  Print(listing, OutputFormat::kJson, one);
  EXPECT_EQ(Json::parse(one.str())["id"], "a-1");
}

TEST(Output, ErrorsCannotCommandTheTerminal) {
  std::ostringstream shown;
  std::streambuf* const before = std::cerr.rdbuf(shown.rdbuf());
  const ExitCode code = Fail(Session(), InvalidError("job \x1b[2J; hint: see \x07 a"));
  std::cerr.rdbuf(before);
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_EQ(shown.str(), "error: job \xef\xbf\xbd[2J\nhint: see \xef\xbf\xbd a\n");
}

}  // namespace
}  // namespace weft::cli
