#pragma once

#include <string>

#include "tests/matrix/methods.h"
#include "tests/matrix/techniques.h"

/// Choices of the axes of parameter-efficient tuning and of quantised weights.
namespace weft::testing {

/// On the default layers, or on all.
Choice Lora(bool everywhere);
/// Whose scales follow from the weights; biases are trained, too.
Choice Dora();
/// LoRA that starts otherwise, with dropout.
Choice LoraFrom(const Methods& inits);
/// Two adapters, each of its half of the sequences and with a rate of its own.
Choice JointAdapters();
/// LoRA that adapts the token embedding, too, and of llama a classifier of its own.
Choice LoraOfTokens();
/// Besides adapters, and of llama besides norms alone.
Choice TrainedTokens();
Choice OtherPeft(const std::string& method);
/// Two of the positions are those of virtual tokens.
Choice VirtualTokens(const std::string& method);
/// That a network makes; all attentions share a part of it.
Choice ProjectedPrefix();

/// In 4 bits, with adapters: LoRA on all layers where the job has none. With DoRA it is QDoRA. Two
/// tensor-parallel ranks have whole blocks.
Choice QuantizedWeights(const std::string& type);

}  // namespace weft::testing
