#include "cli/command_words.h"

namespace weft::cli {
namespace {

/// An option of a command or of one above it; null when there is none.
CLI::Option* FindOption(CLI::App* command, const std::string& name) {
  for (; command != nullptr; command = command->get_parent()) {
    for (CLI::Option* option : command->get_options()) {
      if (!option->get_positional() && option->check_name(name)) return option;
    }
  }
  return nullptr;
}

bool TakesValue(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

CLI::App* FindCommand(CLI::App& command, const std::string& name) {
  for (CLI::App* child : command.get_subcommands([](CLI::App*) { return true; })) {
    if (child->get_name() == name) return child;
  }
  return nullptr;
}

void ReadOption(const std::string& word, CommandWords& out) {
  const size_t equals = word.find('=');
  const std::string name = word.substr(0, equals);
  CLI::Option* option = FindOption(out.command, name);
  const bool is_cluster = option == nullptr && word.size() > 2 && word[1] != '-';
  if (is_cluster) option = FindOption(out.command, word.substr(0, 2));  // -fq, -ojson
  if (option == nullptr) {
    if (out.of_unknown == nullptr) {
      out.unknown_option = name;
      out.of_unknown = out.command;
    }
    return;
  }
  if (TakesValue(*option) && equals == std::string::npos && !is_cluster) out.value = option;
}

}  // namespace

CommandWords ReadWords(CLI::App& app, const std::vector<std::string>& words) {
  CommandWords out;
  out.command = &app;
  for (const std::string& word : words) {
    if (out.value != nullptr) {
      if (word != "=") out.value = nullptr;  // shells part --output=json in three
      continue;
    }
    if (!out.only_arguments && word == "--") {
      out.only_arguments = true;
    } else if (!out.only_arguments && word.size() > 1 && word[0] == '-') {
      ReadOption(word, out);
    } else if (CLI::App* child = FindCommand(*out.command, word);
               child != nullptr && out.arguments == 0) {
      out.command = child;
    } else {
      if (out.of_unknown == nullptr && out.arguments == 0 && !CommandNames(*out.command).empty()) {
        out.unknown_command = word;
        out.of_unknown = out.command;
      }
      ++out.arguments;
    }
  }
  return out;
}

std::vector<std::string> CommandNames(CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* child : command.get_subcommands([](CLI::App*) { return true; })) {
    if (!child->get_name().empty()) names.push_back(child->get_name());  // a group has none
  }
  return names;
}

std::vector<std::string> OptionNames(CLI::App& command) {
  std::vector<std::string> names;
  for (CLI::App* app = &command; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
    }
  }
  return names;
}

std::string PathOf(const CLI::App& command) {
  const std::string above = command.get_parent() ? PathOf(*command.get_parent()) + " " : "";
  return above + command.get_name();
}

}  // namespace weft::cli
