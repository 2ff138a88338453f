#include "worker/engine/comm/exchange_check.h"

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

constexpr int64_t kMostNumbers = 1 << 14;  // of a rank
constexpr int64_t kMostOfAll = 1 << 20;

/// From -128 to 128, so that f32 holds sums over 100,000 ranks exactly.
int64_t Number(int64_t rank, int64_t i) {
  return (31 * i + 17 * rank) % 257 - 128;
}

/// What a rank has found.
struct Finding {
  std::set<int> senders;  ///< Whose numbers were wrong.
  bool sum = false;
};

Result<Finding> Exchange(Collective& group, Context& context) {
  const int64_t size = group.size();
  const int64_t count = std::clamp<int64_t>(kMostOfAll / size, 64, kMostNumbers);
  WEFT_ASSIGN_OR_RETURN(Tensor own,
                        Tensor::New(context, Component::kCommunication, DType::kF32, {count}));
  WEFT_ASSIGN_OR_RETURN(
      Tensor all, Tensor::New(context, Component::kCommunication, DType::kF32, {size, count}));
  std::vector<float> numbers(static_cast<size_t>(size * count));
  std::vector<int64_t> sums(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    numbers[static_cast<size_t>(i)] = static_cast<float>(Number(group.rank(), i));
    for (int64_t rank = 0; rank < size; ++rank) sums[static_cast<size_t>(i)] += Number(rank, i);
  }
  const Stream& stream = context.stream;
  WEFT_RETURN_IF_ERROR(Upload(stream, numbers.data(), own));
  WEFT_RETURN_IF_ERROR(group.AllGather(stream, own, all, "exchange check").Wait(stream));
  WEFT_RETURN_IF_ERROR(
      group.AllReduce(stream, own, Reduction::kSum, "exchange check").Wait(stream));
  Finding found;
  WEFT_RETURN_IF_ERROR(Download(stream, all, numbers.data()));
  for (int64_t at = 0; at < size * count; ++at) {
    const int64_t rank = at / count;
    if (numbers[static_cast<size_t>(at)] != static_cast<float>(Number(rank, at % count))) {
      found.senders.insert(static_cast<int>(rank));
    }
  }
  WEFT_RETURN_IF_ERROR(Download(stream, own, numbers.data()));
  for (size_t i = 0; i < sums.size(); ++i) {
    found.sum |= numbers[i] != static_cast<float>(sums[i]);
  }
  return found;
}

/// "ranks 3 and 5".
std::string Ranks(const Collective& group, const std::set<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (auto it = ranks.begin(); it != ranks.end(); ++it) {
    if (it != ranks.begin()) text += std::next(it) == ranks.end() ? " and " : ", ";
    text += std::to_string(group.members()[static_cast<size_t>(*it)]);
  }
  return text;
}

}  // namespace

Result<ExchangeCheck> CheckExchange(Collective& group, Context& context) {
  if (group.size() == 1) return ExchangeCheck();
  WEFT_ASSIGN_OR_RETURN(const Finding own, Exchange(group, context));
  const Json said{{"senders", own.senders}, {"sum", own.sum}};
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all, group.AllGather(said.dump()));
  std::set<int> senders, sums;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    WEFT_ASSIGN_OR_RETURN(const Json finding, ParseJson(all[rank]));
    senders.merge(finding.at("senders").get<std::set<int>>());
    if (finding.at("sum").get<bool>()) sums.insert(static_cast<int>(rank));
  }
  if (!senders.empty()) {
    return ExchangeCheck{"numbers of " + Ranks(group, senders) + " reached other ranks wrong",
                         senders};
  }
  if (std::ssize(sums) == group.size()) {
    return ExchangeCheck{"sums over the ranks were wrong on all of them", {}};
  }
  if (sums.empty()) return ExchangeCheck();
  return ExchangeCheck{"sums over the ranks were wrong on " + Ranks(group, sums), sums};
}

}  // namespace weft::engine
