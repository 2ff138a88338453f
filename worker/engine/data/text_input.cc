// Text and JSONL files: a tokenizer, given or trained here, and the documents it encodes.
#include <algorithm>
#include <map>
#include <optional>
#include <regex>
#include <set>
#include <utility>

#include "common/formats/data_files.h"
#include "common/formats/tokenizer_training.h"
#include "common/hash.h"
#include "common/spec/instruction_data.h"
#include "common/text.h"
#include "worker/engine/data/bad_lines.h"
#include "worker/engine/data/class_order.h"
#include "worker/engine/data/dataset_input.h"
#include "worker/engine/data/encode_documents.h"
#include "worker/engine/data/instruction_encoder.h"
#include "worker/engine/data/loader.h"

namespace weft::engine {
namespace {

constexpr uint64_t kMaxClass = uint64_t{1} << 20;

/// Labels of documents and the classes that they are of.
struct Labels {
  std::vector<std::string> names;  ///< Of each document.
  bool numbers = false;            ///< All are whole numbers; otherwise all are names.
};

class TextInput : public DatasetInput {
 public:
  static Result<std::unique_ptr<DatasetInput>> Open(Env& env, const JobSpec& job) {
    std::unique_ptr<TextInput> input(new TextInput(job));
    WEFT_RETURN_IF_ERROR(input->OpenFiles(env, job.data.train, input->train_));
    WEFT_RETURN_IF_ERROR(input->OpenFiles(env, job.data.validation, input->validation_));
    WEFT_ASSIGN_OR_RETURN(input->classes_of_model_, ClassesOfModel(env, job.model));
    if (!job.data.tokenizer.path.empty()) {
      WEFT_ASSIGN_OR_RETURN(input->tokenizer_, Tokenizer::Load(env, job.data.tokenizer.path));
      WEFT_RETURN_IF_ERROR(input->CheckTokenizer(job.data.tokenizer.path));
    }
    WEFT_ASSIGN_OR_RETURN(input->instruction_form_, input->FindInstructionForm());
    if (input->instruction_form_.conversations) {
      const std::string of_tokenizer =
          input->tokenizer_ ? input->tokenizer_->config().chat_template : "";
      WEFT_ASSIGN_OR_RETURN(input->chat_template_,
                            ChatTemplateSource(env, job.data.chat_template, of_tokenizer));
    }
    if (input->tokenizer_) WEFT_RETURN_IF_ERROR(input->PrepareInstruction());
    return std::unique_ptr<DatasetInput>(std::move(input));
  }

  Json Key() const override {
    auto contents = [&](const std::vector<DocumentFile>& files) {
      Json list = Json::array();
      for (const DocumentFile& file : files) {
        const char* form = file.form() == TextForm::kJsonArray ? "json:" : "jsonl:";
        list.push_back({HashHex(file.bytes()), file.is_json() ? form + options_.text_field
                                                              : "text:" + options_.separator});
      }
      return list;
    };
    const std::string tokenizer =
        tokenizer_ ? "given:" + tokenizer_->hash() : "train:" + std::to_string(vocab_size_);
    Json key = {"text",
                tokenizer,
                contents(train_),
                contents(validation_),
                static_cast<int>(objective_),
                options_.second_text_field,
                options_.label_field,
                classes_of_model_,
                skip_bad_lines_,
                special_ == SpecialTokens::kAsTokens};
    if (objective_ == Objective::kCausal && tokenizer_ && !tokenizer_->form(false).begin.empty()) {
      key.push_back({"begin", tokenizer_->form(false).begin});
    }
    if (is_instruction()) {
      key.push_back({options_.format, chat_template_, answers_alone_});
    }
    return key;
  }

  bool may_cut_documents() const override {
    return objective_ != Objective::kClassification && !is_instruction();
  }

  int64_t documents_together() const override { return instruction_form_.pairs ? 2 : 1; }

  Status Write(Env& env, const std::string& folder, int threads, DatasetInfo& info) override {
    if (skip_bad_lines_) WEFT_RETURN_IF_ERROR(SkipLines(threads, nullptr, info));
    return WriteDocuments(env, folder, threads, info);
  }

