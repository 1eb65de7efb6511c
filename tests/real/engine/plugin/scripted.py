"""A logits processor of vLLM that makes any model say what the prompt tells it to.

A prompt that holds ``say:CODE:yas``, where CODE is the URL-safe base64 of ``{"text": ..., "delay": ...}``, is answered
with exactly that text; ``delay`` is seconds a token. The last such mark counts. So a script reaches the model through
any dialect, proxy or agent, as part of the conversation.
"""

# mypy: ignore-errors
# Runs inside vLLM: neither it nor torch is there where the tests are checked.

import base64
import functools
import json
import re
import time
from collections.abc import Callable

import torch
from transformers import AutoTokenizer
from vllm.config import VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

MARK = re.compile(r"say:([A-Za-z0-9_=-]+):yas")

Step = Callable[[list[int], list[int], torch.Tensor], torch.Tensor]


class Scripted(AdapterLogitsProcessor):
    def __init__(self, vllm_config: VllmConfig, device: torch.device, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._tokenizer = AutoTokenizer.from_pretrained(vllm_config.model_config.tokenizer)

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> Step:
        return functools.partial(self._step, [])

    def _step(self, script: list, prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if not script:  # the first token of this answer: the prompt is known only now
            script.append(self._script(prompt))
        tokens, delay = script[0]
        if not tokens:
            return logits
        time.sleep(delay)
        wanted = tokens[min(len(output), len(tokens) - 1)]
        logits.fill_(float("-inf"))
        logits[wanted] = 0.0
        return logits

    def _script(self, prompt: list[int]) -> tuple[list[int], float]:
        marks = MARK.findall(self._tokenizer.decode(prompt))
        if not marks:
            return [], 0.0
        script = json.loads(base64.urlsafe_b64decode(marks[-1]))
        tokens = self._tokenizer(script["text"], add_special_tokens=False).input_ids
        return [*tokens, self._tokenizer.eos_token_id], float(script.get("delay", 0))
