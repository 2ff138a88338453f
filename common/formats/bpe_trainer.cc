#include "common/formats/bpe_trainer.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <set>
#include <utility>
#include <vector>

#include "common/formats/byte_alphabet.h"

namespace weft {
namespace {

constexpr int64_t kMinCount = 2;

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Word {
  std::vector<int32_t> tokens;
  int64_t count = 0;
};

/// Counts of adjacent pairs over all words, kept up to date while pairs are merged.
class PairCounts {
 public:
  explicit PairCounts(std::vector<Word> words) : words_(std::move(words)) {
    for (size_t w = 0; w < words_.size(); ++w) {
      const std::vector<int32_t>& tokens = words_[w].tokens;
      for (size_t i = 0; i + 1 < tokens.size(); ++i) Change(tokens[i], tokens[i + 1], w, 1);
    }
    QueueRaised();
  }

  /// The most frequent pair; false when none reaches kMinCount.
  bool Pop(uint64_t& pair) {
    while (!queue_.empty()) {
      Entry top = queue_.top();
      queue_.pop();
      int64_t count = pairs_[top.pair].count;
      if (count < kMinCount) continue;
      if (count != top.count) {  // it fell since it was queued
        queue_.push({count, top.pair});
        continue;
      }
      pair = top.pair;
      return true;
    }
    return false;
  }

  /// Replaces the pair by one token in every word.
  void Merge(uint64_t pair, int32_t merged) {
    std::vector<uint32_t> where = std::move(pairs_[pair].words);
    for (uint32_t w : where) MergeWord(w, pair, merged);
    pairs_.erase(pair);
    QueueRaised();
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> words;  ///< Where it occurs, or did.
  };
  struct Entry {
    int64_t count;
    uint64_t pair;
    bool operator<(const Entry& other) const {
      return count != other.count ? count < other.count : pair > other.pair;
    }
  };

  void Change(int32_t left, int32_t right, size_t w, int sign) {
    uint64_t key = PairKey(left, right);
    Pair& pair = pairs_[key];
    pair.count += sign * words_[w].count;
    if (sign < 0) return;
    auto word = static_cast<uint32_t>(w);
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    raised_.push_back(key);
  }

  void MergeWord(size_t w, uint64_t pair, int32_t merged) {
    std::vector<int32_t>& tokens = words_[w].tokens;
    size_t kept = 0;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i + 1 == tokens.size() || PairKey(tokens[i], tokens[i + 1]) != pair) {
        tokens[kept++] = tokens[i];
        continue;
      }
      if (kept > 0) {
        Change(tokens[kept - 1], tokens[i], w, -1);
        Change(tokens[kept - 1], merged, w, 1);
      }
      if (i + 2 < tokens.size()) {
        Change(tokens[i + 1], tokens[i + 2], w, -1);
        Change(merged, tokens[i + 2], w, 1);
      }
      tokens[kept++] = merged;
      ++i;
    }
    tokens.resize(kept);
  }

  void QueueRaised() {
    std::sort(raised_.begin(), raised_.end());
    raised_.erase(std::unique(raised_.begin(), raised_.end()), raised_.end());
    for (uint64_t key : raised_) {
      auto it = pairs_.find(key);
      if (it != pairs_.end() && it->second.count >= kMinCount) {
        queue_.push({it->second.count, key});
      }
    }
    raised_.clear();
  }

  std::vector<Word> words_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::priority_queue<Entry> queue_;
  std::vector<uint64_t> raised_;
};

}  // namespace

void BpeTrainer::Add(std::string_view text) {
  while (!text.empty()) {
    std::string_view word = text.substr(0, NextPiece(SplitPattern::kGpt2, text));
    text.remove_prefix(word.size());
    auto it = words_.find(word);
    if (it == words_.end()) it = words_.emplace(std::string(word), 0).first;
    ++it->second;
  }
}

Result<TokenizerDefinition> BpeTrainer::Train(int64_t vocab_size) const {
  if (vocab_size < 257 || vocab_size > kMaxTokenId) {
    return InvalidError("a byte-level tokenizer cannot have " + std::to_string(vocab_size) +
                        " tokens. hint: give 257 to " + std::to_string(kMaxTokenId));
  }
  TokenizerDefinition definition;
  definition.splits = {Gpt2Split()};

  std::vector<int> bytes(256);
  std::iota(bytes.begin(), bytes.end(), 0);
  std::sort(bytes.begin(), bytes.end(),
            [](int a, int b) { return kByteAlphabet[a] < kByteAlphabet[b]; });
  int32_t token_of_byte[256];
  std::unordered_map<std::string, int32_t> ids;
  for (int byte : bytes) {
    token_of_byte[byte] = static_cast<int32_t>(definition.tokens.size());
    definition.tokens.push_back(BytesToAlphabet(std::string(1, static_cast<char>(byte))));
    ids.emplace(definition.tokens.back(), token_of_byte[byte]);
  }

  std::vector<Word> words;
  words.reserve(words_.size());
  for (const auto& [text, count] : words_) {
    Word word;
    word.count = count;
    for (char c : text) word.tokens.push_back(token_of_byte[static_cast<unsigned char>(c)]);
    words.push_back(std::move(word));
  }

  PairCounts counts(std::move(words));
  std::set<uint64_t> ranked;
  uint64_t pair = 0;
  while (static_cast<int64_t>(definition.tokens.size()) + 1 < vocab_size && counts.Pop(pair)) {
    const std::string& left = definition.tokens[pair >> 32];
    const std::string& right = definition.tokens[pair & 0xffffffffu];
    // Two ways to build the same string share a token, and a pair can come up again through one.
    auto [it, fresh] = ids.emplace(left + right, static_cast<int32_t>(definition.tokens.size()));
    if (ranked.insert(pair).second) definition.merges.emplace_back(left, right);
    if (fresh) definition.tokens.push_back(it->first);
    counts.Merge(pair, it->second);
  }
  const auto end = static_cast<int32_t>(definition.tokens.size());
  definition.added.push_back({end, "<|endoftext|>", true});
  return definition;
}

}  // namespace weft
