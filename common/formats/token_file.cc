#include "common/formats/token_file.h"

#include <algorithm>
#include <cstring>

#include "common/check.h"
#include "common/formats/git_lfs.h"

namespace weft {
namespace {

constexpr int32_t kGpt2Magic = 20240520;
constexpr int32_t kGpt2Version = 1;
constexpr int32_t kLlamaMagic = 20240801;
constexpr int32_t kLlamaVersion = 7;
constexpr size_t kLlmcHeaderBytes = 256 * sizeof(int32_t);
constexpr char kMegatronMagic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', '\0', '\0'};
constexpr size_t kMegatronHeaderBytes = 34;

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

Status SizeError(const std::string& what, uint64_t expected, uint64_t actual) {
  return InvalidError(what + " should be " + std::to_string(expected) + " bytes long, not " +
                      std::to_string(actual));
}

/// Bytes of Megatron's element types that hold tokens; 0 for others.
int MegatronBytes(uint8_t code) {
  switch (code) {
    case 1:  // u8
    case 2:  // i8
      return 1;
    case 3:  // i16
    case 8:  // u16
      return 2;
    case 4:  // i32
      return 4;
    case 5:  // i64
      return 8;
    default:
      return 0;
  }
}

/// Whether 16-bit words are ids of 32 or 64 bits: every second word is then an upper half, which is
/// small whatever the text. Looks at a part of the beginning, the middle and the end.
bool LooksWide(std::span<const std::byte> bytes) {
  constexpr size_t kFewestPairs = 16;
  constexpr size_t kPairs = 4096;         // of each part
  constexpr uint16_t kLargestUpper = 16;  // of a vocabulary of a million
  const size_t pairs = bytes.size() / 4;
  if (pairs < kFewestPairs || bytes.size() % 4 != 0) return false;
  uint16_t upper = 0;
  uint16_t lower = 0;
  for (const size_t part : {size_t{0}, pairs / 2, pairs - std::min(pairs, kPairs)}) {
    for (size_t i = part; i < std::min(part + kPairs, pairs); ++i) {
      lower = std::max(lower, Load<uint16_t>(bytes.data() + i * 4));
      upper = std::max(upper, Load<uint16_t>(bytes.data() + i * 4 + 2));
    }
  }
  return upper == 0 ? lower > 0 : upper < kLargestUpper && lower > kLargestUpper * 16;
}

}  // namespace

bool LooksLikeLlmc(std::span<const std::byte> bytes) {
  if (bytes.size() < kLlmcHeaderBytes) return false;
  const auto magic = Load<int32_t>(bytes.data());
  return magic == kGpt2Magic || magic == kLlamaMagic;
}

Result<TokenFile> TokenFile::Open(Env& env, const std::string& path, TokenFileFormat format) {
  TokenFile file;
  file.path_ = path;
  auto open = [&]() -> Status {
    if (format == TokenFileFormat::kMegatron) return file.OpenMegatron(env);
    WEFT_ASSIGN_OR_RETURN(file.file_, env.MapFile(path));
    WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(file.file_->bytes(), BaseName(path)));
    return format == TokenFileFormat::kLlmc ? file.OpenLlmc() : file.OpenNanoGpt();
  };
  if (Status status = open(); !status.ok()) {
    return status.WithContext("reading the tokens " + path);
  }
  return file;
}

Status TokenFile::OpenLlmc() {
  const std::span<const std::byte> bytes = file_->bytes();
  if (!LooksLikeLlmc(bytes)) {
    return InvalidError("it is no token file of llm.c: its magic number is another");
  }
  const bool llama = Load<int32_t>(bytes.data()) == kLlamaMagic;
  const auto version = Load<int32_t>(bytes.data() + 4);
  if (version != (llama ? kLlamaVersion : kGpt2Version)) {
    return InvalidError("it has the version " + std::to_string(version) + " of llm.c's form");
  }
  const auto count = Load<int32_t>(bytes.data() + 8);
  token_bytes_ = llama ? 4 : 2;
  const uint64_t expected = kLlmcHeaderBytes + static_cast<uint64_t>(std::max(count, 0)) *
                                                   static_cast<uint64_t>(token_bytes_);
  if (count < 0 || bytes.size() != expected) {
    return SizeError("a file of " + std::to_string(count) + " tokens", expected, bytes.size());
  }
  count_ = static_cast<uint64_t>(count);
  tokens_ = bytes.data() + kLlmcHeaderBytes;
  implied_vocab_size_ = llama ? 128256 : 50257;
  document_begin_ = llama ? 128000 : 50256;
  return OkStatus();
}

Status TokenFile::OpenNanoGpt() {
  const std::span<const std::byte> bytes = file_->bytes();
  if (LooksLikeLlmc(bytes)) {
    return InvalidError("it is a token file of llm.c. hint: set data.format to llmc");
  }
  if (bytes.size() % 2 != 0) {
    return InvalidError("it has " + std::to_string(bytes.size()) +
                        " bytes, which are no tokens of two");
  }
  if (LooksWide(bytes)) {
    return InvalidError(
        "every second of its 16-bit ids is nearly 0, as in a file of 32-bit or 64-bit ids, which "
        "this form is not. hint: write numpy.asarray(ids, dtype=numpy.uint16).tofile(path) where "
        "the vocabulary has at most 65,536 tokens; else the .idx and .bin of Megatron-LM "
        "(data.format: megatron), which say how wide their ids are");
  }
  count_ = bytes.size() / 2;
  tokens_ = bytes.data();
  return OkStatus();
}

