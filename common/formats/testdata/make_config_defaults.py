"""Prints what the configuration classes of transformers have for keys that a config.json leaves out,
as one line of config_defaults.json: run it with each version.

Run: (echo '{"4":'; python4 make_config_defaults.py; echo ',"5":'; python5 make_config_defaults.py;
      echo '}') > config_defaults.json
"""

import json

from transformers import (BertConfig, GPT2Config, LlamaConfig, MistralConfig, MixtralConfig, PretrainedConfig,
                          Qwen2Config, ViTConfig)

KEPT = {"add_cross_attention", "is_decoder", "model_type", "problem_type", "tie_word_embeddings"}
of_all = PretrainedConfig().to_dict()
print(json.dumps({
    kind.model_type: {key: value for key, value in kind().to_dict().items() if key in KEPT or key not in of_all}
    for kind in (GPT2Config, LlamaConfig, MistralConfig, MixtralConfig, Qwen2Config, BertConfig, ViTConfig)
}, sort_keys=True))
