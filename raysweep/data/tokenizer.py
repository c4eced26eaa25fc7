"""Counting the tokens of texts, prompts with completions, and conversations, with a model's own tokenizer."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Protocol

from raysweep.data.hub import load_tokenizer
from raysweep.data.rows import COMPLETION, MESSAGES, PROMPT, TEXT, Batch, Kind, Row
from raysweep.errors import DataError

Span = tuple[int, int]
"""Start and end of loss-bearing characters in a text."""


class LossOn(StrEnum):
    """Which tokens of a conversation or of a prompt with its completion bear loss; a plain text's all do."""

    ANSWERS = "answers"
    """Completions, and what the assistant says, with the token that ends its turn."""
    ALL = "all"


class TokenCounter(Protocol):
    """Counts tokens of rows."""

    @property
    def fingerprint(self) -> str:
        """A short word that changes with anything that could change a count."""

    def count(self, batch: Batch, kind: Kind, loss_on: LossOn) -> list[tuple[int, int]]:
        """Return tokens and loss-bearing tokens of each row.

        Raises:
            DataError: a row holds no text where one is needed.
        """


class HubTokenizer:
    """A tokenizer as transformers loads it; it counts on all cores.

    As TRL's SFTTrainer prepares its data: a text and a completion end with the end-of-sequence token, added where it
    is missing; conversations go through the chat template.
    """

    def __init__(self, model: str, *, trust_remote_code: bool = False, counts: str = "texts") -> None:
        """Load the tokenizer of a folder, of the folder that a config file is in, or of a Hub id ``owner/name``.

        Args:
            model: The folder, file or id.
            trust_remote_code: Whether code that comes with the tokenizer may run.
            counts: What is to be counted, for errors.

        Raises:
            DataError: there is none to load.
        """
        self._tokenizer = load_tokenizer(model, trust_remote_code=trust_remote_code, counts=counts)
        self._model = model
        self._end = self._tokenizer.eos_token or ""
        if self._tokenizer.is_fast:  # a saved tokenizer may carry a limit of its own, which would hide long items
            self._tokenizer.backend_tokenizer.no_truncation()
            self._tokenizer.backend_tokenizer.no_padding()

    @property
    def fingerprint(self) -> str:
        """Digest of the vocabulary, the rules and the chat template."""
        fast = self._tokenizer.is_fast
        rules = (
            self._tokenizer.backend_tokenizer.to_str() if fast else repr(sorted(self._tokenizer.get_vocab().items()))
        )
        parts = (type(self._tokenizer).__name__, rules, str(self._tokenizer.chat_template), self._end)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()

    def count(self, batch: Batch, kind: Kind, loss_on: LossOn) -> list[tuple[int, int]]:
        """Return tokens and loss-bearing tokens of each row.

        Raises:
            DataError: a row holds no text where one is needed, or the chat template refuses it.
        """
        texts: list[str] = []
        spans: list[list[Span] | None] = []
        for index, row in enumerate(batch.rows):
            text, answers = self._rendered(row, kind, batch.where(index))
            texts.append(text)
            spans.append(None if loss_on is LossOn.ALL else answers)
        conversational = kind is Kind.MESSAGES or (kind is Kind.PROMPT and isinstance(batch.rows[0][PROMPT], list))
        # A chat template writes the special tokens itself.
        counted = self._count(texts, spans, special=not conversational)
        for index, (tokens, _) in enumerate(counted):
            if not tokens:
                raise DataError(f"{batch.where(index)}: expected text, found none that makes a token")
        return counted

    def _rendered(self, row: Row, kind: Kind, where: str) -> tuple[str, list[Span] | None]:
        """Return a row's whole text and which of its characters bear loss; None is all of them."""
        if kind is Kind.TEXT:
            return self._ended(_text(row, TEXT, where)), None
        if kind is Kind.MESSAGES:
            messages = _messages(row, MESSAGES, where)
            return self._conversation(messages, 0, row.get("tools"), where)
        if isinstance(row.get(PROMPT), list):
            prompt, completion = _messages(row, PROMPT, where), _messages(row, COMPLETION, where)
            return self._conversation(prompt + completion, len(prompt), None, where)
        prompt_text = _text(row, PROMPT, where)
        whole = self._ended(prompt_text + _text(row, COMPLETION, where))
        return whole, [(len(prompt_text), len(whole))]

    def _ended(self, text: str) -> str:
        return text if text.endswith(self._end) else text + self._end

    def _conversation(self, messages: list[Row], first: int, tools: Any, where: str) -> tuple[str, list[Span]]:
        whole = self._template(messages, tools, where)
        spans: list[Span] = []
        reached = 0
        for index, message in enumerate(messages):
            if index < first or message.get("role") != "assistant":
                continue
            before = self._template(messages[:index], tools, where, answer_next=True) if index else ""
            last = index == len(messages) - 1
            through = whole if last else self._template(messages[: index + 1], tools, where)
            if whole.startswith(before) and whole.startswith(through):
                spans.append((len(before), len(through.rstrip())))
            else:
                # Templates of reasoning models rewrite earlier turns: then the answer is found by what it says.
                spans.append(self._found(whole, message, reached, where))
            reached = spans[-1][1]
        return whole, spans

    def _template(self, messages: list[Row], tools: Any, where: str, *, answer_next: bool = False) -> str:
        if not self._tokenizer.chat_template:
            raise DataError(
                f"{where}: expected a tokenizer with a chat template to count 'messages', found that {self._model!r} "
                "has none. A folder needs chat_template.jinja, or chat_template in its tokenizer_config.json; or give "
                "another tokenizer, texts, or token counts"
            )
        try:
            rendered: str = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=answer_next
            )
        except Exception as error:
            # A template may raise what it likes: jinja's errors, TypeError, KeyError, …
            raise DataError(
                f"{where}: the chat template of {self._model!r} refuses the conversation: {error}"
            ) from error
        return rendered

    def _found(self, whole: str, message: Row, reached: int, where: str) -> Span:
        content = message.get("content")
        text = content.strip() if isinstance(content, str) else ""
        start = whole.find(text, reached) if text else -1
        if start < 0:
            raise DataError(
                f"{where}: expected to find the assistant's words where the chat template of {self._model!r} puts "
                "them, found none; count with loss on all, or give loss_tokens"
            )
        end = start + len(text)
        closing = next((t for t in self._tokenizer.all_special_tokens if whole.startswith(t, end)), "")
        return start, end + len(closing)

    def _count(self, texts: list[str], spans: list[list[Span] | None], *, special: bool) -> list[tuple[int, int]]:
        if not self._tokenizer.is_fast:
            if any(s is not None for s in spans):
                raise DataError(
                    f"the tokenizer of {self._model!r} cannot tell where loss-bearing tokens stand, not being one "
                    "of the tokenizers library; count with loss on all, or give loss_tokens"
                )
            return [(n, n) for n in (len(self._tokenizer.encode(t, add_special_tokens=special)) for t in texts)]
        backend = self._tokenizer.backend_tokenizer  # it spreads a batch over all cores
        if all(s is None for s in spans):  # where characters stand is then not asked for, and takes time to keep
            return [(n, n) for n in map(len, backend.encode_batch_fast(texts, add_special_tokens=special))]
        encodings = backend.encode_batch(texts, add_special_tokens=special)
        return [
            (len(e), len(e) if s is None else _bearing(e, text, s))
            for e, text, s in zip(encodings, texts, spans, strict=True)
        ]


def _bearing(encoding: Any, text: str, spans: Sequence[Span]) -> int:
    """Return how many tokens the spans hold; one that reaches over a span's start is within it."""
    return sum(_token_at(encoding, text, end) - _token_at(encoding, text, start) for start, end in spans)


def _token_at(encoding: Any, text: str, character: int) -> int:
    """Return the index of the token that a character is in, or of the next where a tokenizer drops the character."""
    # Looked up within the library: a list of all tokens' offsets takes longer to make than the tokens.
    indices = (encoding.char_to_token(place) for place in range(character, len(text)))
    return next((index for index in indices if index is not None), len(encoding))


def _text(row: Row, key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str):
        raise DataError(f"{where}, {key}: expected text, found {value!r:.60}")
    return value


def _messages(row: Row, key: str, where: str) -> list[Row]:
    value: Any = row.get(key)
    good = (
        isinstance(value, list) and value and all(isinstance(m, dict) and isinstance(m.get("role"), str) for m in value)
    )
    if not good:
        raise DataError(f'{where}, {key}: expected a list of {{"role": …, "content": …}}, found {value!r:.60}')
    return list(value)
