#include <iostream>
#include <memory>
#include <string>

#include "cli/command.h"

namespace weft::cli {
namespace {

// The shells ask `weft __complete` (cli/completion.h) for everything.

constexpr char kBash[] = R"bash(_weft() {
  local program=${COMP_WORDS[0]/#\~/$HOME}
  mapfile -t COMPREPLY < <(timeout 2 "$program" __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" \
    2>/dev/null)
}
complete -o bashdefault -o default -F _weft weft
)bash";

// clang-format off: it takes the shell's words for its own.
constexpr char kZsh[] = R"zsh(#compdef weft
_weft() {
  local -a found
  found=(${(f)"$(timeout 2 ${~words[1]} __complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)"})
  if (( ${#found} )); then compadd -- $found; else _files; fi
}
if [ "$funcstack[1]" = _weft ]; then _weft "$@"; else compdef _weft weft; fi
)zsh";
// clang-format on

constexpr char kFish[] = R"fish(function __weft_complete
  set -l words (commandline -opc)
  set -l program (string replace -r '^~' $HOME $words[1])
  set -l found (timeout 2 $program __complete -- $words[2..-1] (commandline -ct) 2>/dev/null)
  if test (count $found) -gt 0
    printf '%s\n' $found
  else
    __fish_complete_path (commandline -ct)
  end
end
complete -c weft -f -a '(__weft_complete)'
)fish";

}  // namespace

void AddCompletionCommand(CLI::App& app, Session& session) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command =
      AddCommand(app, session, "completion", "Print the completion script of a shell", [shell] {
        std::cout << (*shell == "bash" ? kBash : *shell == "zsh" ? kZsh : kFish);
        return ExitCode::kOk;
      });
  command->add_option("shell", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
}

}  // namespace weft::cli
