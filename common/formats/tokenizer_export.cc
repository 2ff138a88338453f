#include "common/formats/tokenizer_export.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/formats/sentencepiece_json.h"
#include "common/formats/tokenizer_components.h"
#include "common/formats/tokenizer_json.h"
#include "common/model/model_sizes.h"

namespace weft {
namespace {

using Ids = std::unordered_map<std::string, int64_t>;

const Json* Find(const Json& object, const char* key) {
  auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

/// Ids of all tokens that a tokenizer.json spells.
Ids TokenIds(const Json& file) {
  Ids ids;
  if (const Json* vocab = Find(file.at("model"), "vocab")) {
    int64_t position = 0;
    for (const auto& [key, value] : vocab->items()) {
      if (vocab->is_object()) {
        ids.emplace(key, value.get<int64_t>());
      } else {
        ids.emplace(value.at(0).get<std::string>(), position++);
      }
    }
  }
  if (const Json* added = Find(file, "added_tokens")) {
    for (const Json& token : *added) {
      ids.emplace(token.at("content").get<std::string>(), token.at("id").get<int64_t>());
    }
  }
  return ids;
}

/// Token ids of a key of config.json: those within the vocabulary.
std::vector<int64_t> ConfigIds(const Json& config, const char* key, int64_t vocab_size) {
  std::vector<int64_t> ids;
  const Json* value = Find(config, key);
  if (value == nullptr) return ids;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_integer()) continue;
    const auto number = id.get<int64_t>();
    if (number >= 0 && number < vocab_size) ids.push_back(number);
  }
  return ids;
}

class Describer {
 public:
  Describer(const Tokenizer& tokenizer, const ModelSpec& model, const UsageFiles& imported,
            Json file)
      : tokenizer_(tokenizer),
        model_(model),
        imported_(imported),
        causal_(HeadOf(model) == "causal_lm"),
        file_(std::move(file)),
        changed_(AddTokens(tokenizer.config().added)),
        ids_(TokenIds(file_)) {}

  Result<TokenizerExport> Describe() {
    TokenizerExport out;
    FindRoles();
    DescribeIds(out);
    const bool is_json = tokenizer_.file_name() == "tokenizer.json";
    WEFT_RETURN_IF_ERROR(ChangeFile());
    out.files["tokenizer.json"] = is_json && !changed_ ? tokenizer_.content() : file_.dump() + "\n";
    if (!is_json) out.files[tokenizer_.file_name()] = tokenizer_.content();
    out.files["tokenizer_config.json"] = Config().dump(2) + "\n";
    out.files["special_tokens_map.json"] = Json(roles_).dump(2) + "\n";
    // One template alone; transformers takes several, with their names, from tokenizer_config.json.
    const std::string& chat_template = tokenizer_.config().chat_template;
    const Json* named = Find(tokenizer_.config().tokenizer_config, "chat_template");
    if (!chat_template.empty() && (named == nullptr || named->is_string())) {
      out.files["chat_template.jinja"] = chat_template;
    }
    return out;
  }

 private:
  /// Puts into the file the tokens that only the files next to it have; whether there are some.
  bool AddTokens(const std::vector<AddedToken>& tokens) {
    if (Find(file_, "added_tokens") == nullptr) file_["added_tokens"] = Json::array();
    Json& added = file_["added_tokens"];
    std::unordered_set<std::string> known;
    for (const Json& token : added) known.insert(token.at("content").get<std::string>());
    bool changed = false;
    for (const AddedToken& token : tokens) {
      if (known.contains(token.content)) continue;
      added.push_back(tokenizer_json::AddedTokenJson(token));
      changed = true;
    }
    return changed;
  }

  /// The spelling of a token; "" when the file does not have it.
  std::string TextOf(int64_t id) const {
    const std::optional<std::string> text = tokenizer_.TokenOf(static_cast<int32_t>(id));
    const auto known = text ? ids_.find(*text) : ids_.end();
    return known != ids_.end() && known->second == id ? *text : "";
  }

  void SetRole(const std::string& role, const std::string& text) {
    if (!text.empty()) roles_.try_emplace(role, text);
  }

