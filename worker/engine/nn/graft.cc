#include "worker/engine/nn/graft.h"

#include "common/check.h"

namespace weft::engine {

void Grafts::SetGate(std::unique_ptr<BranchGate> gate) {
  WEFT_CHECK(gate_ == nullptr, "one gate decides about a branch");
  gate_ = std::move(gate);
}

void Grafts::SetVirtualTokens(std::unique_ptr<VirtualTokens> tokens) {
  WEFT_CHECK(virtual_tokens_ == nullptr, "one technique has virtual tokens");
  virtual_tokens_ = std::move(tokens);
}

void Grafts::SetTokenGraft(std::unique_ptr<TokenGraft> graft) {
  WEFT_CHECK(token_graft_ == nullptr, "one technique has an adapter of the table of tokens");
  token_graft_ = std::move(graft);
}

Status Grafts::Pack(Context& context, Repack what) {
  for (List& place : places_) {
    for (const std::unique_ptr<Graft>& graft : place) {
      WEFT_RETURN_IF_ERROR(graft->Pack(context, what));
    }
  }
  if (token_graft_ != nullptr) WEFT_RETURN_IF_ERROR(token_graft_->Pack(context, what));
  return virtual_tokens_ == nullptr ? OkStatus() : virtual_tokens_->Pack(context, what);
}

Result<Value> Grafts::Forward(GraftPlace place, Context& context, Tape& tape, Value x,
                              const GraftUse& use) const {
  for (const std::unique_ptr<Graft>& graft : At(place)) {
    WEFT_ASSIGN_OR_RETURN(x, graft->Forward(context, tape, std::move(x), use));
  }
  return x;
}

Result<Value> Grafts::ForwardTokens(Context& context, Tape& tape, Value x,
                                    const Tensor& tokens) const {
  if (token_graft_ == nullptr) return x;
  return token_graft_->Forward(context, tape, std::move(x), tokens);
}

}  // namespace weft::engine
