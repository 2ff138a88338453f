#include "worker/engine/models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "common/model/model_sizes.h"
#include "common/model/technique_cost.h"
#include "common/rng.h"
#include "kernels/cpu/float_types.h"
#include "worker/engine/tensor/transfer.h"

namespace weft::engine {
namespace {

/// Positions that virtual tokens leave.
int64_t TokensOfContext(const ModelSpec& spec) {
  return spec.context - VirtualTokensOf(spec).Total();
}

Status Validate(const ModelSpec& spec, const std::vector<int32_t>& prompt,
                const GenerateOptions& options) {
  if (prompt.empty()) return InvalidError("generating needs a prompt of at least one token");
  if (static_cast<int64_t>(prompt.size()) > TokensOfContext(spec)) {
    return InvalidError("a prompt of " + std::to_string(prompt.size()) +
                        " tokens is longer than the model's context of " +
                        std::to_string(TokensOfContext(spec)) + "; hint: keep its end only");
  }
  for (int32_t token : prompt) {
    if (token < 0 || token >= spec.vocab_size) {
      return InvalidError("prompt token " + std::to_string(token) +
                          " is outside the vocabulary of " + std::to_string(spec.vocab_size));
    }
  }
  const SamplingOptions& s = options.sampling;
  if (!(s.temperature >= 0) || !std::isfinite(s.temperature) || s.top_k < 0 || !(s.top_p > 0) ||
      s.top_p > 1 || options.max_new_tokens < 0) {
    return InvalidError(
        "sampling needs temperature >= 0, top_k >= 0, 0 < top_p <= 1 and max_new_tokens >= 0");
  }
  return OkStatus();
}

Result<std::vector<KeyValueCache>> NewCaches(Context& context, const ModelSpec& spec, DType compute,
                                             int64_t capacity) {
  std::vector<KeyValueCache> caches(static_cast<size_t>(spec.layers));
  const Shape shape = {capacity, KvWidth(spec)};
  for (KeyValueCache& cache : caches) {
    WEFT_ASSIGN_OR_RETURN(cache.keys, Tensor::New(context, Component::kWorkspace, compute, shape));
    WEFT_ASSIGN_OR_RETURN(cache.values,
                          Tensor::New(context, Component::kWorkspace, compute, shape));
  }
  return caches;
}

// Tokens that follow `length` cached ones, without targets.
Batch Continuation(const std::vector<int32_t>& tokens, int64_t length) {
  Batch batch;
  batch.sequences = 1;
  batch.length = static_cast<int64_t>(tokens.size());
  batch.tokens = tokens;
  batch.targets.assign(tokens.size(), -1);
  batch.positions.resize(tokens.size());
  std::iota(batch.positions.begin(), batch.positions.end(), static_cast<int32_t>(length));
  batch.sequence_starts = {0, static_cast<int32_t>(tokens.size())};
  return batch;
}

Result<std::vector<float>> LastRow(const Stream& stream, const Tensor& logits, int64_t vocabulary) {
  WEFT_ASSIGN_OR_RETURN(const HostCopy row,
                        HostCopy::Of(stream, logits.Rows(logits.shape().Rows() - 1, 1)));
  std::vector<float> values(static_cast<size_t>(vocabulary));
  kernels::cpu::WithFloatType(row.view().dtype, [&]<class T>() {
    for (size_t i = 0; i < values.size(); ++i) values[i] = ToFloat(row.view().As<T>()[i]);
  });
  return values;
}

// A logit as it is compared: what is no number is the least probable.
float Ordered(float logit) {
  return std::isnan(logit) ? -INFINITY : logit;
}

}  // namespace

int32_t SampleToken(const std::vector<float>& logits, const SamplingOptions& options,
                    uint64_t index) {
  if (options.temperature == 0) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  // A heap instead of a sorted vocabulary: the token drawn is nearly always among the first.
  const auto later = [&](int32_t a, int32_t b) {
    const float x = Ordered(logits[a]), y = Ordered(logits[b]);
    return x < y || (x == y && a > b);
  };
  std::vector<int32_t> heap(logits.size());
  std::iota(heap.begin(), heap.end(), 0);
  if (options.top_k > 0 && options.top_k < static_cast<int64_t>(heap.size())) {
    std::nth_element(heap.begin(), heap.begin() + options.top_k, heap.end(),
                     [&](int32_t a, int32_t b) { return later(b, a); });
    heap.resize(static_cast<size_t>(options.top_k));
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const float highest = Ordered(logits[heap.front()]);
  const auto weight = [&](int32_t token) {
    return std::exp((Ordered(logits[token]) - highest) / options.temperature);
  };
  double total = 0;
  for (int32_t token : heap) total += weight(token);

  std::vector<int32_t> order;  // the most probable tokens, as far as they were needed
  const auto take_next = [&] {
    std::pop_heap(heap.begin(), heap.end(), later);
    order.push_back(heap.back());
    heap.pop_back();
  };
  double kept = total;
  if (options.top_p < 1) {
    kept = 0;
    while (!heap.empty() && (order.empty() || kept < options.top_p * total)) {
      take_next();
      kept += weight(order.back());
    }
    heap.clear();
  }
  PhiloxStream random(PhiloxKey{options.seed, static_cast<uint32_t>(index), SiteHash("generate")});
  double point = random.Uniform() * kept;
  for (size_t i = 0;; ++i) {
    if (i == order.size()) {
      if (heap.empty()) return order.back();
      take_next();
    }
    point -= weight(order[i]);
    if (point < 0) return order[i];
  }
}

Result<std::vector<int32_t>> Generate(Context& context, const LanguageModel& model,
                                      const std::vector<int32_t>& prompt,
                                      const GenerateOptions& options) {
  const ModelSpec& spec = model.spec();
  std::vector<const LanguageModel*> networks = {&model};
  if (options.base != nullptr) networks.push_back(options.base);
  const auto prompt_length = static_cast<int64_t>(prompt.size());
  int64_t capacity = prompt_length + options.max_new_tokens;
  for (const LanguageModel* network : networks) {
    WEFT_RETURN_IF_ERROR(Validate(network->spec(), prompt, options));
    if (network->spec().vocab_size != spec.vocab_size) {
      return InvalidError("a network has a vocabulary of " +
                          std::to_string(network->spec().vocab_size) + ", the model one of " +
                          std::to_string(spec.vocab_size) + ", and their logits are added");
    }
    capacity = std::min(capacity, TokensOfContext(network->spec()));
  }
  std::vector<std::vector<KeyValueCache>> caches;
  for (const LanguageModel* network : networks) {
    WEFT_ASSIGN_OR_RETURN(caches.emplace_back(),
                          NewCaches(context, network->spec(), network->precision().activations,
                                    capacity + VirtualTokensOf(network->spec()).Total()));
  }
  std::vector<int32_t> generated;
  std::vector<int32_t> next = prompt;
  int64_t length = 0;
  while (static_cast<int64_t>(generated.size()) < options.max_new_tokens &&
         length + static_cast<int64_t>(next.size()) <= capacity) {
    WEFT_ASSIGN_OR_RETURN(TokenBatch batch,
                          TokenBatch::New(context, Continuation(next, length), 0));
    std::vector<float> last;
    for (size_t i = 0; i < networks.size(); ++i) {
      WEFT_ASSIGN_OR_RETURN(Tensor logits, networks[i]->Logits(context, batch, &caches[i]));
      WEFT_ASSIGN_OR_RETURN(const std::vector<float> own,
                            LastRow(context.stream, logits, spec.vocab_size));
      last.resize(own.size());
      for (size_t c = 0; c < own.size(); ++c) last[c] += own[c];
    }
    length += batch.count;
    const int32_t token = SampleToken(last, options.sampling, generated.size());
    generated.push_back(token);
    if (token == options.stop_token || (options.on_token && !options.on_token(token))) break;
    next = {token};
  }
  return generated;
}

}  // namespace weft::engine