 private:
  explicit TextInput(const JobSpec& job)
      : objective_(ObjectiveOf(job.model)),
        options_{
            .format = job.data.format,
            .text_field = job.data.text_field,
            .separator = job.data.document_separator,
            .second_text_field = job.data.second_text_field,
            .label_field = objective_ == Objective::kClassification ? job.data.label_field : ""},
        vocab_size_(job.data.tokenizer.vocab_size),
        skip_bad_lines_(job.data.bad_lines == "skip"),
        special_(job.data.special_tokens == "parse" ? SpecialTokens::kAsTokens
                                                    : SpecialTokens::kAsText),
        answers_alone_(job.data.loss_on == "completions" || job.data.format == kPreferenceFormat) {}

  bool is_instruction() const { return IsInstructionFormat(options_.format); }

  /// The first readable line of preference data says whether there are conversations.
  Result<InstructionForm> FindInstructionForm() const {
    InstructionForm form{.conversations = options_.format == "chat",
                         .pairs = options_.format == kPreferenceFormat};
    if (!form.pairs) return form;
    DocumentContent content;
    for (const DocumentPlace& place : Places(train_)) {
      const Status read = WithBadLineHint(place.file->Read(place.index, content));
      if (!read.ok() && !skip_bad_lines_) return read;
      if (!read.ok()) continue;
      form.conversations = content.prompt_messages > 0;
      break;
    }
    return form;
  }

  /// What is to be known of the tokenizer for instruction tuning; chats' templates become its own.
  Status PrepareInstruction() {
    if (!is_instruction()) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(
        InstructionEncoder encoder,
        InstructionEncoder::Create(instruction_form_, chat_template_, *tokenizer_,
                                   {.special = special_, .finds_answers = answers_alone_}));
    WEFT_ASSIGN_OR_RETURN(const std::vector<int32_t> ends, encoder.EndTokens());
    if (!chat_template_.empty()) tokenizer_->SetChatTemplate(chat_template_, ends);
    instruction_.emplace(std::move(encoder));
    return OkStatus();
  }

  /// Special tokens of a tokenizer that is trained here, besides the one that ends a text.
  std::vector<std::string> SpecialTokensToTrain() const {
    if (objective_ == Objective::kMasked) return {"<mask>"};
    std::vector<std::string> special;
    // What a template spells in this form is meant to be a token.
    const std::regex pattern("<\\|[A-Za-z0-9_]{1,40}\\|>");
    const std::string& source = chat_template_;
    for (std::sregex_iterator it(source.begin(), source.end(), pattern), end; it != end; ++it) {
      const std::string token = it->str();
      if (token != "<|endoftext|>" &&
          std::find(special.begin(), special.end(), token) == special.end()) {
        special.push_back(token);
      }
    }
    return special;
  }

  Status SkipLines(int threads, const InstructionEncoder* instruction, DatasetInfo& info) {
    SkippedLines skipped{.count = info.skipped_lines, .first = info.first_skipped_line};
    SkipBadLines(train_, threads, instruction, skipped);
    const auto has_documents = [](const DocumentFile& file) { return file.size() > 0; };
    if (std::none_of(train_.begin(), train_.end(), has_documents)) {
      return InvalidError("no line of the training data can be used; the first: " + skipped.first);
    }
    SkipBadLines(validation_, threads, instruction, skipped);
    info.skipped_lines = skipped.count;
    info.first_skipped_line = ClipText(skipped.first, 300);  // names of files may be any bytes
    return OkStatus();
  }

