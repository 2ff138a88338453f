#include "worker/engine/data/token_shard.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"

namespace weft::engine {
namespace {

constexpr char kHeadMagic[8] = {'W', 'E', 'F', 'T', 'T', 'O', 'K', 'S'};
constexpr char kTailMagic[8] = {'W', 'E', 'F', 'T', 'T', 'O', 'K', 'E'};
constexpr uint32_t kVersion = 1;
constexpr size_t kHashBytes = 32;

struct Head {
  char magic[8];
  uint32_t version;
  uint32_t token_bytes;
};
static_assert(sizeof(Head) == 16);

struct Tail {
  uint64_t token_count;
  uint64_t document_count;
  uint64_t vocab_size;
  char tokenizer_hash[kHashBytes];
  char content_hash[kHashBytes];
  char magic[8];
};
static_assert(sizeof(Tail) == 96);

/// The content hash covers everything before itself.
constexpr size_t kUnhashedBytes = kHashBytes + sizeof(kTailMagic);

uint64_t TokenBytes(uint64_t vocab_size) {
  return vocab_size <= 256 ? 1 : vocab_size <= 65536 ? 2 : 4;
}

}  // namespace

Result<TokenShard> TokenShard::Open(Env& env, const std::string& path) {
  TokenShard shard;
  shard.path_ = path;
  WEFT_ASSIGN_OR_RETURN(shard.file_, env.MapFile(path));
  if (Status s = shard.Check(path); !s.ok()) {
    return CorruptError(path + " is not a sound token shard: " + s.message() +
                        ". hint: delete it, it is made again from the text");
  }
  return shard;
}

Status TokenShard::Check(const std::string& path) {
  std::span<const std::byte> bytes = file_->bytes();
  if (bytes.size() < sizeof(Head) + sizeof(Tail)) return CorruptError("too short");
  Head head;
  Tail tail;
  std::memcpy(&head, bytes.data(), sizeof(head));
  std::memcpy(&tail, bytes.data() + bytes.size() - sizeof(tail), sizeof(tail));
  if (std::memcmp(head.magic, kHeadMagic, sizeof(kHeadMagic)) != 0) {
    return CorruptError("wrong magic number");
  }
  if (std::memcmp(tail.magic, kTailMagic, sizeof(kTailMagic)) != 0) {
    return CorruptError("cut short: the trailer is missing");
  }
  if (head.version != kVersion) {
    return CorruptError("version " + std::to_string(head.version) + ", not " +
                        std::to_string(kVersion));
  }
  if (tail.vocab_size == 0 || tail.vocab_size > uint64_t{1} << 31 ||
      head.token_bytes != TokenBytes(tail.vocab_size)) {
    return CorruptError("a vocabulary of " + std::to_string(tail.vocab_size) + " with " +
                        std::to_string(head.token_bytes) + " bytes a token");
  }
  // Both counts are bounded by the size before anything is computed from them.
  const uint64_t body = bytes.size() - sizeof(head) - sizeof(tail);
  if (tail.token_count > body / head.token_bytes || tail.document_count > body / 8) {
    return CorruptError("its counts do not fit its size");
  }
  const uint64_t token_space = (tail.token_count * head.token_bytes + 7) / 8 * 8;
  if (token_space + (tail.document_count + 1) * 8 != body) {
    return CorruptError("its counts do not fit its size");
  }
  path_ = path;
  token_bytes_ = head.token_bytes;
  token_count_ = tail.token_count;
  vocab_size_ = tail.vocab_size;
  tokenizer_hash_.assign(tail.tokenizer_hash, kHashBytes);
  content_hash_.assign(tail.content_hash, kHashBytes);
  tokens_ = bytes.subspan(sizeof(head), token_count_ * head.token_bytes);
  // Mapped files start on a page and every part before the index is a multiple of 8 bytes long.
  document_starts_ = {reinterpret_cast<const uint64_t*>(bytes.data() + sizeof(head) + token_space),
                      tail.document_count + 1};
  if (document_starts_.front() != 0 || document_starts_.back() != token_count_ ||
      !std::is_sorted(document_starts_.begin(), document_starts_.end())) {
    return CorruptError("its document index is not in order");
  }
  return OkStatus();
}

int32_t TokenShard::operator[](uint64_t i) const {
  int32_t token = 0;
  Read(i, {&token, 1});
  return token;
}

void TokenShard::Read(uint64_t first, std::span<int32_t> out) const {
  WEFT_CHECK(first <= token_count_ && out.size() <= token_count_ - first, "outside the shard");
  const std::byte* from = tokens_.data() + first * token_bytes_;
  if (token_bytes_ == 4) {
    std::memcpy(out.data(), from, out.size_bytes());
  } else if (token_bytes_ == 2) {
    const auto* words = reinterpret_cast<const uint16_t*>(from);
    std::copy(words, words + out.size(), out.begin());
  } else {
    const auto* bytes = reinterpret_cast<const uint8_t*>(from);
    std::copy(bytes, bytes + out.size(), out.begin());
  }
}

Status TokenShard::Verify() const {
  std::span<const std::byte> bytes = file_->bytes();
  if (HashHex(bytes.first(bytes.size() - kUnhashedBytes)) != content_hash_) {
    return CorruptError(path_ + " does not match its hash. hint: delete it, it is made again");
  }
  std::vector<int32_t> block(1 << 16);
  for (uint64_t first = 0; first < token_count_; first += block.size()) {
    std::span<int32_t> part =
        std::span(block).first(std::min<uint64_t>(block.size(), token_count_ - first));
    Read(first, part);
    for (int32_t token : part) {
      if (static_cast<uint64_t>(static_cast<uint32_t>(token)) >= vocab_size_) {
        return CorruptError(path_ + " holds the token " + std::to_string(token) +
                            " outside its vocabulary of " + std::to_string(vocab_size_));
      }
    }
  }
  return OkStatus();
}

Result<TokenShardWriter> TokenShardWriter::Create(Env& env, const std::string& path,
                                                  uint64_t vocab_size,
                                                  const std::string& tokenizer_hash) {
  WEFT_CHECK(vocab_size > 0 && vocab_size <= uint64_t{1} << 31, "vocabulary out of range");
  WEFT_CHECK(tokenizer_hash.size() == kHashBytes, "a tokenizer hash has 32 digits");
  TokenShardWriter writer;
  WEFT_ASSIGN_OR_RETURN(writer.file_, env.NewWritableFile(path));
  writer.hash_ = std::make_unique<ContentHash>();
  writer.vocab_size_ = vocab_size;
  writer.tokenizer_hash_ = tokenizer_hash;
  Head head{};
  std::memcpy(head.magic, kHeadMagic, sizeof(kHeadMagic));
  head.version = kVersion;
  head.token_bytes = static_cast<uint32_t>(TokenBytes(vocab_size));
  WEFT_RETURN_IF_ERROR(writer.Write(std::as_bytes(std::span(&head, 1))));
  return writer;
}

Status TokenShardWriter::Write(std::span<const std::byte> bytes) {
  hash_->Update(bytes);
  written_ += bytes.size();
  return file_->Append(bytes);
}

Status TokenShardWriter::Append(std::span<const int32_t> tokens) {
  for (int32_t token : tokens) {
    WEFT_CHECK(token >= 0 && static_cast<uint64_t>(token) < vocab_size_, "token out of range");
  }
  token_count_ += tokens.size();
  const uint64_t bytes = TokenBytes(vocab_size_);
  if (bytes == 4) return Write(std::as_bytes(tokens));
  if (bytes == 2) {
    words_.assign(tokens.begin(), tokens.end());
    return Write(std::as_bytes(std::span(words_)));
  }
  bytes_.assign(tokens.begin(), tokens.end());
  return Write(std::as_bytes(std::span(bytes_)));
}

void TokenShardWriter::EndDocument() {
  if (document_starts_.back() != token_count_) document_starts_.push_back(token_count_);
}

Status TokenShardWriter::Finish() {
  EndDocument();
  const std::byte padding[8] = {};
  WEFT_RETURN_IF_ERROR(Write(std::span(padding).first((8 - written_ % 8) % 8)));
  WEFT_RETURN_IF_ERROR(Write(std::as_bytes(std::span(document_starts_))));
  Tail tail{};
  tail.token_count = token_count_;
  tail.document_count = document_starts_.size() - 1;
  tail.vocab_size = vocab_size_;
  std::memcpy(tail.tokenizer_hash, tokenizer_hash_.data(), kHashBytes);
  std::memcpy(tail.magic, kTailMagic, sizeof(kTailMagic));
  std::span<const std::byte> bytes = std::as_bytes(std::span(&tail, 1));
  hash_->Update(bytes.first(sizeof(tail) - kUnhashedBytes));
  std::memcpy(tail.content_hash, hash_->Hex().data(), kHashBytes);
  WEFT_RETURN_IF_ERROR(file_->Append(bytes));
  WEFT_RETURN_IF_ERROR(file_->Sync());
  return file_->Close();
}

}  // namespace weft::engine
