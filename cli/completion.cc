#include "cli/completion.h"

#include <algorithm>
#include <utility>

#include "cli/command_words.h"

namespace weft::cli {
namespace {

/// The legal values of an option that has a list of them.
std::vector<std::string> ValuesOf(CLI::Option& option) {
  // A list describes itself as {a,b,c}; the library has no other way to ask.
  for (int i = 0;; ++i) {
    std::string text;
    try {
      text = option.get_validator(i)->get_description();
    } catch (const CLI::OptionNotFound&) {
      return {};
    }
    if (text.size() < 2 || text.front() != '{' || text.back() != '}') continue;
    return CLI::detail::split(text.substr(1, text.size() - 2), ',');
  }
}

/// The argument of a command that comes after `before` others, or null.
CLI::Option* ArgumentAt(CLI::App& command, size_t before) {
  CLI::Option* last = nullptr;
  size_t at = 0;
  std::vector<CLI::App*> apps = command.get_subcommands(
      [](const CLI::App* child) { return child->get_name().empty(); });  // option groups
  apps.insert(apps.begin(), &command);
  for (CLI::App* app : apps) {
    for (CLI::Option* option : app->get_options()) {
      if (!option->get_positional()) continue;
      if (at++ == before) return option;
      last = option;
    }
  }
  return last != nullptr && last->get_items_expected_max() > 1 ? last : nullptr;
}

bool NamesJob(const CLI::Option& argument) {
  const std::string name = argument.get_name(/*positional=*/true);
  return name == "job" || name == "source" || name == "what";
}

}  // namespace

std::vector<std::string> Completions(CLI::App& app, std::vector<std::string> words,
                                     const std::function<std::vector<std::string>()>& jobs) {
  std::string current = words.empty() ? "" : words.back();
  if (!words.empty()) words.pop_back();
  const CommandWords read = ReadWords(app, words);
  std::vector<std::string> found;
  if (read.value != nullptr) {
    if (current == "=") current.clear();
    found = ValuesOf(*read.value);
  } else if (!read.only_arguments && current.starts_with('-')) {
    const size_t equals = current.find('=');
    found = OptionNames(*read.command);
    if (equals != std::string::npos) {
      words.push_back(current.substr(0, equals));
      const CommandWords option = ReadWords(app, words);
      found = option.value != nullptr ? ValuesOf(*option.value) : std::vector<std::string>();
      for (std::string& value : found) value.insert(0, current.substr(0, equals + 1));
    }
  } else {
    if (read.arguments == 0) found = CommandNames(*read.command);
    CLI::Option* argument = found.empty() ? ArgumentAt(*read.command, read.arguments) : nullptr;
    if (argument != nullptr) found = NamesJob(*argument) ? jobs() : ValuesOf(*argument);
  }
  std::erase_if(found, [&](const std::string& word) { return !word.starts_with(current); });
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

}  // namespace weft::cli
