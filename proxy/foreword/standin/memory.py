"""What an engine remembers of prompts, in the one form that the queue asks for."""

from typing import NamedTuple, Protocol

from foreword._core import BlockCache

from . import tokens
from .offload import Offload
from .options import Options


class Found(NamedTuple):
    """What a prompt found. ``loaded``: how many of the tokens came from a second level. ``seconds``: until they are at
    hand."""

    tokens: int
    loaded: int = 0
    seconds: float = 0.0


class Memory(Protocol):
    """Lengths in tokens, prompts as bytes of tokens."""

    serial: bool
    """Whether a request has the engine to itself until its answer is written."""

    def start(self, prompt: bytes, salt: bytes, /) -> Found:
        """A request's turn: how much of its prompt is remembered."""

    def read(self, prompt: bytes, upto: int, salt: bytes, /) -> None:
        """The prompt was read up to there."""

    def finish(self, computed: bytes, salt: bytes, /, *, written: bool) -> None:
        """The request is over, and this much of prompt and answer was computed. ``written``: any answer at all."""

    def clear(self) -> None:
        """Forgets all."""

    def __len__(self) -> int:
        """Blocks or checkpoints held."""


class Blocks:
    """vLLM's: the blocks of all prompts, and perhaps a second level behind them."""

    serial = False

    def __init__(self, options: Options) -> None:
        self.first = BlockCache(options.block_tokens, options.cache_blocks)
        self.second = Offload(options) if options.l2 is not None else None

    def start(self, prompt: bytes, salt: bytes) -> Found:
        found = self.first.lookup(prompt, salt)
        loaded = self.second.load(prompt, found, salt) if self.second is not None else 0
        if loaded:
            self.first.insert(prompt, found + loaded, salt)
        return Found(found + loaded, loaded)

    def read(self, prompt: bytes, upto: int, salt: bytes) -> None:
        self.first.insert(prompt, upto, salt)
        if self.second is not None:
            self.second.store(prompt, upto, salt)

    def finish(self, computed: bytes, salt: bytes, *, written: bool) -> None:
        if written:  # freed now, so most recently used now
            self.read(computed, tokens.count(computed), salt)

    def clear(self) -> None:
        self.first.clear()

    def __len__(self) -> int:
        return len(self.first)
