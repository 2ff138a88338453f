#pragma once

#include "worker/engine/models/decoder.h"

namespace weft::engine {

/// GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners"), with the
/// names of Hugging Face's GPT2LMHeadModel.
DecoderOptions Gpt2(const ModelSpec& spec);

}  // namespace weft::engine
