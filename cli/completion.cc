#include <iostream>

#include "cli/command.h"

namespace weft::cli {
namespace {

/// "job submit" and the like, each with the words that may follow.
void Collect(const CLI::App& app, const std::string& path,
             std::vector<std::pair<std::string, std::vector<std::string>>>& out) {
  std::vector<std::string> words;
  for (const CLI::App* child : app.get_subcommands(nullptr)) words.push_back(child->get_name());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) words.push_back("--" + name);
  }
  out.emplace_back(path, words);
  for (const CLI::App* child : app.get_subcommands(nullptr)) {
    Collect(*child, path.empty() ? child->get_name() : path + " " + child->get_name(), out);
  }
}

using CommandWords = std::vector<std::pair<std::string, std::vector<std::string>>>;

std::string Joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

/// Commands whose argument is a job id.
constexpr char kJobPattern[] =
    "'job get'|'job describe'|'job logs'|'job wait'|'job cancel'|'job retry'|logs|cancel|explain|"
    "'ckpt list'|export|generate";

void PrintBash(const CommandWords& commands) {
  std::cout << "_weft() {\n"
               "  local current=${COMP_WORDS[COMP_CWORD]} path= word words=\n"
               "  for word in \"${COMP_WORDS[@]:1:COMP_CWORD-1}\"; do\n"
               "    case $word in -*) ;; *) path=\"${path:+$path }$word\" ;; esac\n"
               "  done\n"
               "  while :; do\n"
               "    case $path in\n";
  for (const auto& [path, words] : commands) {
    std::cout << "      '" << path << "') words='" << Joined(words) << "' ;;\n";
  }
  std::cout
      << "      *) path=${path% *}; continue ;;\n"
         "    esac\n"
         "    break\n"
         "  done\n"
         "  case $path in\n    "
      << kJobPattern
      << ")\n"
         "      case $current in -*) ;; *) words=\"$(timeout 0.3 weft ls -o name 2>/dev/null |"
         " sed 's,^job/,,') $words\" ;; esac ;;\n"
         "  esac\n"
         "  mapfile -t COMPREPLY < <(compgen -W \"$words\" -- \"$current\")\n"
         "  [ ${#COMPREPLY[@]} -gt 0 ] || mapfile -t COMPREPLY < <(compgen -f -- "
         "\"$current\")\n"
         "}\n"
         "complete -F _weft weft\n";
}

void PrintZsh(const CommandWords& commands) {
  std::cout << "#compdef weft\nautoload -U +X bashcompinit && bashcompinit\n";
  PrintBash(commands);
}

void PrintFish(const CommandWords& commands) {
  std::cout << "complete -c weft -f\n";
  for (const auto& [path, words] : commands) {
    for (const std::string& word : words) {
      std::string condition =
          path.empty() ? "__fish_use_subcommand" : "__fish_seen_subcommand_from " + path;
      std::cout << "complete -c weft -n '" << condition << "' "
                << (word.starts_with("--") ? "-l " + word.substr(2) : "-a " + word) << '\n';
    }
  }
  std::cout << "complete -c weft -n '__fish_seen_subcommand_from submit plan train' -F\n";
}

}  // namespace

void AddCompletionCommand(CLI::App& app, Session& session) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = AddCommand(app, session, "completion",
                                 "Print the completion script of a shell", [&app, shell] {
                                   CommandWords commands;
                                   Collect(app, "", commands);
                                   if (*shell == "bash") PrintBash(commands);
                                   if (*shell == "zsh") PrintZsh(commands);
                                   if (*shell == "fish") PrintFish(commands);
                                   return ExitCode::kOk;
                                 });
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace weft::cli
