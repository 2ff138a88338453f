#pragma once

#include <functional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace weft::cli {

/// The word after the program's name that has it print completions.
inline constexpr char kCompleteWord[] = "__complete";

/// What the last of `words` (those after the program's name; it may be empty) can become: commands,
/// options, values of options that have a list of them, jobs. None where a file belongs, or nothing
/// is known. `jobs` is asked only where a job belongs.
std::vector<std::string> Completions(CLI::App& app, std::vector<std::string> words,
                                     const std::function<std::vector<std::string>()>& jobs);

}  // namespace weft::cli
