// Cuts a text by the patterns of well-known tokenizers, with the hand-written code and with PCRE2,
// in turns on one thread. Prints JSON. tests/bench/split_regex.py writes the page.
//
//   split_regex_bench TEXT [--rounds 9]

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>

#include "common/env.h"
#include "common/formats/pretokenizer.h"
#include "common/formats/split_regex.h"
#include "common/json.h"
#include "common/status.h"

namespace weft {
namespace {

/// One way to cut by one pattern, and how long its rounds took.
struct Contestant {
  std::string pattern;
  std::string way;
  SplitRegex regex;
  int64_t pieces = 0;
  std::vector<double> seconds = {};
};

Result<std::vector<Contestant>> Contestants() {
  const std::pair<const char*, SplitPattern> known[] = {
      {"GPT-2", SplitPattern::kGpt2},
      {"cl100k and Llama 3", SplitPattern::kCl100k},
      {"Qwen2", SplitPattern::kQwen2},
  };
  std::vector<Contestant> contestants;
  for (const auto& [name, pattern] : known) {
    WEFT_ASSIGN_OR_RETURN(const SplitRegex regex, SplitRegex::Compile(RegexOfPattern(pattern)));
    contestants.push_back({.pattern = name, .way = "hand-written", .regex = regex});
    contestants.push_back({.pattern = name, .way = "PCRE2", .regex = regex.WithoutShortcut()});
  }
  WEFT_ASSIGN_OR_RETURN(const SplitRegex o200k, SplitRegex::Compile(SplitRegex::kO200k));
  contestants.push_back({.pattern = "GPT-4o (o200k)", .way = "PCRE2", .regex = o200k});
  return contestants;
}

Status TakeTurn(std::string_view text, Contestant& contestant) {
  contestant.pieces = 0;
  const auto begin = std::chrono::steady_clock::now();
  WEFT_RETURN_IF_ERROR(
      contestant.regex.ForEach(text, [&](std::string_view, bool) { ++contestant.pieces; }));
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  contestant.seconds.push_back(elapsed.count());
  return OkStatus();
}

Status Run(const std::string& path, int rounds) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(Env::Posix(), path));
  WEFT_ASSIGN_OR_RETURN(std::vector<Contestant> contestants, Contestants());
  // One more, which warms up.
  for (int round = 0; round <= rounds; ++round) {
    for (Contestant& contestant : contestants) {
      WEFT_RETURN_IF_ERROR(TakeTurn(text, contestant));
      if (round == 0) contestant.seconds.clear();
    }
  }
  Json rows = Json::array();
  for (Contestant& contestant : contestants) {
    std::sort(contestant.seconds.begin(), contestant.seconds.end());
    const double median = contestant.seconds[contestant.seconds.size() / 2];
    rows.push_back({{"pattern", contestant.pattern},
                    {"way", contestant.way},
                    {"pieces", contestant.pieces},
                    {"seconds", contestant.seconds},
                    {"bytes_per_second", static_cast<double>(text.size()) / median}});
  }
  std::printf("%s\n", rows.dump(1).c_str());
  return OkStatus();
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  CLI::App app("Times how fast patterns cut a text, see the head of the source.");
  std::string path;
  int rounds = 9;
  app.add_option("text", path, "File to cut")->required()->check(CLI::ExistingFile);
  app.add_option("--rounds", rounds, "Rounds whose median counts")->check(CLI::Range(1, 1000));
  CLI11_PARSE(app, argc, argv);
  const weft::Status status = weft::Run(path, rounds);
  if (status.ok()) return 0;
  std::fprintf(stderr, "split_regex_bench: %s\n", status.ToString().c_str());
  return 1;
}
