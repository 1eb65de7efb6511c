"""Makes a very small Qwen3 model with random weights, for vLLM to serve. Run by the interpreter that vLLM has.

What it says is noise, but it is a real model with a real tokenizer: prompts are templated, tokenised, hashed into
blocks and reused as with any other. The tokenizer learns from the sources of Python's own library, so that nothing
has to be fetched. Weights, tokenizer and configuration need some 3 MB.
"""

# mypy: ignore-errors
# Run by the interpreter that vLLM has: torch is not there where the tests are checked.

import argparse
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
CONTEXT = 65_536
HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD = 64, 2, 2, 1, 64
SPREAD = 0.3  # standard deviation of the weights; less, and every token would be as likely as any other

CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# The parsers of vLLM look for these in the text, so they must not count as special.
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
TEXT_BYTES = 12_000_000


def sources() -> Iterator[str]:
    """Python's library, as text to learn from."""
    library = Path(sysconfig.get_paths()["stdlib"])
    taken = 0
    for file in sorted([*library.glob("*.py"), *library.glob("*/*.py")]):
        if "site-packages" in file.parts or taken > TEXT_BYTES:
            continue
        text = file.read_text("utf-8", errors="replace")
        taken += len(text)
        yield text


def make_tokenizer(folder: Path) -> dict[str, int]:
    """Writes the tokenizer; returns the ids of `CONTROL`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[*CONTROL, *MARKS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sources(), trainer)
    whole = json.loads(tokenizer.to_str())
    for token in whole["added_tokens"]:
        token["special"] = token["content"] in CONTROL
    (folder / "tokenizer.json").write_text(json.dumps(whole))
    configuration = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": CONTEXT,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "clean_up_tokenization_spaces": False,
        "added_tokens_decoder": {str(token.pop("id")): token for token in whole["added_tokens"]},
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(configuration))
    return {token: tokenizer.token_to_id(token) for token in CONTROL}


def make_weights(folder: Path) -> None:
    generator = torch.Generator().manual_seed(7)

    def noise(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * SPREAD).to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    weights = {"model.embed_tokens.weight": noise(VOCABULARY, HIDDEN), "model.norm.weight": ones(HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        weights |= {
            f"{at}.input_layernorm.weight": ones(HIDDEN),
            f"{at}.post_attention_layernorm.weight": ones(HIDDEN),
            f"{at}.self_attn.q_proj.weight": noise(HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.k_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.v_proj.weight": noise(KV_HEADS * HEAD, HIDDEN),
            f"{at}.self_attn.o_proj.weight": noise(HIDDEN, HEADS * HEAD),
            f"{at}.self_attn.q_norm.weight": ones(HEAD),
            f"{at}.self_attn.k_norm.weight": ones(HEAD),
            f"{at}.mlp.gate_proj.weight": noise(2 * HIDDEN, HIDDEN),
            f"{at}.mlp.up_proj.weight": noise(2 * HIDDEN, HIDDEN),
            f"{at}.mlp.down_proj.weight": noise(HIDDEN, 2 * HIDDEN),
        }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def make_configuration(folder: Path, ids: dict[str, int]) -> None:
    ends = [ids["<|im_end|>"], ids["<|endoftext|>"]]
    configuration = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "dtype": "bfloat16",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "tie_word_embeddings": True,
        "initializer_range": SPREAD,
        "bos_token_id": None,
        "eos_token_id": ends[0],
        "pad_token_id": ends[1],
    }
    (folder / "config.json").write_text(json.dumps(configuration, indent=1))
    generation = {"eos_token_id": ends, "pad_token_id": ends[1]}
    (folder / "generation_config.json").write_text(json.dumps(generation))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    make_configuration(folder, make_tokenizer(folder))
    make_weights(folder)


if __name__ == "__main__":
    main()
