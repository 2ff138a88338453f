// Ready-made tokens of llm.c, nanoGPT and Megatron-LM.
#include <algorithm>
#include <optional>
#include <utility>

#include "common/formats/data_files.h"
#include "common/formats/token_file.h"
#include "common/formats/tokenizer.h"
#include "common/hash.h"
#include "worker/engine/data/dataset_input.h"
#include "worker/engine/data/loader.h"

namespace weft::engine {
namespace {

constexpr uint64_t kBlockTokens = uint64_t{1} << 18;
constexpr uint64_t kMaxVocabulary = uint64_t{1} << 24;

class TokenInput : public DatasetInput {
 public:
  static Result<std::unique_ptr<DatasetInput>> Open(Env& env, const JobSpec& job,
                                                    const std::string& format) {
    if (ObjectiveOf(job.model) != Objective::kCausal) {
      return InvalidError("data.format " + format +
                          " has only tokens to predict the next of, no labels or masks. hint: give "
                          "text or JSONL");
    }
    std::unique_ptr<TokenInput> input(new TokenInput());
    input->format_ = format;
    WEFT_RETURN_IF_ERROR(input->OpenFiles(env, job.data.train, input->train_));
    WEFT_RETURN_IF_ERROR(input->OpenFiles(env, job.data.validation, input->validation_));
    if (!job.data.tokenizer.path.empty()) {
      WEFT_ASSIGN_OR_RETURN(input->tokenizer_, Tokenizer::Load(env, job.data.tokenizer.path));
    }
    WEFT_RETURN_IF_ERROR(input->CheckWidth(job));
    WEFT_RETURN_IF_ERROR(input->FindVocabulary(job.model.vocab_size));
    return std::unique_ptr<DatasetInput>(std::move(input));
  }

  Json Key() const override {
    auto contents = [](const std::vector<TokenFile>& files) {
      Json list = Json::array();
      for (const TokenFile& file : files) {
        for (std::span<const std::byte> bytes : file.Bytes()) list.push_back(HashHex(bytes));
      }
      return list;
    };
    return {"tokens",    format_,          tokenizer_ ? tokenizer_->hash() : "",
            vocab_size_, contents(train_), contents(validation_)};
  }

  bool may_cut_documents() const override { return true; }

  Status Write(Env& env, const std::string& folder, int /*threads*/, DatasetInfo& info) override {
    info.tokenizer_hash = NoTokenizerHash();
    info.vocab_size = static_cast<int64_t>(vocab_size_);
    info.end_of_text = border_;
    info.padding = std::max(border_, 0);
    if (tokenizer_) {
      info.tokenizer_file = tokenizer_->file_name();
      info.tokenizer_hash = tokenizer_->hash();
      info.padding = tokenizer_->padding().value_or(0);
      for (int32_t id : tokenizer_->special_tokens()) info.special_tokens.push_back(id);
      WEFT_RETURN_IF_ERROR(WriteTokenizerFiles(env, folder, tokenizer_->files()));
    }
    WEFT_RETURN_IF_ERROR(WritePart(env, JoinPath(folder, "train.tokens"), train_, info));
    if (validation_.empty()) return OkStatus();
    return WritePart(env, JoinPath(folder, "validation.tokens"), validation_, info);
  }

 private:
  TokenInput() = default;

  Status OpenFiles(Env& env, const std::vector<std::string>& paths, std::vector<TokenFile>& files) {
    const TokenFileFormat format = format_ == "llmc"      ? TokenFileFormat::kLlmc
                                   : format_ == "nanogpt" ? TokenFileFormat::kNanoGpt
                                                          : TokenFileFormat::kMegatron;
    std::vector<std::string> all = paths;  // an .idx and its .bin are one
    if (format != TokenFileFormat::kMegatron) {
      WEFT_ASSIGN_OR_RETURN(all, FilesOf(env, paths));
    }
    for (const std::string& path : all) {
      WEFT_ASSIGN_OR_RETURN(TokenFile file, TokenFile::Open(env, path, format));
      files.push_back(std::move(file));
    }
    return OkStatus();
  }

  /// Ids of a larger vocabulary than the elements can tell apart were cut off when they were
  /// written, and then each names a wrong token.
  Status CheckWidth(const JobSpec& job) const {
    int64_t tokens = tokenizer_ ? tokenizer_->vocab_size() : 0;
    std::string of = "the tokenizer " + job.data.tokenizer.path;
    if (!tokenizer_ && format_ == "nanogpt") {
      tokens = job.model.vocab_size;
      of = "model.vocab_size";
    }
    for (const auto* files : {&train_, &validation_}) {
      for (const TokenFile& file : *files) {
        if (static_cast<uint64_t>(tokens) <= file.most_tokens()) continue;
        return InvalidError(
            file.path() + " holds ids below " + std::to_string(file.most_tokens()) + ", and " + of +
            " has " + std::to_string(tokens) +
            " tokens: larger ids do not fit and are wrong in the file. hint: write the .idx and "
            ".bin of Megatron-LM with 32-bit ids (data.format: megatron), or give the tokenizer "
            "that the file was made with");
      }
    }
    return OkStatus();
  }