  /// Those of the files next to the tokenizer; then what it knows itself.
  void FindRoles() {
    for (const auto& [role, text] : tokenizer_.config().roles) {
      if (ids_.contains(text)) roles_[role] = text;
    }
    const std::optional<int32_t> end = tokenizer_.end_of_text();
    if (auto first = tokenizer_.roles().begin; first.has_value()) {
      SetRole("bos_token", TextOf(*first));
    }
    const std::vector<int64_t> begin =
        ConfigIds(imported_.config, "bos_token_id", tokenizer_.vocab_size());
    if (!begin.empty()) SetRole("bos_token", TextOf(begin[0]));
    // A tokenizer.json may begin texts though no other file names the token.
    const std::vector<int64_t>& written = tokenizer_.form(/*pair=*/false).begin;
    if (causal_ && written.size() == 1) SetRole("bos_token", TextOf(written[0]));
    if (end.has_value()) {
      SetRole("eos_token", TextOf(*end));
      // Documents follow each other, so the end of one is what the next begins after.
      if (imported_.config.empty() || !causal_) SetRole("bos_token", TextOf(*end));
    }
    const Json& model = file_.at("model");
    if (const Json* unknown = Find(model, "unk_token")) {
      SetRole("unk_token", unknown->get<std::string>());
    }
    if (const Json* unknown = Find(model, "unk_id")) {
      SetRole("unk_token", TextOf(unknown->get<int64_t>()));
    }
    if (auto mask = tokenizer_.mask(); mask.has_value()) SetRole("mask_token", TextOf(*mask));
    if (causal_) return;
    const SequenceForm& form = tokenizer_.form(/*pair=*/false);
    if (form.begin.size() == 1) SetRole("cls_token", TextOf(form.begin[0]));
    if (form.end.size() == 1) SetRole("sep_token", TextOf(form.end[0]));
    if (auto padding = tokenizer_.padding(); padding.has_value()) {
      SetRole("pad_token", TextOf(*padding));
    }
  }

  Json IdOfRole(const char* role) const {
    auto it = roles_.find(role);
    return it == roles_.end() ? Json(nullptr) : Json(ids_.at(it->second));
  }

  void DescribeIds(TokenizerExport& out) const {
    out.bos_token_id = IdOfRole("bos_token");
    out.pad_token_id = IdOfRole("pad_token");
    out.eos_token_id = IdOfRole("eos_token");
    if (!causal_) return;
    std::vector<int64_t> ends =
        ConfigIds(imported_.generation_config, "eos_token_id", tokenizer_.vocab_size());
    if (ends.empty()) {
      ends = ConfigIds(imported_.config, "eos_token_id", tokenizer_.vocab_size());
    }
    // What documents of the training ended with stops a text, too, as does the end of a turn.
    const std::vector<int32_t>& stops = tokenizer_.roles().stops;
    if (ends.empty() && stops.size() < 2) return;
    for (int32_t id : stops) {
      if (std::find(ends.begin(), ends.end(), id) == ends.end()) ends.push_back(id);
    }
    out.eos_token_id = ends.size() == 1 ? Json(ends[0]) : Json(ends);
  }

  /// Makes the file do what the engine does.
  Status ChangeFile() {
    for (const char* key : {"truncation", "padding"}) {
      if (Find(file_, key) == nullptr) continue;
      file_[key] = nullptr;
      changed_ = true;
    }
    const Json processor = file_.value("post_processor", Json());
    SequenceForm single, pair;
    WEFT_RETURN_IF_ERROR(tokenizer_json::ReadPostProcessor(processor, single, pair));
    if (single == Form(/*pair=*/false) && (causal_ || pair == Form(/*pair=*/true))) {
      return OkStatus();
    }
    // The offsets of byte-level tokens stay what they were.
    WEFT_ASSIGN_OR_RETURN(std::vector<Json> parts, tokenizer_json::Parts(processor, "processors"));
    std::erase_if(parts,
                  [](const Json& part) { return tokenizer_json::TypeOf(part) != "ByteLevel"; });
    const SequenceForm one = Form(/*pair=*/false), two = Form(/*pair=*/true);
    if (one.Overhead() + two.Overhead() > 0) {
      parts.push_back(
          tokenizer_json::TemplateJson(one, two, [this](int64_t id) { return TextOf(id); }));
    }
    file_["post_processor"] = parts.empty() ? Json(nullptr)
                              : parts.size() == 1
                                  ? parts.front()
                                  : Json{{"type", "Sequence"}, {"processors", parts}};
    changed_ = true;
    return OkStatus();
  }

