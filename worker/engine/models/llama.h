#pragma once

#include "worker/engine/models/decoder.h"

namespace weft::engine {

/// Llama (Touvron et al. 2023, arXiv 2302.13971; Llama Team 2024, arXiv 2407.21783), and what
/// differs from it in sizes, biases and window only: Mistral (arXiv 2310.06825), Qwen2
/// (arXiv 2407.10671). With the names of Hugging Face's LlamaForCausalLM; with model.experts those
/// of MixtralForCausalLM (arXiv 2401.04088).
DecoderOptions Llama(const ModelSpec& spec);

}  // namespace weft::engine