Status TokenFile::OpenMegatron(Env& env) {
  std::string base = path_;
  for (const char* suffix : {".idx", ".bin"}) {
    if (base.ends_with(suffix)) {
      base.resize(base.size() - 4);
      break;
    }
  }
  WEFT_ASSIGN_OR_RETURN(index_, env.MapFile(base + ".idx"));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(index_->bytes(), BaseName(base) + ".idx"));
  WEFT_ASSIGN_OR_RETURN(file_, env.MapFile(base + ".bin"));
  WEFT_RETURN_IF_ERROR(CheckNotGitLfsPointer(file_->bytes(), BaseName(base) + ".bin"));
  tokens_ = file_->bytes().data();
  return ReadIndex(index_->bytes());
}

Status TokenFile::ReadIndex(std::span<const std::byte> index) {
  if (index.size() < kMegatronHeaderBytes ||
      std::memcmp(index.data(), kMegatronMagic, sizeof(kMegatronMagic)) != 0) {
    return InvalidError("the .idx is none of Megatron-LM: its magic number is another");
  }
  if (const auto version = Load<uint64_t>(index.data() + 9); version != 1) {
    return InvalidError("the .idx has the version " + std::to_string(version));
  }
  const auto code = Load<uint8_t>(index.data() + 17);
  token_bytes_ = MegatronBytes(code);
  is_signed_ = code >= 2 && code <= 5;
  if (token_bytes_ == 0) {
    return InvalidError("the .idx has the element type " + std::to_string(code) +
                        ", which holds no tokens");
  }
  const auto sequences = Load<uint64_t>(index.data() + 18);
  const auto documents = Load<uint64_t>(index.data() + 26);
  const uint64_t body = index.size() - kMegatronHeaderBytes;
  // Bounded before anything is computed from them. Modes, a byte a sequence, may follow.
  if (sequences > body / 12 || documents > body / 8 ||
      (sequences * 12 + documents * 8 != body && sequences * 13 + documents * 8 != body)) {
    return InvalidError("the .idx has " + std::to_string(sequences) + " sequences and " +
                        std::to_string(documents) + " documents, which do not fit its size");
  }
  const std::byte* lengths = index.data() + kMegatronHeaderBytes;
  const std::byte* pointers = lengths + sequences * 4;
  const std::byte* borders = pointers + sequences * 8;
  const auto width = static_cast<uint64_t>(token_bytes_);
  std::vector<uint64_t> starts(sequences + 1);
  for (uint64_t s = 0; s < sequences; ++s) {
    const auto length = Load<int32_t>(lengths + s * 4);
    const auto pointer = Load<int64_t>(pointers + s * 8);
    if (length < 0 || pointer < 0 || static_cast<uint64_t>(pointer) != starts[s] * width) {
      return InvalidError("sequence " + std::to_string(s) +
                          " of the .idx does not begin where the one before ends");
    }
    starts[s + 1] = starts[s] + static_cast<uint64_t>(length);
  }
  count_ = starts[sequences];
  if (file_->bytes().size() != count_ * width) {
    return SizeError("the .bin", count_ * width, file_->bytes().size());
  }
  uint64_t last = 0;
  for (uint64_t d = 0; d < documents; ++d) {
    const auto border = Load<int64_t>(borders + d * 8);
    if (border < 0 || static_cast<uint64_t>(border) > sequences ||
        static_cast<uint64_t>(border) < last || (d == 0 && border != 0)) {
      return InvalidError("document " + std::to_string(d) + " of the .idx is out of order");
    }
    last = static_cast<uint64_t>(border);
    document_starts_.push_back(starts[last]);
  }
  if (documents == 0 || last != sequences) {
    return InvalidError("the documents of the .idx do not take up all sequences");
  }
  return OkStatus();
}

int64_t TokenFile::At(uint64_t i) const {
  const std::byte* at = tokens_ + i * static_cast<uint64_t>(token_bytes_);
  switch (token_bytes_) {
    case 1:
      return is_signed_ ? Load<int8_t>(at) : Load<uint8_t>(at);
    case 2:
      return is_signed_ ? Load<int16_t>(at) : Load<uint16_t>(at);
    case 4:
      return is_signed_ ? Load<int32_t>(at) : Load<uint32_t>(at);
    default:
      return Load<int64_t>(at);
  }
}

Status TokenFile::Read(uint64_t first, uint64_t vocab_size, std::span<int32_t> out) const {
  WEFT_CHECK(first <= count_ && out.size() <= count_ - first, "outside the file");
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t token = At(first + i);
    if (token < 0 || static_cast<uint64_t>(token) >= vocab_size) {
      return InvalidError("token " + std::to_string(first + i) + " of " + path_ + " is " +
                          std::to_string(token) + ", outside the vocabulary of " +
                          std::to_string(vocab_size) +
                          ". hint: give the tokenizer that the file was made with");
    }
    out[i] = static_cast<int32_t>(token);
  }
  return OkStatus();
}

std::vector<std::span<const std::byte>> TokenFile::Bytes() const {
  if (index_) return {index_->bytes(), file_->bytes()};
  return {file_->bytes()};
}

}  // namespace weft