  /// What `tokenizer(text)` or, of two texts, `tokenizer(first, second)` puts around them: what the
  /// engine does in training. The end of a language model's document is no part of it: a text that
  /// is given to the model goes on.
  SequenceForm Form(bool pair) const {
    if (!causal_) return tokenizer_.form(pair);
    const std::vector<int64_t>& begin = tokenizer_.form(/*pair=*/false).begin;
    return pair ? SequenceForm{.begin = begin, .middle = begin} : SequenceForm{.begin = begin};
  }

  Json Config() const {
    const TokenizerConfig& given = tokenizer_.config();
    Json config = Json::object();
    for (const char* key :
         {"clean_up_tokenization_spaces", "padding_side", "truncation_side", "chat_template"}) {
      if (const Json* value = Find(given.tokenizer_config, key)) config[key] = *value;
    }
    if (!config.contains("clean_up_tokenization_spaces")) {
      config["clean_up_tokenization_spaces"] = false;
    }
    if (!config.contains("chat_template") && !given.chat_template.empty()) {
      config["chat_template"] = given.chat_template;
    }
    DescribePrefix(config);
    const bool is_json = tokenizer_.file_name() == "tokenizer.json";
    Json more = Json::array();
    for (const std::string& text : given.more_special_tokens) {
      // To a SentencePiece model a piece in this list is text like others.
      if (is_json ? ids_.contains(text) : IsAdded(text)) more.push_back(text);
    }
    if (!more.empty()) config["additional_special_tokens"] = more;
    // The class that takes tokenizer.json as it is; those of the families build another one from
    // parts of it.
    config["tokenizer_class"] = "PreTrainedTokenizerFast";
    config["model_max_length"] = model_.context;
    // transformers 4 would give types of tokens to all models, 5 to none.
    config["model_input_names"] = model_.family == "bert" && TokenTypes(model_) > 1
                                      ? Json({"input_ids", "token_type_ids", "attention_mask"})
                                      : Json({"input_ids", "attention_mask"});
    for (const auto& [role, text] : roles_) config[role] = text;
    return config;
  }

  bool IsAdded(const std::string& text) const {
    const Json& added = file_.at("added_tokens");
    return std::any_of(added.begin(), added.end(),
                       [&](const Json& token) { return token.at("content") == text; });
  }

  /// The switches of the space before a text, where something is read from them.
  void DescribePrefix(Json& config) const {
    if (tokenizer_.file_name() != "tokenizer.json") {
      // tokenizer.json does it; these are for tokenizer.model.
      const TokenizerConfig& given = tokenizer_.config();
      if (given.legacy) config["legacy"] = *given.legacy;
      if (given.add_prefix_space) config["add_prefix_space"] = *given.add_prefix_space;
      return;
    }
    const Json* splitter = Find(file_, "pre_tokenizer");
    // transformers 4 takes it out of a ByteLevel unless this file asks for it, too.
    if (splitter != nullptr && tokenizer_json::TypeOf(*splitter) == "ByteLevel" &&
        splitter->value("add_prefix_space", false)) {
      config["add_prefix_space"] = true;
    }
  }

  const Tokenizer& tokenizer_;
  const ModelSpec& model_;
  const UsageFiles& imported_;
  const bool causal_;
  Json file_;
  bool changed_;  ///< `file_` says something else than the tokenizer's own.
  const Ids ids_;
  std::map<std::string, std::string> roles_;
};

}  // namespace

Result<TokenizerExport> DescribeTokenizer(const Tokenizer& tokenizer, const ModelSpec& model,
                                          const UsageFiles& imported) {
  try {
    Json file;
    if (tokenizer.file_name() == "tokenizer.json") {
      WEFT_ASSIGN_OR_RETURN(file, ParseJson(tokenizer.content(), {.bytes = size_t{1} << 30}));
    } else {
      const TokenizerConfig& config = tokenizer.config();
      WEFT_ASSIGN_OR_RETURN(const SentencePieceFile pieces,
                            ParseSentencePiece(tokenizer.content(), PrefixSwitchesOf(config)));
      file = SentencePieceJson(pieces);
    }
    return Describer(tokenizer, model, imported, std::move(file)).Describe();
  } catch (const Json::exception& error) {
    return InvalidError(std::string("the tokenizer cannot be described for transformers: ") +
                        error.what());
  }
}

}  // namespace weft
