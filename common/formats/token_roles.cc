#include "common/formats/token_roles.h"

#include <algorithm>
#include <initializer_list>

namespace weft {
namespace {

std::string List(const std::vector<int32_t>& ids) {
  return ids.size() == 1 ? std::to_string(ids[0]) : Json(ids).dump();
}

/// All special tokens with one of these names, in the order of the names.
std::vector<AddedToken> FindNamed(const std::vector<AddedToken>& added,
                                  std::initializer_list<std::string_view> names) {
  std::vector<AddedToken> found;
  for (std::string_view name : names) {
    for (const AddedToken& token : added) {
      if (token.special && token.content == name) found.push_back(token);
    }
  }
  return found;
}

class RoleFinder {
 public:
  RoleFinder(const TokenizerConfig& config, const std::string& file,
             const TokenizerDefinition& definition,
             const std::function<std::optional<int32_t>(const std::string&)>& id_of)
      : config_(config), file_(file), definition_(definition), id_of_(id_of) {}

  /// The token with a role, from the files next to the tokenizer. One of several ids of the model's
  /// files is enough to agree with.
  Result<std::optional<int32_t>> Find(const std::string& role) const {
    std::optional<int32_t> found;
    std::string where;
    if (const auto it = config_.roles.find(role); it != config_.roles.end()) {
      found = id_of_(it->second);
      where = config_.role_files.at(role) + " has the " + role + " " + Quoted(it->second);
      if (!found) return InvalidError(where + ", which is not in the vocabulary of " + file_);
      where += " (" + std::to_string(*found) + ")";
    }
    std::vector<int32_t> before;
    std::string before_file;
    for (const TokenizerConfig::Ids& file : config_.model_ids) {
      const auto it = file.ids.find(role + "_id");
      if (it == file.ids.end()) continue;
      const std::vector<int32_t>& ids = it->second;
      auto holds = [&](int32_t id) { return std::find(ids.begin(), ids.end(), id) != ids.end(); };
      const std::string says = file.file + " has the " + role + "_id " + List(ids);
      if (found && !holds(*found)) {
        return InvalidError(where + ", but " + says + ". hint: make them say the same");
      }
      if (!before.empty() && std::none_of(before.begin(), before.end(), holds)) {
        return InvalidError(before_file + " has the " + role + "_id " + List(before) + ", but " +
                            says + ". hint: make them say the same");
      }
      if (before.empty()) {
        before = ids;
        before_file = file.file;
      }
    }
    if (!found && !before.empty()) found = before[0];
    return found;
  }

  /// Where the template of the file and the role say different things of what comes around texts.
  Status CheckTemplate(const std::vector<int64_t>& tokens, const char* role, const char* substitute,
                       std::optional<int32_t> token, std::optional<bool> wanted,
                       const char* flag) const {
    const bool has = token && std::find(tokens.begin(), tokens.end(), *token) != tokens.end();
    if (wanted && *wanted != has && (has || definition_.has_template)) {
      return InvalidError(std::string("tokenizer_config.json has ") + flag + " " +
                          (*wanted ? "true" : "false") + ", but the post_processor of " + file_ +
                          (has ? " adds the " : " does not add the ") + role +
                          ". hint: make them say the same");
    }
    if (tokens.empty() || !token || has) return OkStatus();
    // BERT and its like have a token of their own for that.
    if (const auto it = config_.roles.find(substitute); it != config_.roles.end()) {
      const std::optional<int32_t> other = id_of_(it->second);
      if (other && std::find(tokens.begin(), tokens.end(), *other) != tokens.end()) {
        return OkStatus();
      }
    }
    return InvalidError("the post_processor of " + file_ + " puts the token " +
                        std::to_string(tokens[0]) + " around texts, but the " + role + " of " +
                        Source(role) + " is " + std::to_string(*token) +
                        ". hint: make them say the same");
  }