  Status WriteDocuments(Env& env, const std::string& folder, int threads, DatasetInfo& info) {
    if (!tokenizer_) {
      Result<Tokenizer> trained = TrainTokenizer(train_, vocab_size_, SpecialTokensToTrain());
      if (!trained.ok()) return WithBadLineHint(trained.status());
      tokenizer_ = *std::move(trained);
      WEFT_RETURN_IF_ERROR(PrepareInstruction());
    }
    if (skip_bad_lines_ && instruction_) {
      WEFT_RETURN_IF_ERROR(SkipLines(threads, &*instruction_, info));
    }
    info.tokenizer_file = tokenizer_->file_name();
    info.tokenizer_hash = tokenizer_->hash();
    info.vocab_size = tokenizer_->vocab_size();
    info.end_of_text = tokenizer_->end_of_text().value_or(-1);
    info.padding = tokenizer_->padding().value_or(0);
    info.mask = tokenizer_->mask().value_or(-1);
    for (int32_t id : tokenizer_->special_tokens()) info.special_tokens.push_back(id);
    if (objective_ == Objective::kCausal) {
      encoded_form_ = tokenizer_->form(/*pair=*/false);
    } else {
      encoded_form_ = info.form = tokenizer_->form(!options_.second_text_field.empty());
    }
    WEFT_RETURN_IF_ERROR(WriteTokenizerFiles(env, folder, tokenizer_->files()));
    info.labels = objective_ == Objective::kClassification;
    info.answers = is_instruction() && answers_alone_;
    std::map<std::string, int32_t> classes;
    if (info.labels) {
      WEFT_ASSIGN_OR_RETURN(info.classes, FindClasses());
      for (const std::string& name : info.classes) {
        classes.emplace(name, static_cast<int32_t>(classes.size()));
      }
    }
    SpelledSpecialTokens spelled;
    WEFT_RETURN_IF_ERROR(
        WritePart(env, JoinPath(folder, "train"), train_, classes, threads, spelled));
    if (!validation_.empty()) {
      WEFT_RETURN_IF_ERROR(
          WritePart(env, JoinPath(folder, "validation"), validation_, classes, threads, spelled));
    }
    info.spelled_special_tokens = static_cast<int64_t>(spelled.count);
    info.spelled_example = spelled.example;
    return OkStatus();
  }

  Status OpenFiles(Env& env, const std::vector<std::string>& paths,
                   std::vector<DocumentFile>& files) {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, FilesOf(env, paths));
    for (const std::string& path : all) {
      WEFT_ASSIGN_OR_RETURN(DocumentFile file, DocumentFile::Open(env, path, options_));
      files.push_back(std::move(file));
    }
    return OkStatus();
  }

  Status CheckTokenizer(const std::string& path) const {
    if (objective_ == Objective::kCausal && !tokenizer_->end_of_text()) {
      return InvalidError("the tokenizer " + path +
                          " has no end-of-text token. hint: name it as \"eos_token\" in a "
                          "tokenizer_config.json next to it");
    }
    if (objective_ == Objective::kMasked && !tokenizer_->mask()) {
      return InvalidError("the tokenizer " + path +
                          " has no mask token. hint: its added_tokens must hold a special "
                          "\"[MASK]\" or \"<mask>\"");
    }
    if (!options_.second_text_field.empty() && tokenizer_->form(true).middle.empty()) {
      return InvalidError("the tokenizer " + path + " has no token to put between two texts");
    }
    return OkStatus();
  }

  std::vector<DocumentPlace> Places(const std::vector<DocumentFile>& files) const {
    std::vector<DocumentPlace> places;
    for (const DocumentFile& file : files) {
      for (size_t i = 0; i < file.size(); ++i) places.push_back({&file, i});
    }
    return places;
  }

  static Result<Labels> ReadLabels(const std::vector<DocumentPlace>& places) {
    Labels labels;
    DocumentContent content;
    for (const DocumentPlace& place : places) {
      WEFT_RETURN_IF_ERROR(WithBadLineHint(place.file->Read(place.index, content)));
      if (labels.names.empty()) labels.numbers = content.label_is_number;
      if (labels.numbers != content.label_is_number) {
        return InvalidError("some labels are numbers and some are names, as \"" +
                            ClipText(content.label) + "\"");
      }
      labels.names.push_back(content.label);
    }
    return labels;
  }

