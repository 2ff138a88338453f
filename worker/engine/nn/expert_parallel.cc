#include "worker/engine/nn/expert_parallel.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "worker/engine/tensor/transfer.h"

namespace weft::engine {

int64_t ExpertRows::SentRows() const {
  return std::accumulate(sent.begin(), sent.end(), int64_t{0});
}

int64_t ExpertRows::ReceivedRows() const {
  return std::accumulate(received.begin(), received.end(), int64_t{0});
}

Result<ExpertRows> ExpertParallel::Agree(Context& context, std::vector<int64_t> sent) const {
  const auto experts = static_cast<int64_t>(sent.size()), here = experts / degree();
  WEFT_ASSIGN_OR_RETURN(Tensor numbers,
                        Tensor::New(context, Component::kWorkspace, DType::kI32, {2, experts}));
  WEFT_RETURN_IF_ERROR(
      FillOnHost(context.stream, numbers.Rows(0, 1), [&](const TensorView& to_send) {
        std::copy(sent.begin(), sent.end(), to_send.As<int32_t>());
      }));
  WEFT_RETURN_IF_ERROR(
      group_->AllToAll(context.stream, numbers.Rows(0, 1), numbers.Rows(1, 1), "rows for experts")
          .Wait(context.stream));
  std::vector<int32_t> came(sent.size());
  WEFT_RETURN_IF_ERROR(Download(context.stream, numbers.Rows(1, 1), came.data()));
  ExpertRows rows{std::move(sent), std::vector<int64_t>(static_cast<size_t>(experts))};
  // They come by rank.
  for (int64_t e = 0; e < here; ++e) {
    for (int64_t r = 0; r < degree(); ++r) {
      rows.received[e * degree() + r] = came[r * here + e];
    }
  }
  return rows;
}

std::vector<Transfer> ExpertParallel::OfTokens(const ExpertRows& rows, const Tensor& here) const {
  const int64_t of_rank = static_cast<int64_t>(rows.sent.size()) / degree();
  std::vector<Transfer> transfers;
  int64_t begin = 0;
  for (size_t e = 0; e < rows.sent.size(); ++e) {
    if (rows.sent[e] == 0) continue;
    transfers.push_back(
        {here.Rows(begin, rows.sent[e]), static_cast<int>(static_cast<int64_t>(e) / of_rank)});
    begin += rows.sent[e];
  }
  return transfers;
}

std::vector<Transfer> ExpertParallel::OfExperts(const ExpertRows& rows, const Tensor& there) const {
  std::vector<Transfer> transfers;
  int64_t begin = 0;
  for (size_t i = 0; i < rows.received.size(); ++i) {
    if (rows.received[i] == 0) continue;
    transfers.push_back({there.Rows(begin, rows.received[i]),
                         static_cast<int>(static_cast<int64_t>(i) % degree())});
    begin += rows.received[i];
  }
  return transfers;
}

Status ExpertParallel::ToExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                                 const Tensor& to) const {
  return group_
      ->Exchange(context.stream, OfTokens(rows, from), OfExperts(rows, to), "tokens to experts")
      .Wait(context.stream);
}

Status ExpertParallel::FromExperts(Context& context, const ExpertRows& rows, const Tensor& from,
                                   const Tensor& to) const {
  return group_
      ->Exchange(context.stream, OfExperts(rows, from), OfTokens(rows, to), "tokens from experts")
      .Wait(context.stream);
}

}  // namespace weft::engine