 private:
  std::string Source(const std::string& role) const {
    if (const auto it = config_.role_files.find(role); it != config_.role_files.end()) {
      return it->second;
    }
    for (const TokenizerConfig::Ids& file : config_.model_ids) {
      if (file.ids.contains(role + "_id")) return file.file;
    }
    return file_;
  }

  const TokenizerConfig& config_;
  const std::string& file_;
  const TokenizerDefinition& definition_;
  const std::function<std::optional<int32_t>(const std::string&)>& id_of_;
};

/// The token that ends documents, by its name.
Result<std::optional<int32_t>> EndByName(const std::vector<AddedToken>& added,
                                         const std::string& file) {
  const std::vector<AddedToken> named =
      FindNamed(added, {"<|endoftext|>", "<|end_of_text|>", "</s>"});
  if (named.empty()) return std::optional<int32_t>();
  if (named.size() > 1) {
    return InvalidError("both " + Quoted(named[0].content) + " and " + Quoted(named[1].content) +
                        " of " + file +
                        " could be the token that ends a text. hint: put a tokenizer_config.json "
                        "with its \"eos_token\" next to it");
  }
  return std::optional(named[0].id);
}

}  // namespace

Result<TokenRoles> FindTokenRoles(
    const TokenizerConfig& config, const std::string& file, const TokenizerDefinition& definition,
    const std::function<std::optional<int32_t>(const std::string&)>& id_of, SequenceForm& form,
    SequenceForm& pair_form) {
  const RoleFinder finder(config, file, definition, id_of);
  TokenRoles roles;
  WEFT_ASSIGN_OR_RETURN(roles.begin, finder.Find("bos_token"));
  WEFT_ASSIGN_OR_RETURN(roles.end, finder.Find("eos_token"));
  WEFT_RETURN_IF_ERROR(finder.CheckTemplate(form.begin, "bos_token", "cls_token", roles.begin,
                                            config.add_bos_token, "add_bos_token"));
  WEFT_RETURN_IF_ERROR(finder.CheckTemplate(form.end, "eos_token", "sep_token", roles.end,
                                            config.add_eos_token, "add_eos_token"));
  auto put = [](std::vector<int64_t>& tokens, std::optional<int32_t> token, bool wanted) {
    if (wanted && token && std::find(tokens.begin(), tokens.end(), *token) == tokens.end()) {
      tokens.push_back(*token);
    }
  };
  for (SequenceForm* each : {&form, &pair_form}) {
    put(each->begin, roles.begin, config.add_bos_token.value_or(false));
    put(each->end, roles.end, config.add_eos_token.value_or(false));
  }
  if (!roles.end) {
    WEFT_ASSIGN_OR_RETURN(roles.end, EndByName(definition.added, file));
  }
  // Any token may be masked or padded with; which one does not change what is learned of a text.
  auto find = [&](const char* role,
                  std::initializer_list<std::string_view> names) -> std::optional<int32_t> {
    if (const auto it = config.roles.find(role); it != config.roles.end()) return id_of(it->second);
    const std::vector<AddedToken> named = FindNamed(definition.added, names);
    return named.empty() ? std::nullopt : std::optional(named[0].id);
  };
  roles.mask = find("mask_token", {"[MASK]", "<mask>", "<|mask|>"});
  roles.padding =
      find("pad_token", {"[PAD]", "<pad>", "<|pad|>", "<|padding|>", "<|finetune_right_pad_id|>"});
  if (!roles.padding) roles.padding = roles.end;
  auto stop = [&](int32_t id) {
    if (std::find(roles.stops.begin(), roles.stops.end(), id) == roles.stops.end()) {
      roles.stops.push_back(id);
    }
  };
  if (roles.end) stop(*roles.end);
  for (const TokenizerConfig::Ids& ids : config.model_ids) {
    if (const auto it = ids.ids.find("eos_token_id"); it != ids.ids.end()) {
      std::for_each(it->second.begin(), it->second.end(), stop);
    }
  }
  return roles;
}

}  // namespace weft