  /// Names of the classes of the training documents in order, or 0 to the largest number.
  Result<std::vector<std::string>> FindClasses() const {
    WEFT_ASSIGN_OR_RETURN(Labels labels, ReadLabels(Places(train_)));
    std::set<std::string> names(labels.names.begin(), labels.names.end());
    if (!labels.numbers) return OrderClasses(names, classes_of_model_);
    uint64_t largest = 0;
    for (const std::string& name : names) {
      const uint64_t number = name.size() > 7 ? kMaxClass : std::stoull(name);
      if (number >= kMaxClass)
        return InvalidError("a label is " + name + ", too large for a class");
      largest = std::max(largest, number);
    }
    std::vector<std::string> classes;
    for (uint64_t i = 0; i <= largest; ++i) classes.push_back(std::to_string(i));
    return classes;
  }

  Status WritePart(Env& env, const std::string& path, const std::vector<DocumentFile>& files,
                   const std::map<std::string, int32_t>& classes, int threads,
                   SpelledSpecialTokens& spelled) const {
    std::vector<DocumentPlace> places = Places(files);
    const bool labelled = !classes.empty();
    if (labelled) {
      std::vector<DocumentPlace> scattered;
      for (size_t i : ScatteredOrder(places.size())) scattered.push_back(places[i]);
      places = std::move(scattered);
    }
    WEFT_ASSIGN_OR_RETURN(TokenShardWriter writer,
                          TokenShardWriter::Create(env, path + ".tokens",
                                                   static_cast<uint64_t>(tokenizer_->vocab_size()),
                                                   tokenizer_->hash()));
    std::optional<TokenShardWriter> answers;
    if (is_instruction() && answers_alone_) {
      WEFT_ASSIGN_OR_RETURN(
          TokenShardWriter marks,
          TokenShardWriter::Create(env, path + ".answers", /*vocab_size=*/2, tokenizer_->hash()));
      answers.emplace(std::move(marks));
    }
    const EncodeOptions options = {.form = encoded_form_,
                                   .keep_empty = labelled,
                                   .special = special_,
                                   .threads = threads,
                                   .instruction = instruction_ ? &*instruction_ : nullptr};
    WEFT_ASSIGN_OR_RETURN(
        SpelledSpecialTokens found,
        EncodeDocuments(places, *tokenizer_, options, writer, answers ? &*answers : nullptr));
    spelled.count += found.count;
    if (spelled.example.empty()) spelled.example = found.example;
    WEFT_RETURN_IF_ERROR(writer.Finish());
    if (answers) WEFT_RETURN_IF_ERROR(answers->Finish());
    if (!labelled) return OkStatus();
    WEFT_ASSIGN_OR_RETURN(Labels labels, ReadLabels(places));
    std::vector<int32_t> numbers;
    for (const std::string& name : labels.names) {
      auto it = classes.find(name);
      if (it == classes.end()) {
        return InvalidError("the class \"" + ClipText(name) +
                            "\" of a validation document is not in the training data");
      }
      numbers.push_back(it->second);
    }
    return WriteLabels(env, path + ".labels", numbers, classes.size(), tokenizer_->hash());
  }

  Objective objective_;
  DocumentOptions options_;
  int64_t vocab_size_;
  bool skip_bad_lines_;
  SpecialTokens special_;
  bool answers_alone_;                ///< The loss counts these alone.
  InstructionForm instruction_form_;  ///< For instruction tuning.
  std::string chat_template_;         ///< Of conversations.
  std::vector<std::string> classes_of_model_;
  std::vector<DocumentFile> train_;
  std::vector<DocumentFile> validation_;
  std::optional<Tokenizer> tokenizer_;
  std::optional<InstructionEncoder> instruction_;  ///< Of tokenizer_, for instruction tuning.
  SequenceForm encoded_form_;                      ///< Around the text in the shard.
};

}  // namespace

Result<std::unique_ptr<DatasetInput>> OpenTextInput(Env& env, const JobSpec& job) {
  return TextInput::Open(env, job);
}

}  // namespace weft::engine