  /// The tokenizer's, else the format's, else the model's, else as large as the tokens need.
  Status FindVocabulary(int64_t model_size) {
    if (tokenizer_) {
      vocab_size_ = static_cast<uint64_t>(tokenizer_->vocab_size());
      border_ = tokenizer_->end_of_text().value_or(-1);
    } else if (train_.front().implied_vocab_size() > 0) {
      vocab_size_ = static_cast<uint64_t>(train_.front().implied_vocab_size());
      border_ = train_.front().document_begin();
    } else if (model_size > 0) {
      vocab_size_ = static_cast<uint64_t>(model_size);
    } else {
      for (const auto* files : {&train_, &validation_}) {
        for (const TokenFile& file : *files) {
          WEFT_RETURN_IF_ERROR(ForEachBlock(file, kMaxVocabulary, [&](auto tokens) {
            const int32_t largest = *std::max_element(tokens.begin(), tokens.end());
            vocab_size_ = std::max(vocab_size_, static_cast<uint64_t>(largest) + 1);
            return OkStatus();
          }));
        }
      }
      vocab_size_ = std::max<uint64_t>(vocab_size_, 1);
    }
    if (train_.front().document_begin() >= 0 && tokenizer_) {
      border_ = static_cast<uint64_t>(train_.front().document_begin()) < vocab_size_
                    ? train_.front().document_begin()
                    : border_;
    }
    return OkStatus();
  }

  template <class Use>
  static Status ForEachBlock(const TokenFile& file, uint64_t vocab_size, Use&& use) {
    std::vector<int32_t> block(std::min(kBlockTokens, file.size()));
    for (uint64_t first = 0; first < file.size(); first += block.size()) {
      std::span<int32_t> part =
          std::span(block).first(std::min<uint64_t>(block.size(), file.size() - first));
      WEFT_RETURN_IF_ERROR(file.Read(first, vocab_size, part));
      WEFT_RETURN_IF_ERROR(use(std::span<const int32_t>(part)));
    }
    return OkStatus();
  }

  Status WritePart(Env& env, const std::string& path, const std::vector<TokenFile>& files,
                   const DatasetInfo& info) const {
    WEFT_ASSIGN_OR_RETURN(TokenShardWriter writer,
                          TokenShardWriter::Create(env, path, vocab_size_, info.tokenizer_hash));
    for (const TokenFile& file : files) {
      WEFT_RETURN_IF_ERROR(file.document_starts().empty() ? CopyByBorders(file, writer)
                                                          : CopyDocuments(file, writer));
      writer.EndDocument();
    }
    return writer.Finish();
  }

  /// Documents begin with the border token in files of llm.c and end with it elsewhere.
  Status CopyByBorders(const TokenFile& file, TokenShardWriter& writer) const {
    const bool begins = file.document_begin() >= 0;
    return ForEachBlock(file, vocab_size_, [&](std::span<const int32_t> tokens) -> Status {
      size_t done = 0;
      for (size_t i = 0; i < tokens.size(); ++i) {
        if (tokens[i] != border_) continue;
        const size_t end = begins ? i : i + 1;
        WEFT_RETURN_IF_ERROR(writer.Append(tokens.subspan(done, end - done)));
        writer.EndDocument();
        done = end;
      }
      return writer.Append(tokens.subspan(done));
    });
  }

  Status CopyDocuments(const TokenFile& file, TokenShardWriter& writer) const {
    uint64_t at = 0;
    auto next = std::upper_bound(file.document_starts().begin(), file.document_starts().end(), at);
    return ForEachBlock(file, vocab_size_, [&](std::span<const int32_t> tokens) -> Status {
      while (!tokens.empty()) {
        const uint64_t count = std::min<uint64_t>(tokens.size(), *next - at);
        WEFT_RETURN_IF_ERROR(writer.Append(tokens.first(count)));
        tokens = tokens.subspan(count);
        at += count;
        if (at < *next) continue;
        writer.EndDocument();
        while (next != file.document_starts().end() && *next <= at) ++next;
      }
      return OkStatus();
    });
  }

  std::string format_;
  std::vector<TokenFile> train_;
  std::vector<TokenFile> validation_;
  std::optional<Tokenizer> tokenizer_;
  uint64_t vocab_size_ = 0;
  int32_t border_ = -1;  ///< Token between documents, or -1.
};

}  // namespace

Result<std::unique_ptr<DatasetInput>> OpenTokenInput(Env& env, const JobSpec& job,
                                                     const std::string& format) {
  return TokenInput::Open(env, job, format);
}

}  // namespace weft::engine
