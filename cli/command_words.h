#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace weft::cli {

/// What the words of a command line mean, as far as they were read.
struct CommandWords {
  CLI::App* command = nullptr;     ///< The innermost command they name.
  CLI::Option* value = nullptr;    ///< The option whose value comes next, or null.
  size_t arguments = 0;            ///< Arguments of the command that are no options.
  bool only_arguments = false;     ///< "--" was there.
  std::string unknown_command;     ///< The first word that should name a command and does not.
  std::string unknown_option;      ///< The first word that looks like an option and is none.
  CLI::App* of_unknown = nullptr;  ///< The command that the first of either was given to.
};

/// Reads the words after the program's name.
CommandWords ReadWords(CLI::App& app, const std::vector<std::string>& words);

/// Names of the commands below `command`.
std::vector<std::string> CommandNames(CLI::App& command);

/// "--output" and the like of a command and of those above it.
std::vector<std::string> OptionNames(CLI::App& command);

/// "weft job submit".
std::string PathOf(const CLI::App& command);

}  // namespace weft::cli
